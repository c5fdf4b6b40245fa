"""Results and positions in one transaction: an application that keeps its results in PostgreSQL counts each message once.

A table in the application's own database holds, for each bucket, how far its messages are in the results, and under which ownership.
Whoever takes a bucket raises its row to the new ownership before it reads (`claim`); what the row says is done is not handed out
again. A batch is stored by the same transaction as its results (`store`), if the row still has the ownership the batch came from.
So a process that was stopped, lost the bucket and goes on cannot commit, and what was committed but not acknowledged is not done
twice. Acknowledging afterwards only lets the log forget; nothing here acknowledges.

A position stands for one message for good. Where a log gives an offset out again, after a fail-over or a restore, the position begins with
the timeline of the message (`controller.dataplane.embedded.timelines`), and what was written later is greater.

Works with a connection of psycopg 2 or 3, or of SQLAlchemy on either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from controller.client.arguments import checks_arguments
from controller.dataplane.base import Position
from controller.domain.errors import (
    AlreadyStored,
    CleaveError,
    Conflict,
    FencedOut,
    InvalidInput,
    StoreUnavailable,
    Terminal,
)
from controller.postgres.sqlstates import Condition, condition

LOCK_TIMEOUT_MS = 2_000
"""Taking a bucket waits no longer for a transaction of its last owner; it is tried again."""
_OWNED = """topic_id = %s AND subscription = %s AND segment_id = %s AND bucket_start = %s
               AND origin = %s AND generation = %s"""
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?")


@dataclass(frozen=True, slots=True)
class Claim:
    """An ownership of a bucket. `origin` says since when positions of this subscription mean anything: a new subscription of that
    name, or a seek, has another one.
    """

    topic_id: int
    subscription: str
    origin: int
    segment_id: int
    bucket_start: int
    generation: int
    bucket_end: int | None = None
    """Its last hash, in a segment that has too many buckets to own each: what is owned there may be a run of them."""

    @property
    def place(self) -> tuple[int, str, int, int]:
        """The row it is about, by the first hash, or by first and last, which make a number below zero: another one for each pair. So
        whoever owns a run finds nothing that was stored of its first bucket alone, which may be far ahead of the others.
        """
        row, last = self.bucket_start, self.bucket_end
        if last is not None and last > row:
            row = -(last * (last - 1) // 2 + row + 1)
        return self.topic_id, self.subscription, self.segment_id, row


@checks_arguments
class PositionTable:
    """A table in the application's PostgreSQL that holds the position of each bucket beside the results.

    Safe to share between consumers and threads.
    """

    def __init__(self, connect: Callable[[], Any], *, name: str = "cleave_position") -> None:
        """`connect` returns a new connection of psycopg 2 or 3. `name` is the name of the table, with or without a schema.

        Raises InvalidInput for a name that is not of lower-case letters, digits and `_`.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is no plain table name; use lower-case letters, digits and _")
        self.connect, self.name = connect, name

    @property
    def ddl(self) -> str:
        """The statement that creates the table unless it exists, for a migration of the application."""
        return f"""
            CREATE TABLE IF NOT EXISTS {self.name} (
                topic_id bigint NOT NULL, subscription text NOT NULL, segment_id bigint NOT NULL, bucket_start integer NOT NULL,
                origin bigint NOT NULL, generation bigint NOT NULL, position bigint[],
                stored_at timestamptz,
                PRIMARY KEY (topic_id, subscription, segment_id, bucket_start)
            )"""

    def create(self) -> None:
        """Create the table unless it exists."""
        with closing(self.connect()) as connection:
            _execute(connection, self.ddl, ())
            connection.commit()

    def claim(self, claim: Claim) -> Position | None:
        """Take the bucket's row for this ownership; what its results hold already, None for nothing.

        Raises FencedOut where a newer ownership has the row; Terminal where there is no such table, or the login may not use it;
        StoreUnavailable while the database is away, or the last owner's transaction goes on.
        """
        try:
            with closing(self.connect()) as connection:
                _execute(connection, f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}", ())
                row = _execute(connection, self._claim_sql, (*claim.place, claim.origin, claim.generation))
                connection.commit()
        except Exception as error:
            raise self._error_of(error) from error
        if row is None:
            raise FencedOut(
                f"bucket {claim.bucket_start} of segment {claim.segment_id} belongs to a newer owner than generation "
                f"{claim.generation} in {self.name}; leave it"
            )
        return None if row[0] is None else tuple(row[0])

    def store(
        self, connection: Any, claim: Claim, position: Position, *, after: Position | None = None
    ) -> None:
        """Note, in the transaction of `connection`, that everything up to `position` is in the results.

        `after` is the position that the results have to hold before: of what was handed out just before. Raises FencedOut where the
        bucket has another owner by now, AlreadyStored where the results hold it already, Conflict where they do not hold what
        comes before it: this position would say that they do. The transaction is to be rolled back then.
        """
        owned = (*claim.place, claim.origin, claim.generation)
        reached, before = list(position), None if after is None else list(after)
        if _execute(connection, self._store_sql, (reached, *owned, reached, before, before)) is not None:
            return
        row = _execute(connection, self._owned_sql, owned)
        if row is None:
            raise FencedOut(
                f"bucket {claim.bucket_start} of segment {claim.segment_id} is no longer owned as of generation "
                f"{claim.generation}; roll back, its new owner does these messages"
            )
        if row[0] is None or tuple(row[0]) < position:
            raise Conflict(
                f"messages up to position {before} of segment {claim.segment_id}, which were handed out before these, are not "
                "in the results; roll back, and commit those first or give them back"
            )
        raise AlreadyStored(
            f"the results hold position {reached} of segment {claim.segment_id} already; roll back and acknowledge"
        )

    def _error_of(self, error: Exception) -> CleaveError:
        """What an error of the driver means for the application."""
        driver_error = getattr(error, "orig", error)  # SQLAlchemy wraps it
        state = getattr(driver_error, "sqlstate", None) or getattr(driver_error, "pgcode", None)
        reason = f"{type(driver_error).__name__}: {driver_error}"
        match condition(state):
            case Condition.NOT_INSTALLED:
                return Terminal(
                    f"the database has no table {self.name} for positions ({reason}); call `create()` of the PositionTable once, "
                    "or run its `ddl` in a migration"
                )
            case Condition.FORBIDDEN:
                return Terminal(
                    f"the login may not use table {self.name} ({reason}); grant it SELECT, INSERT and UPDATE on the table"
                )
        return StoreUnavailable(f"the positions in {self.name} are out of reach: {reason}")

    @property
    def _claim_sql(self) -> str:
        return f"""
            INSERT INTO {self.name} AS held (topic_id, subscription, segment_id, bucket_start, origin, generation)
            VALUES (%s, %s, %s, %s, %s, %s)
            ON CONFLICT (topic_id, subscription, segment_id, bucket_start) DO UPDATE
               SET origin = excluded.origin, generation = excluded.generation,
                   position = CASE WHEN held.origin = excluded.origin THEN held.position END
             WHERE (held.origin, held.generation) <= (excluded.origin, excluded.generation)
            RETURNING position"""  # noqa: S608 - the name was checked

    @property
    def _store_sql(self) -> str:
        return f"""
            UPDATE {self.name} SET position = %s::bigint[], stored_at = clock_timestamp()
             WHERE {_OWNED} AND (position IS NULL OR position < %s::bigint[])
               AND (%s::bigint[] IS NULL OR position >= %s::bigint[])
            RETURNING true"""  # noqa: S608 - the name was checked

    @property
    def _owned_sql(self) -> str:
        return f"SELECT position FROM {self.name} WHERE {_OWNED}"  # noqa: S608 - the name was checked


def _execute(connection: Any, statement: str, parameters: Sequence[object]) -> Any:
    """The first row, if there is one."""
    if hasattr(connection, "exec_driver_sql"):
        result = connection.exec_driver_sql(statement, tuple(parameters) or None)
        return result.first() if result.returns_rows else None
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement, tuple(parameters) or None)
        return cursor.fetchone() if cursor.description is not None else None
