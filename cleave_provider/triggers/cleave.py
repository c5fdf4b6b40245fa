"""Triggers. What blocks (PostgreSQL) is done in threads, so that the triggerer's loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from cleave_provider.hooks.cleave import CleaveHook
from cleave_provider.versions import AirflowFailException
from controller.domain.errors import Retryable, Terminal


class OperationTrigger(BaseTrigger):
    """Fires once, when the operation has ended: `{"operation": ...}`, or `{"failure": "one line"}`.

    :param operation_id: of any operation in the journal.
    :param poll_seconds: between two looks. A database that is away is looked at again.
    """

    def __init__(
        self, operation_id: int | str, cleave_conn_id: str = "cleave", poll_seconds: float = 5.0
    ) -> None:
        super().__init__()
        self.operation_id = operation_id
        self.cleave_conn_id = cleave_conn_id
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See Airflow's."""
        kept = {
            "operation_id": self.operation_id,
            "cleave_conn_id": self.cleave_conn_id,
            "poll_seconds": self.poll_seconds,
        }
        return f"{__name__}.OperationTrigger", kept

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """See the class."""
        try:
            yield TriggerEvent({"operation": await self._ended()})
        except (Terminal, AirflowFailException) as error:
            yield TriggerEvent({"failure": str(error)})

    async def _ended(self) -> dict[str, Any]:
        access = await CleaveHook(self.cleave_conn_id).async_access()
        while True:
            try:
                operation = await asyncio.to_thread(self._look, access)
            except Retryable as error:
                self.log.warning("looking at operation %s again: %s", self.operation_id, error)
                operation = None
            if operation is not None:
                return operation
            await asyncio.sleep(self.poll_seconds)

    def _look(self, access: dict[str, Any]) -> dict[str, Any] | None:
        from controller.entrypoints import tasks

        return tasks.ended_operation(**access, operation_id=self.operation_id)
