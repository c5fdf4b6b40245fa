"""Connections of a scheduler, tried from its form: does what is there answer, and may the login do its work?

What there is of Pulsar in its connection also serves calls of people's own tasks.
"""

from __future__ import annotations

from typing import Any

from controller.bootstrap import pulsar_access
from controller.dataplane.pulsar.access import PulsarAccess
from controller.dataplane.pulsar.admin import AdminCalls, Ask
from controller.doctor import database, pulsar
from controller.doctor.findings import Note
from controller.domain.errors import InvalidInput
from controller.settings import load_settings
from controller.tasks.access import Extras, cleave_at


def check_database(*, dsn: str, extras: Extras) -> str:
    """What there is to say of it, as `cleave doctor` does. Raises CleaveError where Cleave could not work with it."""
    found = []
    with cleave_at(dsn, extras) as app:
        for check in (database.database, database.schema, database.role):
            try:
                found.append(check(app))
            except Note as note:
                found.append(str(note))
    server, schema, login = found
    return f"{server}; the schema is {schema}; {login}"


def check_pulsar(*, extras: Extras) -> str:
    """The broker's version and address. Raises CleaveError where none answers."""
    access, call_timeout_seconds = _pulsar(extras)
    try:
        return pulsar.broker(access, call_timeout_seconds)
    except Note as note:
        return str(note)


def ask_pulsar(*, extras: Extras, method: str, path: str, body: object = None) -> Any:
    """A call of the admin API; the path is below `/admin/v2/`. The answer's JSON, None where it is empty. Raises CleaveError."""
    access, call_timeout_seconds = _pulsar(extras)
    calls = AdminCalls(access, call_timeout_seconds=call_timeout_seconds)
    try:
        asked = Ask(method.upper(), path.removeprefix("/"), f"{method.upper()} {path}", body=body)
        return calls.ask(asked, calls.deadline()).document
    finally:
        calls.close()


def _pulsar(extras: Extras) -> tuple[PulsarAccess, float]:
    settings = load_settings(**extras)
    access = pulsar_access(settings)
    if access is None:
        raise InvalidInput("the connection names no host; give the broker's")
    return access, settings.call_timeout_seconds
