"""PulsarAdminHook: where the admin API of a Pulsar cluster is, and calls of it for people's own tasks.

A connection of type `cleave` names such a one in its extra `pulsar_admin_conn_id`; what it says goes before the environment.
"""

from __future__ import annotations

from typing import Any

from cleave_provider.hooks.forms import HookWithForm, filled_in


class PulsarAdminHook(HookWithForm):
    """Nothing is looked up before the first call."""

    conn_name_attr = "pulsar_admin_conn_id"
    default_conn_name = "pulsar_admin"
    conn_type = "pulsar_admin"
    hook_name = "Pulsar (admin)"

    def __init__(self, pulsar_admin_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pulsar_admin_conn_id = pulsar_admin_conn_id

    def settings(self) -> dict[str, Any]:
        """What the connection says, by names of Cleave's settings. Raises InvalidInput, AirflowFailException."""
        from controller.tasks import PulsarConnection

        found = self.found(self.pulsar_admin_conn_id, "a connection of type pulsar_admin")
        extras = filled_in(found.extra_dejson)
        address = (found.conn_id, found.schema, found.host, found.port, found.password)
        return PulsarConnection(*address, extras).settings()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """A call below `/admin/v2/`, `ask("GET", "persistent/acme/shop")`; the answer's JSON, None where it is empty.

        Raises Retryable where no broker answers, Terminal for what it refuses.
        """
        from controller import tasks

        return tasks.ask_pulsar(extras=self.settings(), method=method, path=path, body=body)

    def check(self) -> str:
        """Whether a broker answers there."""
        from controller import tasks

        return tasks.check_pulsar(extras=self.settings())
