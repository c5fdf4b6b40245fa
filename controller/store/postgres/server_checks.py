"""What `cleave doctor` asks the server: its version, what the login is, and whether it may write."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

_ROLES = ("cleave_controller", "cleave_inspector", "cleave_owner", "cleave_spark_loader")
_VERSION = text("SELECT current_setting('server_version_num')::int, current_setting('server_version')")
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
    """Who is connected; of Cleave's roles those it is a member of, which for a superuser is each."""

    user: str
    is_superuser: bool
    roles: frozenset[str]

    @property
    def surplus(self) -> str | None:
        """What it is that only the migrations need; None where it is nothing more than its work takes."""
        if self.is_superuser:
            return "a superuser"
        return "in role cleave_owner" if "cleave_owner" in self.roles else None


def login(tx: Connection) -> Login:
    """Return the login of the transaction."""
    user, is_superuser, roles = tx.execute(_LOGIN, {"roles": list(_ROLES)}).one()
    return Login(user, is_superuser, frozenset(roles))


def version(tx: Connection) -> tuple[int, str]:
    """Return the version of the server as a number (150004), and as text."""
    number, words = tx.execute(_VERSION).one()
    return number, words


def may_write_temporary(tx: Connection) -> bool:
    """Return True if the login may create temporary tables."""
    return bool(tx.execute(_MAY_WRITE).scalar_one())


def write_temporary(tx: Connection) -> None:
    """Write a megabyte into a table that no other session sees; the end of the transaction removes the table."""
    tx.execute(_WRITE)
