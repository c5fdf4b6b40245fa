"""CleaveHook: the address of Cleave, from a connection of type `cleave` (or `postgres`) to its database.

There is no connection to `cleave serve`: it would be a second way to each action, and the database stores the
intent of an action, its key and its result.
"""

from __future__ import annotations

from typing import Any

from cleave_provider.hooks.connections import HookWithForm
from cleave_provider.hooks.pulsar_admin import PulsarAdminHook
from cleave_provider.hooks.setting_precedence import extras_of_connections


class CleaveHook(HookWithForm):
    """Calls functions of `controller.tasks` at one Cleave. Looks no connection up before the first call."""

    conn_name_attr = "cleave_conn_id"
    default_conn_name = "cleave"
    conn_type = "cleave"
    hook_name = "Cleave"

    def __init__(self, cleave_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cleave_conn_id = cleave_conn_id

    def access(self) -> dict[str, Any]:
        """Return `dsn` and `extras` of the connection, the arguments of every function of `controller.tasks`.

        If the connection names a connection to Pulsar, its settings are added to the extras (`setting_precedence`).
        Raises AirflowFailException with one line if a connection does not exist, InvalidInput if the connection to
        Pulsar cannot be used, and StoreUnavailable if Airflow cannot look a connection up.
        """
        from controller import tasks

        connection = self.find_connection(
            self.cleave_conn_id, "a Cleave or Postgres connection to Cleave's own database"
        )
        return {
            "dsn": tasks.database_url(
                connection.host or "",
                connection.port,
                connection.login,
                connection.password,
                connection.schema,
            ),
            "extras": extras_of_connections(
                connection.extra_dejson, lambda conn_id: PulsarAdminHook(conn_id).settings()
            ),
        }

    def url(self) -> str:
        """Return the libpq URL of the database, options and password included. Raises the errors of `access`,
        and InvalidInput for an unknown option.
        """
        from controller import tasks

        return tasks.url_with_options(**self.access())

    async def async_access(self) -> dict[str, Any]:
        """Return the result of `access`, for triggers: the lookup of a connection must not block their event
        loop. Raises the errors of `access`.
        """
        from asgiref.sync import sync_to_async

        access: dict[str, Any] = await sync_to_async(self.access)()
        return access

    @classmethod
    def spark_settings(cls, conn_id: str) -> dict[str, Any]:
        """Return the settings of a connection of type `spark`, `spark_connect` or `generic`, to be added to `extras`.
        Raises InvalidInput for another connection, AirflowFailException if the connection does not exist, and
        StoreUnavailable if Airflow cannot look the connection up.
        """
        from controller import tasks

        connection = cls.find_connection(conn_id, "a Spark connection")
        address = (
            connection.conn_type or "",
            connection.host,
            connection.port,
            connection.login,
            connection.password,
        )
        return tasks.spark_settings(connection.conn_id, *address, connection.extra_dejson)

    def check(self) -> str:
        """Return a description of the database. Raises CleaveError unless the database answers, has this
        version's schema, and lets the login do the controller's work. Raises AirflowFailException if the
        connection does not exist.
        """
        from controller import tasks

        return tasks.check_database(**self.access())
