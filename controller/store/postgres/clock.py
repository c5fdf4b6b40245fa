"""The present instant by the database's clock, which every process of an installation shares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from controller.clock import Clock, to_ms


def database_now(tx: Connection) -> datetime:
    """Now, not the transaction's beginning. This clock judges every term, expiry and cooldown."""
    now: datetime = tx.execute(text("SELECT clock_timestamp()")).scalar_one()
    return now


@dataclass(frozen=True, slots=True)
class Ahead:
    """A clock less the database's clock, by up to `unsure_ms` more or less."""

    ms: int
    unsure_ms: int


def ahead_of_database(tx: Connection, clock: Clock) -> Ahead:
    """Compare the clock with the database's."""
    began = clock.now_ms()
    database = to_ms(database_now(tx))
    ended = clock.now_ms()
    return Ahead((began + ended) // 2 - database, (ended - began + 1) // 2)
