"""PulsarAdminHook: the address of a Pulsar cluster's admin API, and calls of it for users' own tasks.

A connection of type `cleave` names such a connection in its extra `pulsar_admin_conn_id`; `setting_precedence` tells
which of both, and the environment, gives a setting.
"""

from __future__ import annotations

from typing import Any

from cleave_provider.hooks.connections import HookWithForm
from cleave_provider.hooks.setting_precedence import filled_in


class PulsarAdminHook(HookWithForm):
    """Calls the admin API of one Pulsar cluster. Looks no connection up before the first call."""

    conn_name_attr = "pulsar_admin_conn_id"
    default_conn_name = "pulsar_admin"
    conn_type = "pulsar_admin"
    hook_name = "Pulsar (admin)"

    def __init__(self, pulsar_admin_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pulsar_admin_conn_id = pulsar_admin_conn_id

    def settings(self) -> dict[str, Any]:
        """Return the values of the connection by the names of Cleave's settings. Raises InvalidInput for a
        connection that cannot be used, AirflowFailException if the connection does not exist, and StoreUnavailable
        if Airflow cannot look the connection up.
        """
        from controller import tasks

        connection = self.find_connection(self.pulsar_admin_conn_id, "a connection of type pulsar_admin")
        extras = filled_in(connection.extra_dejson)
        address = (
            connection.conn_id,
            connection.schema,
            connection.host,
            connection.port,
            connection.password,
        )
        return tasks.pulsar_settings(*address, extras)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API below `/admin/v2/`, for example `ask("GET", "persistent/acme/shop")`. Return the
        answer's JSON, or None if the answer is empty.

        Raises Retryable if no broker answers, Terminal if the broker refuses the call, and the errors of
        `settings`.
        """
        from controller import tasks

        return tasks.ask_pulsar(extras=self.settings(), method=method, path=path, body=body)

    def check(self) -> str:
        """Return the broker's version and address. Raises CleaveError if no broker answers, and the errors of
        `settings`.
        """
        from controller import tasks

        return tasks.check_pulsar(extras=self.settings())
