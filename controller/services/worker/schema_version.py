"""Compares the schema that this program was written for with the schema of its database.

A worker starts only on its own schema, but a migration may be applied while the worker runs. The worker
continues, because migrations expand before they contract. It logs that it should be replaced.
"""

from __future__ import annotations

from sqlalchemy import Connection

from controller import telemetry
from controller.store.postgres import migrations

log = telemetry.get_logger(__name__)


class SchemaVersion:
    """The newest migration that this program knows. Not thread-safe."""

    def __init__(self, known: str) -> None:
        self.known = known
        self._last_applied = known

    def compare(self, tx: Connection) -> None:
        """Read the newest migration that the database has applied. If this migration is newer than `known`, the
        newest one that the program knows, log a warning that the worker should be replaced, once for each migration.
        Never raises because of a difference. Does nothing if the database records no version, or the version of the
        last call.
        """
        applied = migrations.newest_applied(tx)
        if applied is None or applied == self._last_applied:
            return
        self._last_applied = applied
        if applied > self.known:
            log.warning(
                "worker older than the schema; replace it by the newer program",
                known=self.known,
                applied=applied,
            )
