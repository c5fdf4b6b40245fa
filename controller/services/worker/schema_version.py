"""Compares the schema that this program was written for with the schema of the database it works on.

A worker starts only on its own schema, but a migration may be applied while the worker runs. The worker goes on, because
migrations expand before they contract; its log says that it is to be replaced.
"""

from __future__ import annotations

from sqlalchemy import Connection

from controller import telemetry
from controller.store.postgres import migrations

log = telemetry.get_logger(__name__)


class SchemaVersion:
    """The newest migration that this program knows. For one thread."""

    def __init__(self, known: str) -> None:
        self.known = known
        self._seen = known

    def compare(self, tx: Connection) -> None:
        """Warn once for each change of the database's schema to one that this program does not know."""
        applied = migrations.newest_applied(tx)
        if applied is None or applied == self._seen:
            return
        self._seen = applied
        if applied > self.known:
            log.warning(
                "worker older than the schema; replace it by the newer program",
                known=self.known,
                applied=applied,
            )
