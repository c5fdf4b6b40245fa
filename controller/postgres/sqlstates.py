"""What a SQLSTATE means for the caller: the one table of it, for the store and for the embedded data plane.

The table says what has happened. Which error that is of, and in which words, is for each of the two to say. A state that is not in the
table is a defect of the statement: to repeat it is of no use.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class Condition(Enum):
    """Why PostgreSQL refused a statement or ended a connection."""

    AWAY = auto()
    """The server or the connection is gone, or is about to be. Another connection may do."""
    READ_ONLY = auto()
    """The server is a standby, or takes no writes. After a fail-over another connection leads to another server."""
    REFUSED = auto()
    """The server does not let the login in, or has no such database."""
    SESSION_LOST = auto()
    """The session has lost what it prepared, or has what another one prepared: a pooler shares it between clients."""
    DISK_FULL = auto()
    """A disk of the server is full."""
    RESOURCES = auto()
    """The server lacks connections, memory or another resource."""
    TOO_LATE = auto()
    """The time of the statement is over."""
    LOCKED = auto()
    """A lock was held for longer than the session waits."""
    RACED = auto()
    """Another transaction was in the way."""
    NOT_INSTALLED = auto()
    """A schema, table, column or function is missing."""
    FORBIDDEN = auto()
    """The login lacks a right."""
    CONSTRAINT = auto()
    """A rule of the schema does not hold."""
    VALUE = auto()
    """A value is out of range, none of its type, or too large for the server."""

    @property
    def spoils_connection(self) -> bool:
        """True if the work has to be done on another connection. False if this one is as good as any other."""
        return self in (Condition.AWAY, Condition.READ_ONLY, Condition.SESSION_LOST)


_CONDITIONS: Mapping[str, Condition] = {
    "08": Condition.AWAY,  # connection exceptions; every error of PgBouncer's own
    "22": Condition.VALUE,
    "23": Condition.CONSTRAINT,
    "25006": Condition.READ_ONLY,  # read_only_sql_transaction: on a standby, every transaction is one
    "25P03": Condition.AWAY,  # idle_in_transaction_session_timeout
    "25P04": Condition.AWAY,  # transaction_timeout
    "26000": Condition.SESSION_LOST,  # invalid_sql_statement_name
    "28": Condition.REFUSED,
    "3D000": Condition.REFUSED,  # invalid_catalog_name
    "3F000": Condition.NOT_INSTALLED,  # invalid_schema_name
    "40001": Condition.RACED,  # serialization_failure
    "40003": Condition.AWAY,  # statement_completion_unknown
    "40P01": Condition.RACED,  # deadlock_detected
    "42501": Condition.FORBIDDEN,  # insufficient_privilege
    "42703": Condition.NOT_INSTALLED,  # undefined_column
    "42883": Condition.NOT_INSTALLED,  # undefined_function
    "42P01": Condition.NOT_INSTALLED,  # undefined_table
    "42P05": Condition.SESSION_LOST,  # duplicate_prepared_statement
    "53": Condition.RESOURCES,  # too_many_connections is 53300
    "53100": Condition.DISK_FULL,
    "54000": Condition.VALUE,  # program_limit_exceeded: too large for an index
    "55P03": Condition.LOCKED,  # lock_not_available
    "57014": Condition.TOO_LATE,  # query_canceled
    "57P": Condition.AWAY,  # admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped, idle_session_timeout
    "58030": Condition.AWAY,  # io_error
}
"""By SQLSTATE, or by what a class of states begins with."""

_OF_RECOVERY = frozenset({"40001", "40P01", "55000"})
"""On a standby, a conflict with what it replays has these states, as has a statement that a server in recovery cannot execute."""


def condition(state: str | None, *, on_standby: bool = False) -> Condition | None:
    """Return what the state means. None if there is no state, or if the statement itself is at fault.

    `on_standby`: the server of the connection is known to be a standby.
    """
    if state is None:
        return None
    if on_standby and state in _OF_RECOVERY:
        return Condition.READ_ONLY
    return next((_CONDITIONS[key] for key in (state, state[:3], state[:2]) if key in _CONDITIONS), None)
