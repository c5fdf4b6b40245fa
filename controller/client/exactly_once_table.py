"""Stores results and positions in one transaction, so that an application with results in PostgreSQL counts
each message once.

A table in the application's database holds for each bucket the position up to which its messages are in the
results, and the ownership. Before a consumer reads a bucket it raises the bucket's row to its own ownership
(`claim`); messages that the row records as stored are not delivered again. The transaction of a batch's
results also stores the position (`store`), if the row still has the ownership of the batch. A process that
was stopped and has lost the bucket can therefore not commit, and messages that were committed but not
acknowledged are not counted twice. The acknowledgement afterwards only lets the log discard messages; this
module does not acknowledge.

A position refers to one message permanently. If a log reuses an offset, after a failover or a restore, the
position begins with the timeline of the message (`controller.dataplane.embedded.timelines`), so a later
message has a greater position.

Works with a connection of psycopg 2 or 3, or of SQLAlchemy on either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from controller.client.arguments import checks_arguments
from controller.dataplane.log_client import Position
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
"""Longest wait for a transaction of the last owner when a bucket is claimed. The claim is retried."""
_OWNED = """topic_id = %s AND subscription = %s AND segment_id = %s AND bucket_start = %s
               AND origin = %s AND generation = %s"""
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?")


@dataclass(frozen=True, slots=True)
class Claim:
    """An ownership of a bucket.

    `origin` identifies the period in which positions of this subscription are comparable: a new subscription
    of the same name, or a seek, has a different origin.
    """

    topic_id: int
    subscription: str
    origin: int
    segment_id: int
    bucket_start: int
    generation: int
    bucket_end: int | None = None
    """Last hash of the owned range, if a consumer owns a run of buckets because the segment has many."""

    @property
    def place(self) -> tuple[int, str, int, int]:
        """The key of the bucket's row: topic, subscription, segment, and a number for the owned range. The
        number is the first hash of a single bucket. For a run of buckets it is a negative number that is
        unique to the first and last hash.

        An owner of a run of buckets therefore does not read the position of the run's first bucket alone,
        which may be far ahead of the others.
        """
        row_number, last = self.bucket_start, self.bucket_end
        if last is not None and last > row_number:
            row_number = -(last * (last - 1) // 2 + row_number + 1)
        return self.topic_id, self.subscription, self.segment_id, row_number


@checks_arguments
class PositionTable:
    """A table in the application's PostgreSQL with the position of each bucket, next to the results.

    Safe to share between consumers and threads.
    """

    def __init__(self, connect: Callable[[], Any], *, name: str = "cleave_position") -> None:
        """Use the table `name`, with or without a schema. `connect` returns a new connection of psycopg 2 or
        3.

        Raises InvalidInput for a name that contains other characters than lower-case letters, digits and `_`.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is not a plain table name; use lower-case letters, digits and _")
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
        """Create the table unless it exists, on a connection of its own. Raises the errors of the database
        driver.
        """
        with closing(self.connect()) as connection:
            _execute(connection, self.ddl, ())
            connection.commit()

    def claim(self, claim: Claim) -> Position | None:
        """Make `claim` the ownership in the bucket's row, in a transaction of its own, and return the position that
        the results have reached; None if no results of this origin are stored. The row is created if it does not
        exist. From then on `store` refuses earlier ownerships. A position of an earlier origin is deleted.
        A position of a later origin is kept: a restore of Cleave's database has lost the seek to that origin.

        Raises FencedOut, and changes nothing, if the row has a newer ownership. Raises Terminal if the table does not
        exist or the login may not use it. Raises InvalidInput for a connection in autocommit mode. Raises
        StoreUnavailable if a transaction of the last owner holds the row for longer than `LOCK_TIMEOUT_MS`, and for
        any other error, such as an unreachable database; the call may be repeated.
        """
        try:
            with closing(self.connect()) as connection:
                _demand_transactions(connection)
                _execute(connection, f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}", ())
                row = _execute(connection, self._claim_sql, (*claim.place, claim.origin, claim.generation))
                connection.commit()
        except InvalidInput:
            raise
        except Exception as error:
            raise self._error_of(error) from error
        if row is None:
            raise FencedOut(
                f"bucket {claim.bucket_start} of segment {claim.segment_id} belongs to a newer owner than generation "
                f"{claim.generation} in {self.name}; stop reading it; if a restore of Cleave's database lost a seek, "
                "request the seek again"
            )
        return None if row[0] is None else tuple(row[0])

    def store(
        self,
        connection: Any,
        claim: Claim,
        position: Position,
        *,
        first: Position | None = None,
        after: Position | None = None,
    ) -> None:
        """Record, in the transaction of `connection`, that the results contain all messages of the bucket up to
        `position`. `connection` is of psycopg 2 or 3, or of SQLAlchemy on either. The caller commits the transaction.
        `first` is the position of the first of the messages; None for a single message. `after` is the position that
        the results must have reached before: the last message that was delivered before these messages; None demands
        no position.

        Raises FencedOut if the bucket has another owner. Raises AlreadyStored if the results have reached `position`
        already. Raises Conflict if the results have reached `first`, because some messages would be stored twice, or
        have not reached `after`, because messages between would count as stored without a result. Raises InvalidInput
        for a connection in autocommit mode. Raises the errors of the database driver. After an error, roll back the
        transaction.
        """
        _demand_transactions(connection)
        owned = (*claim.place, claim.origin, claim.generation)
        begin, before = list(first or position), None if after is None else list(after)
        parameters = (list(position), *owned, begin, before, before)
        if _execute(connection, self._store_sql, parameters) is not None:
            return
        row = _execute(connection, self._owned_sql, owned)
        if row is None:
            raise FencedOut(
                f"bucket {claim.bucket_start} of segment {claim.segment_id} is no longer owned as of generation "
                f"{claim.generation}; roll back, because the new owner processes these messages"
            )
        reached = None if row[0] is None else tuple(row[0])
        if reached is not None and reached >= position:
            raise AlreadyStored(
                f"the results hold position {list(position)} of segment {claim.segment_id} already; roll back and "
                "acknowledge"
            )
        if after is not None and (reached is None or reached < after):
            raise Conflict(
                f"messages up to position {before} of segment {claim.segment_id}, which were delivered before these, are not "
                "in the results; roll back, and commit those messages first or return them"
            )
        raise Conflict(
            f"the results hold position {row[0]} of segment {claim.segment_id}, so they contain some of these messages "
            "already; roll back, and store only the messages after it"
        )

    def _error_of(self, error: Exception) -> CleaveError:
        """Return the error that the application gets for an error of the database driver, also if SQLAlchemy
        wraps it: Terminal if the table is missing or the login may not use it, otherwise StoreUnavailable.
        """
        driver_error = getattr(error, "orig", error)  # SQLAlchemy wraps the driver's error
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
        """Statement that creates the row, or raises its ownership. Returns no row if a newer ownership has
        the row.

        After a restore that lost a seek, an ownership has a lower origin (a time in microseconds) than the row. It is
        newer if its generation was raised after the seek: a verified topic has generations above the time in
        milliseconds.
        """
        return f"""
            INSERT INTO {self.name} AS held (topic_id, subscription, segment_id, bucket_start, origin, generation)
            VALUES (%s, %s, %s, %s, %s, %s)
            ON CONFLICT (topic_id, subscription, segment_id, bucket_start) DO UPDATE
               SET origin = excluded.origin, generation = excluded.generation,
                   position = CASE WHEN held.origin >= excluded.origin THEN held.position END
             WHERE (held.origin, held.generation) <= (excluded.origin, excluded.generation)
                OR (held.generation < excluded.generation AND held.origin / 1000 < excluded.generation)
            RETURNING position"""  # noqa: S608 - the name was checked

    @property
    def _store_sql(self) -> str:
        """Statement that advances the position. Returns no row if the row has another ownership, has reached
        the first message, or has not reached the position that must come before.
        """
        return f"""
            UPDATE {self.name} SET position = %s::bigint[], stored_at = clock_timestamp()
             WHERE {_OWNED} AND (position IS NULL OR position < %s::bigint[])
               AND (%s::bigint[] IS NULL OR position >= %s::bigint[])
            RETURNING true"""  # noqa: S608 - the name was checked

    @property
    def _owned_sql(self) -> str:
        """Statement that returns the position of a row with this ownership; no row if the ownership has
        ended.
        """
        return f"SELECT position FROM {self.name} WHERE {_OWNED}"  # noqa: S608 - the name was checked


def _demand_transactions(connection: Any) -> None:
    """Raise InvalidInput for a connection of psycopg 2 or 3, or of SQLAlchemy, in autocommit mode, in which each
    statement is a transaction of its own.
    """
    of_driver = getattr(connection, "connection", connection)  # SQLAlchemy wraps the driver's connection
    if getattr(of_driver, "autocommit", False):
        raise InvalidInput(
            "the connection is in autocommit mode, so results and position would not be stored together; "
            "connect without autocommit"
        )


def _execute(connection: Any, statement: str, parameters: Sequence[object]) -> Any:
    """Execute the statement, and return its first row; None if there is none, or the statement returns no
    rows. `connection` is of psycopg 2 or 3, or of SQLAlchemy. Raises the errors of the database driver.
    """
    if hasattr(connection, "exec_driver_sql"):
        result = connection.exec_driver_sql(statement, tuple(parameters) or None)
        return result.first() if result.returns_rows else None
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement, tuple(parameters) or None)
        return cursor.fetchone() if cursor.description is not None else None
