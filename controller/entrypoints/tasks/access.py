"""An application from a scheduler's connection: a URL and extras, some of which are settings.

A setting that the connection does not name is taken from the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import make_url

from controller.bootstrap import Application, application
from controller.settings import Settings, load_settings

Extras = Mapping[str, object]


@contextmanager
def cleave_at(dsn: str, extras: Extras) -> Iterator[Application]:
    """An application on the database at `dsn`; extras named like a setting are settings, the rest is libpq's.

    Raises InvalidInput for a setting that is wrong.
    """
    with application(settings_at(dsn, extras), name="cleave-airflow") as app:
        yield app


def settings_at(dsn: str, extras: Extras) -> Settings:
    """The settings of a task: of the environment, with what the connection says on top."""
    named = {
        str(field.validation_alias or name): extras[name]
        for name, field in Settings.model_fields.items()
        if name in extras
    }
    options = {name: str(value) for name, value in extras.items() if name not in Settings.model_fields}
    url = make_url(dsn).update_query_dict(options)
    return load_settings(**{**named, "database_url": url.render_as_string(hide_password=False)})
