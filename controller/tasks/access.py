"""An application from a scheduler's connection: a URL and extras, some of which are settings.

A setting that the connection does not name is taken from the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

from controller.bootstrap import Application, application
from controller.postgres.address import DatabaseAddress, authority
from controller.settings import Settings, load_settings
from controller.store.postgres.engine import STATEMENT_SECONDS

Extras = Mapping[str, object]


def database_url(
    hosts: str, port: int | None, user: str | None, password: str | None, database: str | None
) -> str:
    """Return the libpq URI for the fields of a connection's form, secrets included.

    `hosts` is one host, or several separated by commas; a host with a port of its own keeps it, the others get `port`.
    """
    login = "" if user is None else quote(user, safe="")
    if password is not None:
        login += f":{quote(password, safe='')}"
    return f"postgresql://{login and f'{login}@'}{authority(hosts, port)}/{quote(database or '', safe='')}"


@contextmanager
def cleave_at(
    dsn: str, extras: Extras, *, statement_seconds: float = STATEMENT_SECONDS
) -> Iterator[Application]:
    """An application on the database at `dsn`; extras named like a setting are settings, the rest is libpq's.

    Raises InvalidInput for a setting that is wrong.
    """
    settings = settings_at(dsn, extras)
    with application(settings, name="cleave-airflow", statement_seconds=statement_seconds) as app:
        yield app


def settings_at(dsn: str, extras: Extras) -> Settings:
    """The settings of a task: of the environment, with what the connection says on top."""
    named = {
        str(field.validation_alias or name): extras[name]
        for name, field in Settings.model_fields.items()
        if name in extras
    }
    return load_settings(**{**named, "database_url": url_with_options(dsn, extras)})


def url_with_options(dsn: str, extras: Extras) -> str:
    """The URL with those of the extras that are no settings, which are libpq's. Raises InvalidInput for others."""
    options = {name: str(value) for name, value in extras.items() if name not in Settings.model_fields}
    return DatabaseAddress.of(dsn).with_options(options).uri
