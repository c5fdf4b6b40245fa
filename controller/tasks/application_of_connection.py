"""Builds an application from a scheduler's connection: a URL and extras, some of which are settings.

A setting that the connection does not have is read from the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

from controller.bootstrap import Application, application
from controller.postgres.address import DatabaseAddress, authority
from controller.postgres.session_settings import STATEMENT_SECONDS
from controller.settings import Settings, load_settings

Extras = Mapping[str, object]


def database_url(
    hosts: str, port: int | None, user: str | None, password: str | None, database: str | None
) -> str:
    """Return the libpq URI for the fields of a connection's form, secrets included. A field that is None is
    left out.

    `hosts` is one host, or several separated by commas. A host with a port keeps it; the others get `port`.
    """
    login = "" if user is None else quote(user, safe="")
    if password is not None:
        login += f":{quote(password, safe='')}"
    return f"postgresql://{login and f'{login}@'}{authority(hosts, port)}/{quote(database or '', safe='')}"


@contextmanager
def cleave_at(
    dsn: str, extras: Extras, *, statement_seconds: float = STATEMENT_SECONDS
) -> Iterator[Application]:
    """Open an application on the database at `dsn` for the `with` block. Extras named like a setting are
    settings; the others are libpq options. A statement without an answer after `statement_seconds` fails.

    Raises InvalidInput for an invalid setting or option.
    """
    settings = settings_at(dsn, extras)
    with application(settings, name="cleave-airflow", statement_seconds=statement_seconds) as app:
        yield app


def settings_at(dsn: str, extras: Extras) -> Settings:
    """Return the settings of a task: those of the environment, overridden by those of the connection. Raises
    InvalidInput for an invalid setting or option.
    """
    settings_of_connection = {
        str(field.validation_alias or name): extras[name]
        for name, field in Settings.model_fields.items()
        if name in extras
    }
    return load_settings(**{**settings_of_connection, "database_url": url_with_options(dsn, extras)})


def url_with_options(dsn: str, extras: Extras) -> str:
    """Return the URL with the extras that are not settings as libpq options. Raises InvalidInput for unknown
    options.
    """
    options = {name: str(value) for name, value in extras.items() if name not in Settings.model_fields}
    return DatabaseAddress.of(dsn).with_options(options).uri
