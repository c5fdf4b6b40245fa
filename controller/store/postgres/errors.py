"""Translates errors of the driver into errors of Cleave, by SQLSTATE (`postgres/sqlstates`) and by name of the constraint.

The message for a broken constraint is the COMMENT on the constraint, or the message that its trigger raised. So a rule and its
message are together in sql/schema, and a rule that is added there needs no change here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError, DBAPIError, NotSupportedError, ProgrammingError

from controller.domain.errors import (
    CleaveError,
    Conflict,
    InvalidInput,
    InvariantViolated,
    LostRace,
    NotFound,
    SegmentBusy,
    StoreRefused,
    StoreUnavailable,
    SubscriptionNotFound,
    Terminal,
    TopicExists,
)
from controller.postgres.connection import NoAnswer
from controller.postgres.pooler import SHARES_SESSIONS, PoolerUnfit
from controller.postgres.sqlstates import Condition, condition

_UNIQUE_VIOLATION = "23505"
_FOREIGN_KEY_VIOLATION = "23503"
_EXCLUSION_VIOLATION = "23P01"
_REFUSED = re.compile(
    r"((?:\w+ authentication failed for user|no pg_hba\.conf entry for|pg_hba\.conf rejects connection for"
    r"|permission denied for database) .*"
    r"|role \".*\" is not permitted to log in|(?:database|role) \".*\" does not exist|no password supplied"
    r"|no such (?:user|database)\b|unsupported startup parameter)"
)
"""English messages of servers that refuse a connection. psycopg2 reports no SQLSTATE for a failed connection. A message in another
language counts as an unreachable server.
"""

_DRIVERS_OWN = (DataError, NotSupportedError, ProgrammingError)
"""Errors that the driver itself raises if they have no SQLSTATE: a value that it cannot bind, or an unknown option of the URL."""

_BY_NAME: Mapping[str, type[CleaveError]] = {
    "topic_name_in_use": TopicExists,
    "operation_parent_one_live": SegmentBusy,
    "consumer_of_subscription": SubscriptionNotFound,
    "consumer_of_cleave": Conflict,
    "subscription_stock_in_order": Conflict,
    "segment_drain_subscription": SubscriptionNotFound,
    "topic_ids_continue": LostRace,  # another topic used the name between the check of the name and the insert
}
"""Errors of constraints by name. All other constraints get the error of their SQLSTATE."""

_INVARIANTS = frozenset(
    {
        "layout_tiles_ring",
        "layout_epoch_of_topic",
        "layout_change_epoch_by_one",
        "segment_active_ranges_disjoint",
        "segment_sealed_for_good",
        "segment_fixed_for_life",
        "segment_id_reserved",
        "segment_has_gates",
        "operation_child_id_once",
        "operation_child_log_once",
        "topic_counters_only_rise",
        "topic_row_version_by_one",
        "namespace_bundles_row_version_by_one",
        "bundle_proposal_fixed_for_life",
        "topic_deleted_is_history",
    }
)
"""Constraints that no input can break, but only a defect of the program."""

_COMMENTS = text("""
    SELECT c.conname AS name, coalesce(
           obj_description(c.oid, 'pg_constraint'),
           format('This %s needs its %s to exist.', replace(r.relname, '_', ' '), replace(f.relname, '_', ' '))) AS sentence
      FROM pg_constraint c
      JOIN pg_namespace n ON n.oid = c.connamespace
      JOIN pg_class r ON r.oid = c.conrelid
      LEFT JOIN pg_class f ON f.oid = c.confrelid
     WHERE n.nspname IN ('cleave', 'staging') AND (c.contype = 'f' OR obj_description(c.oid, 'pg_constraint') IS NOT NULL)
    UNION ALL
    SELECT i.relname, obj_description(i.oid, 'pg_class')
      FROM pg_class i JOIN pg_namespace n ON n.oid = i.relnamespace
     WHERE i.relkind = 'i' AND n.nspname IN ('cleave', 'staging') AND obj_description(i.oid, 'pg_class') IS NOT NULL
""")


def load_comments(tx: Connection) -> dict[str, str]:
    """Return the comments of the constraints and indexes of schemas `cleave` and `staging`, by name. The text for a foreign key without a
    comment names its two tables.
    """
    return {row.name: row.sentence for row in tx.execute(_COMMENTS)}


def translate(
    error: DBAPIError, comments: Callable[[], Mapping[str, str]], *, may_be_committed: bool = False
) -> CleaveError:
    """Return the error of Cleave for an error of the driver; Terminal if no rule of this module applies. `comments`
    returns the comments of constraints by name, and is called only for a broken constraint. `may_be_committed` is True
    for an error of a statement that commits.
    """
    diagnostics = getattr(error.orig, "diag", None)
    state: str | None = getattr(diagnostics, "sqlstate", None)
    message = getattr(diagnostics, "message_primary", None) or str(error.orig)
    if isinstance(error.orig, PoolerUnfit):
        return InvalidInput(message)
    refused = _refusal(state, message)
    if refused is not None:
        return StoreRefused(
            f"PostgreSQL refuses the connection: {refused}; correct the database URL or the login's rights"
        )
    if state is None and isinstance(error, _DRIVERS_OWN) and not error.connection_invalidated:
        return Terminal(
            f"the database driver refuses a value or option ({message}); correct the value or option"
        )
    cause = condition(state)
    if state is None or (error.connection_invalidated and cause not in _SPOILT):
        return _unavailable(error, message, may_be_committed)
    if cause is Condition.CONSTRAINT:
        return _broken_constraint(str(state), diagnostics, message, comments())
    if cause is None:
        return Terminal(f"PostgreSQL refused the statement (SQLSTATE {state}): {message}")
    return _ERRORS[cause](message)


_SPOILT = (Condition.READ_ONLY, Condition.SESSION_LOST)
"""Conditions that make a working connection unusable."""


def _unavailable(error: DBAPIError, message: str, may_be_committed: bool) -> StoreUnavailable:
    """Return the error for a server that is unreachable. If the driver raised NoAnswer, because the server did not
    answer a statement in time, or if `may_be_committed`, the message says that the transaction may or may not have been
    committed.
    """
    is_late = isinstance(error.orig, NoAnswer)
    failure = message if is_late else f"PostgreSQL is unreachable: {message}"
    if is_late or may_be_committed:
        return StoreUnavailable(
            f"{failure}; the connection was closed and the transaction may or may not have been committed, so read the "
            "state again and retry"
        )
    return StoreUnavailable(f"{failure}; retry")


def _lost_race(message: str) -> LostRace:
    return LostRace(
        f"another transaction was in the way ({message}); read again and repeat", 0.1, what="lock"
    )


_ERRORS: Mapping[Condition, Callable[[str], CleaveError]] = {
    Condition.AWAY: lambda message: StoreUnavailable(f"PostgreSQL is unreachable: {message}; retry"),
    Condition.READ_ONLY: lambda message: StoreUnavailable(
        f"the PostgreSQL server is a standby or read-only ({message}); add target_session_attrs=read-write to the "
        "database URL, or retry after the fail-over"
    ),
    Condition.REFUSED: lambda message: StoreRefused(f"PostgreSQL refuses the connection: {message}"),
    Condition.SESSION_LOST: lambda message: StoreRefused(f"{message}: {SHARES_SESSIONS}"),
    Condition.DISK_FULL: lambda message: StoreUnavailable(
        f"the disk of PostgreSQL is full: {message}; free space on it"
    ),
    Condition.RESOURCES: lambda message: StoreUnavailable(
        f"PostgreSQL lacks resources: {message}; free them on its server"
    ),
    Condition.TOO_LATE: lambda message: StoreUnavailable(
        f"PostgreSQL did not answer within the time limit ({message}); request less, or retry when the server is less busy"
    ),
    Condition.LOCKED: _lost_race,
    Condition.RACED: _lost_race,
    Condition.NOT_INSTALLED: lambda message: Terminal(
        f"the database lacks an object that this program needs ({message}); run `cleave migrate`"
    ),
    Condition.FORBIDDEN: lambda message: Terminal(
        f"the database user may not do this ({message}); connect as a user in the right role"
    ),
    Condition.VALUE: lambda message: InvalidInput(f"PostgreSQL refused a value: {message}"),
}
"""Functions that return the error for each condition, except for broken constraints, which have their own messages."""


def _refusal(state: str | None, message: str) -> str | None:
    """Return the message of a server that refuses the connection of this login. None for any other error. `state` is
    the SQLSTATE; None if the driver reported no SQLSTATE. With a SQLSTATE, the SQLSTATE decides and the whole message
    is returned. Without a SQLSTATE, the text of the message decides, and only the part that names the refusal is
    returned.
    """
    if state is not None:
        return message if condition(state) is Condition.REFUSED else None
    refused = _REFUSED.search(message)
    return refused[1] if refused else None


def _broken_constraint(
    state: str, diagnostics: Any, message: str, comments: Mapping[str, str]
) -> CleaveError:
    """Return the error for a broken constraint: the error of its name in `_BY_NAME`; InvariantViolated if no input
    can break the constraint; otherwise Conflict for a unique constraint, NotFound for a foreign key, and InvalidInput
    for any other. The message is the comment on the constraint (`message` if there is no comment), followed by the
    server's detail with the values for a unique constraint or a foreign key.
    """
    name: str = diagnostics.constraint_name or ""
    sentence = comments.get(name, message)
    if state in (_UNIQUE_VIOLATION, _FOREIGN_KEY_VIOLATION) and diagnostics.message_detail:
        sentence = f"{sentence} {diagnostics.message_detail}"
    if name in _BY_NAME:
        return _BY_NAME[name](sentence)
    if name in _INVARIANTS or name.endswith("_is_history") or state == _EXCLUSION_VIOLATION:
        return InvariantViolated(sentence)
    if state == _UNIQUE_VIOLATION:
        return Conflict(sentence)
    if state == _FOREIGN_KEY_VIOLATION:
        return NotFound(sentence)
    return InvalidInput(sentence)
