"""Driver errors become the store's, in this one place, told apart by SQLSTATE (`postgres/sqlstates`) and constraint name.

The sentence for people is the constraint's own: the COMMENT on it, or the message that its trigger raised. So a rule
and its explanation stand together in sql/schema, and a rule added there needs nothing here.
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
"""A connection that fails has no SQLSTATE in psycopg2, so it is told by what the server says, in English. In another
language it is taken for a server that is away.
"""

_DRIVERS_OWN = (DataError, NotSupportedError, ProgrammingError)
"""Without a SQLSTATE these are of the driver itself: a value that it cannot bind, an option of the URL that it does not know."""

_BY_NAME: Mapping[str, type[CleaveError]] = {
    "topic_name_in_use": TopicExists,
    "operation_parent_one_live": SegmentBusy,
    "consumer_of_subscription": SubscriptionNotFound,
    "consumer_of_cleave": Conflict,
    "subscription_stock_in_order": Conflict,
    "segment_drain_subscription": SubscriptionNotFound,
    "bucket_checkpoint_subscription": SubscriptionNotFound,
    "topic_ids_continue": LostRace,  # another topic had the name between our look and our row
}
"""Constraints that have an error of their own. The others have that of their SQLSTATE."""

_LAWS = frozenset(
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
"""Laws of the model: no input breaks them, only a program that does not keep them."""

_COMMENTS = text("""
    SELECT c.conname AS name, obj_description(c.oid, 'pg_constraint') AS sentence
      FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace
     WHERE n.nspname IN ('cleave', 'staging') AND obj_description(c.oid, 'pg_constraint') IS NOT NULL
    UNION ALL
    SELECT i.relname, obj_description(i.oid, 'pg_class')
      FROM pg_class i JOIN pg_namespace n ON n.oid = i.relnamespace
     WHERE i.relkind = 'i' AND n.nspname IN ('cleave', 'staging') AND obj_description(i.oid, 'pg_class') IS NOT NULL
""")


def load_sentences(tx: Connection) -> dict[str, str]:
    """The sentence of each constraint and unique index, by name."""
    return {row.name: row.sentence for row in tx.execute(_COMMENTS)}


def translate(error: DBAPIError, sentences: Callable[[], Mapping[str, str]]) -> CleaveError:
    """Cleave's error for the driver's; never raises. `sentences` is called for a broken constraint only."""
    diagnostics = getattr(error.orig, "diag", None)
    state: str | None = getattr(diagnostics, "sqlstate", None)
    said = getattr(diagnostics, "message_primary", None) or str(error.orig)
    if isinstance(error.orig, PoolerUnfit):
        return InvalidInput(said)
    refused = _refusal(state, said)
    if refused is not None:
        return StoreRefused(
            f"PostgreSQL refuses the connection: {refused}; correct the database URL or the login's rights"
        )
    if state is None and isinstance(error, _DRIVERS_OWN) and not error.connection_invalidated:
        return Terminal(
            f"the database driver refuses what it was given ({said}); correct that, for it never will"
        )
    why = condition(state)
    if state is None or (error.connection_invalidated and why not in _SPOILT):
        return _away(error, said)
    if why is Condition.CONSTRAINT:
        return _broken_constraint(str(state), diagnostics, said, sentences())
    if why is None:
        return Terminal(f"PostgreSQL refused the statement (SQLSTATE {state}): {said}")
    return _SAYS[why](said)


_SPOILT = (Condition.READ_ONLY, Condition.SESSION_LOST)
"""Why a connection was given up that is not lost."""


def _away(error: DBAPIError, said: str) -> StoreUnavailable:
    if isinstance(error.orig, NoAnswer):
        return StoreUnavailable(
            f"{said}; the connection was closed and the transaction may or may not have been committed, so read the "
            "state again and retry"
        )
    return StoreUnavailable(f"PostgreSQL is away: {said}")


def _raced(said: str) -> LostRace:
    return LostRace(f"another transaction was in the way ({said}); read again and repeat", 0.1, what="lock")


_SAYS: Mapping[Condition, Callable[[str], CleaveError]] = {
    Condition.AWAY: lambda said: StoreUnavailable(f"PostgreSQL is away: {said}"),
    Condition.READ_ONLY: lambda said: StoreUnavailable(
        f"the PostgreSQL server is a standby or read-only ({said}); add target_session_attrs=read-write to the "
        "database URL, or retry after the fail-over"
    ),
    Condition.REFUSED: lambda said: StoreRefused(f"PostgreSQL refuses the connection: {said}"),
    Condition.SESSION_LOST: lambda said: StoreRefused(f"{said}: {SHARES_SESSIONS}"),
    Condition.DISK_FULL: lambda said: StoreUnavailable(
        f"the disk of PostgreSQL is full: {said}; free space on it"
    ),
    Condition.RESOURCES: lambda said: StoreUnavailable(
        f"PostgreSQL lacks resources: {said}; free them on its server"
    ),
    Condition.TOO_LATE: lambda said: StoreUnavailable(
        f"PostgreSQL had no answer in the time it was given ({said}); ask for less, or again when it has less to do"
    ),
    Condition.LOCKED: _raced,
    Condition.RACED: _raced,
    Condition.NOT_INSTALLED: lambda said: Terminal(
        f"the database does not have what this program needs ({said}); run `cleave migrate`"
    ),
    Condition.FORBIDDEN: lambda said: Terminal(
        f"the database user may not do this ({said}); connect as a user in the right role"
    ),
    Condition.VALUE: lambda said: InvalidInput(f"PostgreSQL refused a value: {said}"),
}
"""The error for each condition but for broken constraints, which have sentences of their own."""


def _refusal(state: str | None, said: str) -> str | None:
    """What the server says where it does not let this login in; None where that is not what is wrong."""
    if state is not None:
        return said if condition(state) is Condition.REFUSED else None
    refused = _REFUSED.search(said)
    return refused[1] if refused else None


def _broken_constraint(state: str, diagnostics: Any, said: str, sentences: Mapping[str, str]) -> CleaveError:
    name: str = diagnostics.constraint_name or ""
    sentence = sentences.get(name, said)
    if state in (_UNIQUE_VIOLATION, _FOREIGN_KEY_VIOLATION) and diagnostics.message_detail:
        sentence = f"{sentence} {diagnostics.message_detail}"
    if name in _BY_NAME:
        return _BY_NAME[name](sentence)
    if name in _LAWS or name.endswith("_is_history") or state == _EXCLUSION_VIOLATION:
        return InvariantViolated(sentence)
    if state == _UNIQUE_VIOLATION:
        return Conflict(sentence)
    if state == _FOREIGN_KEY_VIOLATION:
        return NotFound(sentence)
    return InvalidInput(sentence)
