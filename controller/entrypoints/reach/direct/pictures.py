"""The fleet and topics at a glance, read in the database over one connection, however often."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from sqlalchemy import Connection

from controller.entrypoints import pictures
from controller.entrypoints.reach.port import Row
from controller.entrypoints.reading import reading_store
from controller.store.postgres.engine import Store
from controller.store.postgres.snapshots import snapshot


class DirectPictures:
    """See `port.Pictures`. Holds its connection until `close`."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._store: Store | None = None

    def fleet(self, find: str, limit: int) -> Row:
        """See `port.Pictures`."""
        return self._taken(lambda tx: pictures.of_fleet(tx, find, limit))

    def topic(self, name: str) -> Row:
        """See `port.Pictures`."""
        return self._taken(lambda tx: pictures.of_topic(tx, name))

    def close(self) -> None:
        """Give back the connection."""
        self._ends.close()

    def _taken(self, picture: Callable[[Connection], Row]) -> Row:
        if self._store is None:
            self._store = self._ends.enter_context(reading_store("cleave-live"))
        with snapshot(self._store) as tx:
            return picture(tx)
