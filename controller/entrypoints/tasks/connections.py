"""Connections of a scheduler tried from its form: does what is there answer, and may the login do its work?"""

from __future__ import annotations

from controller.bootstrap import pulsar_access
from controller.domain.errors import InvalidInput
from controller.entrypoints.commands import doctor, doctor_pulsar
from controller.entrypoints.commands.findings import Note
from controller.entrypoints.tasks.access import Extras, cleave_at
from controller.settings import load_settings


def check_database(*, dsn: str, extras: Extras) -> str:
    """What there is to say of it, as `cleave doctor` does. Raises CleaveError where Cleave could not work with it."""
    found = []
    with cleave_at(dsn, extras) as app:
        for check in (doctor.database, doctor.schema, doctor.role):
            try:
                found.append(check(app))
            except Note as note:
                found.append(str(note))
    server, schema, login = found
    return f"{server}; the schema is {schema}; {login}"


def check_pulsar(*, extras: Extras) -> str:
    """The broker's version and address. Raises CleaveError where none answers."""
    settings = load_settings(**extras)
    access = pulsar_access(settings)
    if access is None:
        raise InvalidInput("the connection names no host; give the broker's")
    try:
        return doctor_pulsar.broker(access, settings.call_timeout_seconds)
    except Note as note:
        return str(note)
