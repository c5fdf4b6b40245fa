"""Logins that cost little: a test connects some ten times, and half of the cost of a connection is the hash of its password."""

from __future__ import annotations

import psycopg2
from psycopg2 import sql
from sqlalchemy import make_url

from controller.devstack.postgres import PostgresServer

_SETTLES_ITERATIONS = 160_000
"""The first `server_version` whose passwords need not be hashed 4096 times."""


def make_logins_quick(server: PostgresServer) -> None:
    """Set one hash iteration for the superuser's password and for roles that are created afterwards. Does nothing before PostgreSQL 16."""
    admin = make_url(server.url("postgres"))
    connection = psycopg2.connect(
        host=admin.host,
        port=admin.port,
        user=admin.username,
        password=admin.password,
        dbname=admin.database,
        connect_timeout=10,
    )
    try:
        if connection.server_version < _SETTLES_ITERATIONS:
            return
        connection.autocommit = True  # ALTER SYSTEM refuses to run in a transaction
        with connection.cursor() as cursor:
            cursor.execute("ALTER SYSTEM SET scram_iterations = 1")
            cursor.execute("SELECT pg_reload_conf()")
            cursor.execute("SET scram_iterations = 1")
            changed = sql.SQL("ALTER ROLE {} PASSWORD %s").format(sql.Identifier(str(admin.username)))
            cursor.execute(changed, (admin.password,))
    finally:
        connection.close()
