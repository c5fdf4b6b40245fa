"""Classifies SQLSTATEs for the store and for the embedded data plane.

The table maps a SQLSTATE to a condition. The store and the data plane choose the errors and messages. A SQLSTATE that is not in the
table is a defect of the statement, which a retry does not correct.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class Condition(Enum):
    """Reason for which PostgreSQL refused a statement or ended a connection."""

    AWAY = auto()
    """The server or the connection is lost or is about to end. Another connection may work."""
    READ_ONLY = auto()
    """The server is a standby or accepts no writes. After a fail-over another connection reaches another server."""
    REFUSED = auto()
    """The server refuses the login, or does not have the database."""
    SESSION_LOST = auto()
    """The session has lost its prepared statements, or has those of another session: a pooler shares it between clients."""
    DISK_FULL = auto()
    """A disk of the server is full."""
    RESOURCES = auto()
    """The server lacks connections, memory or another resource."""
    TOO_LATE = auto()
    """The time limit of the statement has passed."""
    LOCKED = auto()
    """A lock was held for longer than the session waits."""
    RACED = auto()
    """Another transaction was in the way."""
    NOT_INSTALLED = auto()
    """A schema, table, column or function is missing."""
    FORBIDDEN = auto()
    """The login lacks a right."""
    CONSTRAINT = auto()
    """A constraint of the schema is broken."""
    VALUE = auto()
    """A value is out of range, not valid for its type, or too large for the server."""

    @property
    def spoils_connection(self) -> bool:
        """True if the work needs another connection. False if this connection can be used."""
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
"""Conditions by SQLSTATE, or by the prefix of a class of SQLSTATEs."""

_OF_RECOVERY = frozenset({"40001", "40P01", "55000"})
"""SQLSTATEs with which a standby reports a conflict with the replay, or a statement that a server in recovery cannot execute."""


def condition(state: str | None, *, on_standby: bool = False) -> Condition | None:
    """Return the condition of the SQLSTATE. None if there is no SQLSTATE, or for a SQLSTATE without a condition, as of a wrong
    statement.

    `on_standby` is True if the server of the connection is known to be a standby; a conflict with recovery is
    then READ_ONLY instead of, for example, RACED.
    """
    if state is None:
        return None
    if on_standby and state in _OF_RECOVERY:
        return Condition.READ_ONLY
    return next((_CONDITIONS[key] for key in (state, state[:3], state[:2]) if key in _CONDITIONS), None)
