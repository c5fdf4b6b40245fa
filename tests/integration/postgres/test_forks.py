"""A connection over a fork belongs to the process that has connected."""

from __future__ import annotations

from contextlib import closing

from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import WatchedConnection, connect
from tests.support.forking import in_child


def server_process(connection: WatchedConnection) -> int:
    """Return the id of the connection's server process, as the server says it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        ((found,),) = cursor.fetchall()
    return int(found)


def test_a_child_neither_uses_nor_ends_the_connection_of_its_parent(database: str) -> None:
    with closing(
        connect(DatabaseAddress.of(database), application_name="forks", statement_seconds=20.0)
    ) as connection:
        before = server_process(connection)

        assert "was opened before a fork" in in_child(lambda: server_process(connection))
        assert in_child(connection.rollback) is None
        assert "was opened before a fork" in in_child(connection.commit)
        assert in_child(connection.close) is None

        assert server_process(connection) == before
