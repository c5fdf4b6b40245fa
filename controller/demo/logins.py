"""The demo's logins: each with one role of Cleave, and with limits on its connections and its time.

A login may change its own time-outs, so they only limit accidents; a login cannot change its limit of connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import psycopg2.extensions
from psycopg2 import sql


@dataclass(frozen=True, slots=True)
class Login:
    """The role of a login, its maximum number of connections, and its settings, which a connection may override."""

    role: str
    connections: int
    settings: Mapping[str, str] = field(default_factory=dict)


_SHORT: Final = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",
}
LOGINS: Final[Mapping[str, Login]] = {
    "cleave_app": Login("cleave_controller", 100),
    "cleave_load": Login("cleave_spark_loader", 20),
    "cleave_reader": Login("cleave_inspector", 20, _SHORT | {"statement_timeout": "60s"}),
    "shop": Login("cleave_client", 60, _SHORT),
}
"""The logins by name. Cleave's own processes set their time-outs with each connection."""


def make_login(cursor: psycopg2.extensions.cursor, name: str, password: str, login: Login) -> None:
    """Create the login, as a member of its role and with its limits and settings. An existing login (of a kept
    directory) gets the password, the role, the limits and the settings too.
    """
    cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", (name,))
    verb, identifier = "ALTER" if cursor.rowcount else "CREATE", sql.Identifier(name)
    cursor.execute(
        sql.SQL(verb + " ROLE {} LOGIN PASSWORD {} CONNECTION LIMIT {}").format(
            identifier, sql.Literal(password), sql.Literal(login.connections)
        )
    )
    cursor.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(login.role), identifier))
    for setting, value in login.settings.items():
        cursor.execute(
            sql.SQL("ALTER ROLE {} SET {} = {}").format(
                identifier, sql.Identifier(setting), sql.Literal(value)
            )
        )


def close_to_everybody(cursor: psycopg2.extensions.cursor, database: str, *roles: str) -> None:
    """Allow only members of these roles to connect to the database. Its owner, superusers and roles with an earlier
    grant of their own can still connect. Without roles, no role gets the right.
    """
    name = sql.Identifier(database)
    cursor.execute(sql.SQL("REVOKE CONNECT, TEMPORARY ON DATABASE {} FROM PUBLIC").format(name))
    for role in roles:
        cursor.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(name, sql.Identifier(role)))
