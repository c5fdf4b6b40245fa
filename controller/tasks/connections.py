"""Tests a scheduler's connections from their forms: whether the server answers, and whether the login has the
necessary rights.

The Pulsar connection also serves admin API calls of users' own tasks.
"""

from __future__ import annotations

from typing import Any

from controller.bootstrap import pulsar_access
from controller.dataplane.pulsar.admin import AdminCalls, Ask
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.doctor import database, pulsar
from controller.doctor.findings import Note
from controller.domain.errors import InvalidInput
from controller.settings import load_settings
from controller.tasks.application_of_connection import Extras, cleave_at


def check_database(*, dsn: str, extras: Extras) -> str:
    """Return a description of the database: server, schema and login, as in `cleave doctor`. Raises
    CleaveError if Cleave could not work with it. A Note of a check, for example about a login that may only read,
    becomes a part of the description.
    """
    descriptions = []
    with cleave_at(dsn, extras) as app:
        for check in (database.database, database.schema, database.role):
            try:
                descriptions.append(check(app))
            except Note as note:
                descriptions.append(str(note))
    server, schema, login = descriptions
    return f"{server}; the schema is {schema}; {login}"


def check_pulsar(*, extras: Extras) -> str:
    """Return the broker's version and address as text. `extras` are settings by name
    (`pulsar_settings`). Raises InvalidInput without a host or for an invalid setting, and another
    CleaveError if no broker answers.
    """
    access, call_timeout_seconds = _pulsar(extras)
    return pulsar.broker(access, call_timeout_seconds)


def ask_pulsar(*, extras: Extras, method: str, path: str, body: object = None) -> Any:
    """Call the admin API with the method at a path below `/admin/v2/`, with `body` as JSON. Return the
    answer's JSON, or None if the answer is empty. Raises InvalidInput without a host or for an invalid
    setting, DataPlaneTimeout without an answer within the time-out of a call, and the errors of
    `AdminCalls.ask`.
    """
    access, call_timeout_seconds = _pulsar(extras)
    calls = AdminCalls(access, call_timeout_seconds=call_timeout_seconds)
    try:
        request = Ask(method.upper(), path.removeprefix("/"), f"{method.upper()} {path}", body=body)
        return calls.ask(request, calls.deadline()).document
    finally:
        calls.close()


def _pulsar(extras: Extras) -> tuple[PulsarAccess, float]:
    """Return the access to the cluster, and the time-out of a call in seconds. Settings that `extras` does
    not have are read from the environment. Raises InvalidInput without a host, and for an invalid setting.
    """
    settings = load_settings(**extras)
    access = pulsar_access(settings)
    if access is None:
        raise InvalidInput("the connection has no host; enter the broker's host")
    return access, settings.call_timeout_seconds
