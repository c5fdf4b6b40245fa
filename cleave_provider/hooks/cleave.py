"""CleaveHook: where Cleave is, from a connection of type `cleave` (or `postgres`) to its database.

There is no connection to `cleave serve`: it would be a second way to each act, and the database is where the intent of an
act, its key and its result are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cleave_provider.hooks.forms import HookWithForm, filled_in
from cleave_provider.hooks.pulsar_admin import PulsarAdminHook

if TYPE_CHECKING:
    from airflow.sdk import Connection

PULSAR_EXTRA = "pulsar_admin_conn_id"
"""Extra of the connection that names the one of the Pulsar cluster."""


class CleaveHook(HookWithForm):
    """Calls functions of `controller.tasks` at one Cleave. Nothing is looked up before the first call."""

    conn_name_attr = "cleave_conn_id"
    default_conn_name = "cleave"
    conn_type = "cleave"
    hook_name = "Cleave"

    def __init__(self, cleave_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cleave_conn_id = cleave_conn_id

    def access(self) -> dict[str, Any]:
        """`dsn` and `extras` of the connection, as every function of `controller.tasks` takes them.

        Raises AirflowFailException, one line, when there is no such connection.
        """
        found = self.found(self.cleave_conn_id, "a Cleave or Postgres connection to Cleave's own database")
        access = _access(found)
        named = access["extras"].pop(PULSAR_EXTRA, None)
        if named is not None:
            access["extras"] = {**PulsarAdminHook(str(named)).settings(), **access["extras"]}
        return access

    def url(self) -> str:
        """URL of the database as libpq reads it, options and password included. Raises as `access` does."""
        from controller import tasks

        return tasks.url_with_options(**self.access())

    async def async_access(self) -> dict[str, Any]:
        """`access` for triggers. Their loop must not wait for a connection that is looked up."""
        from asgiref.sync import sync_to_async

        found: dict[str, Any] = await sync_to_async(self.access)()
        return found

    @classmethod
    def spark_settings(cls, conn_id: str) -> dict[str, Any]:
        """What a connection of type `spark` or `spark_connect` says of where Spark runs. Raises InvalidInput."""
        from controller.tasks import SparkConnection

        found = cls.found(conn_id, "a Spark connection")
        address = (found.conn_type or "", found.host, found.port, found.login, found.password)
        return SparkConnection(found.conn_id, *address, found.extra_dejson).settings()

    def check(self) -> str:
        """Whether the database answers, has this version's schema, and lets the login do the controller's work."""
        from controller import tasks

        return tasks.check_database(**self.access())


def _access(found: Connection) -> dict[str, Any]:
    from controller import tasks

    dsn = tasks.database_url(found.host or "", found.port, found.login, found.password, found.schema)
    return {"dsn": dsn, "extras": filled_in(found.extra_dejson)}
