"""Reads the clock of the database, which all processes of an installation share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from controller.clock import Clock, to_ms


def database_now(tx: Connection) -> datetime:
    """Return the present time, not the start of the transaction. This clock decides about every expiry and cooldown."""
    now: datetime = tx.execute(text("SELECT clock_timestamp()")).scalar_one()
    return now


@dataclass(frozen=True, slots=True)
class Ahead:
    """Milliseconds by which a clock is ahead of the database's clock, negative if it is behind, with an error of at
    most `unsure_ms`.
    """

    ms: int
    unsure_ms: int


def ahead_of_database(tx: Connection, clock: Clock) -> Ahead:
    """Return by how much `clock` is ahead of the database's clock. The function reads the database's clock in one
    statement, and assumes that the clock was read in the middle of the statement. `unsure_ms` of the result is half
    of the duration of the statement, rounded up.
    """
    began_ms = clock.now_ms()
    database_ms = to_ms(database_now(tx))
    ended_ms = clock.now_ms()
    return Ahead((began_ms + ended_ms) // 2 - database_ms, (ended_ms - began_ms + 1) // 2)
