"""Restricts the logins of a database: revokes rights that PostgreSQL grants to every login (temporary tables, large objects and
advisory locks), and limits idle transactions.

Advisory locks fill the lock table that all databases of a server share; large objects and temporary files fill its disk. `cleave
migrate` revokes these rights in Cleave's database, and grants temporary tables to the roles of Cleave that need them. On a managed
server only the provider's superuser may revoke the other rights, so the caller reports the rights that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import ProgrammingError

_TEMPORARY_TABLES = "cleave_owner, cleave_controller, cleave_spark_loader"
"""Roles that create temporary tables, for load aggregation and `cleave doctor`."""
IDLE_IN_TRANSACTION = "60s"
"""Idle time in a transaction after which the server ends a session of the database, unless its login has another limit."""
_RESTRICTABLE = text(r"""
    SELECT 'temporary tables' AS subject, pg_has_role(current_user, d.datdba, 'USAGE') AS is_ours,
           format('GRANT TEMPORARY ON DATABASE %1$I TO %2$s; REVOKE TEMPORARY ON DATABASE %1$I FROM PUBLIC', d.datname, CAST(:roles AS text))
           AS statement
      FROM pg_database d
     WHERE d.datname = current_database() AND has_database_privilege('public', d.oid, 'TEMPORARY')
    UNION ALL
    SELECT CASE WHEN p.proname LIKE '%advisory%' THEN 'advisory locks' ELSE 'large objects' END,
           bool_and(pg_has_role(current_user, p.proowner, 'USAGE')),
           string_agg(format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', CAST(p.oid AS regprocedure)), '; ')
      FROM pg_proc p
     WHERE p.pronamespace = CAST('pg_catalog' AS regnamespace) AND has_function_privilege('public', p.oid, 'EXECUTE')
       AND p.proname ~ '^(pg_(try_)?advisory_|lo_|loread$|lowrite$)'
     GROUP BY 1
    UNION ALL
    SELECT 'no time-out for idle transactions', pg_has_role(current_user, d.datdba, 'USAGE'),
           format('ALTER DATABASE %I SET idle_in_transaction_session_timeout = %L', d.datname, CAST(:idle AS text))
      FROM pg_database d
     WHERE d.datname = current_database()
       AND NOT EXISTS (SELECT FROM pg_db_role_setting s, unnest(s.setconfig) AS setting
                        WHERE s.setdatabase = d.oid AND s.setrole = 0
                          AND starts_with(setting, 'idle_in_transaction_session_timeout='))
     ORDER BY 1
""")
_MISSING = text("""
    SELECT role FROM unnest(ARRAY['pg_signal_backend', 'pg_read_all_stats']) AS role
     WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'cleave_owner' AND pg_has_role(r.oid, role, 'USAGE')) ORDER BY 1
""")
_OPEN_DATABASES = text("""
    SELECT datname FROM pg_database
     WHERE datallowconn AND NOT datistemplate AND has_database_privilege('public', oid, 'CONNECT') ORDER BY datname LIMIT 5
""")
_UNLIMITED = text("""
    SELECT r.rolname FROM pg_roles r
     WHERE r.rolcanlogin AND NOT r.rolsuper AND NOT pg_has_role(r.oid, 'cleave_owner', 'MEMBER')
       AND (pg_has_role(r.oid, 'cleave_client', 'MEMBER') OR pg_has_role(r.oid, 'cleave_inspector', 'MEMBER'))
       AND (r.rolconnlimit < 0 OR NOT EXISTS (
            SELECT FROM pg_db_role_setting s, unnest(s.setconfig) AS setting
             WHERE s.setrole = r.oid AND starts_with(setting, 'statement_timeout=')))
     ORDER BY r.rolname LIMIT 5
""")
_ROLES = ("cleave_controller", "cleave_inspector", "cleave_owner", "cleave_spark_loader")
_LOGIN = text("""
    SELECT current_user, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS is_superuser,
           ARRAY(SELECT role FROM unnest(CAST(:roles AS name[])) AS role WHERE pg_has_role(current_user, role, 'member')) AS roles
""")
_MAY_WRITE = text("SELECT has_database_privilege(current_database(), 'TEMPORARY')")
_WRITE = text(
    "CREATE TEMPORARY TABLE cleave_doctor ON COMMIT DROP AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)"
)


@dataclass(frozen=True, slots=True)
class Login:
    """The login of a connection. `roles`: the roles of Cleave that it is a member of; a superuser is a member of each."""

    user: str
    is_superuser: bool
    roles: frozenset[str]

    @property
    def surplus(self) -> str | None:
        """The attribute or role of the login that only migrations need: `a superuser` or `in role cleave_owner`; None
        if the login has neither.
        """
        if self.is_superuser:
            return "a superuser"
        return "in role cleave_owner" if "cleave_owner" in self.roles else None


def login(tx: Connection) -> Login:
    """Return the login (PostgreSQL's `current_user`) of the transaction."""
    user, is_superuser, roles = tx.execute(_LOGIN, {"roles": list(_ROLES)}).one()
    return Login(user, is_superuser, frozenset(roles))


def write_temporary(tx: Connection) -> bool:
    """Write a megabyte into a temporary table, which the server drops at the end of the transaction, and return True.
    Return False, and write nothing, if the login may not create temporary tables.
    """
    may_write: bool = tx.execute(_MAY_WRITE).scalar_one()
    if may_write:
        tx.execute(_WRITE)
    return may_write


def held_by_public(tx: Connection) -> list[str]:
    """Return the names of what `restrict` has to change in this database: rights that PUBLIC has, and a missing time-out for idle
    transactions. Empty if nothing is left.
    """
    return [row.subject for row in _restrictable(tx)]


def missing_owner_roles(tx: Connection) -> list[str]:
    """Return the roles of PostgreSQL that cleave_owner lacks and needs for ending transactions of applications that hold locks of logs.
    Empty if cleave_owner has them.
    """
    return list(tx.execute(_MISSING).scalars())


def restrict(tx: Connection) -> list[str]:
    """Revoke rights of PUBLIC in this database, set the database's time-out for idle transactions to
    `IDLE_IN_TRANSACTION` unless the database has a value (also 0), and grant cleave_owner the roles of PostgreSQL
    that it needs. Roles of Cleave that need temporary tables get that right before PUBLIC loses the right.

    Changes that this login may not make are skipped without an error. Return descriptions of the changes that are
    left; empty if nothing is left.
    """
    for right in _restrictable(tx):
        if right.is_ours:
            tx.exec_driver_sql(right.statement, execution_options={"no_parameters": True})
    for role in missing_owner_roles(tx):
        try:
            with tx.begin_nested():
                tx.exec_driver_sql(f"GRANT {role} TO cleave_owner")
        except ProgrammingError:
            continue
    remaining = [f"PUBLIC has: {subject}" for subject in held_by_public(tx)]
    return remaining + [f"cleave_owner is not in role {role}" for role in missing_owner_roles(tx)]


def _restrictable(tx: Connection) -> Sequence[Row[Any]]:
    """Return the rights and settings to change, each with the statement that changes them and `is_ours`, True if this
    login may execute the statement.
    """
    return tx.execute(_RESTRICTABLE, {"roles": _TEMPORARY_TABLES, "idle": IDLE_IN_TRANSACTION}).all()


def databases_open_to_public(tx: Connection) -> list[str]:
    """Return up to 5 databases of the server to which every login may connect."""
    return list(tx.execute(_OPEN_DATABASES).scalars())


def logins_without_limits(tx: Connection) -> list[str]:
    """Return up to 5 logins of applications and inspectors that have no limit of connections or no `statement_timeout`. Superusers and
    members of cleave_owner are left out.
    """
    return list(tx.execute(_UNLIMITED).scalars())
