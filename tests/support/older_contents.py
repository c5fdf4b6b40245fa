"""Restores the contents that embedded logs had at an earlier moment, as a restore or a lost primary does.

The tables are emptied and filled again within one transaction. Clients keep their connections and are not notified.
"""

from __future__ import annotations

from contextlib import closing

import psycopg2
import psycopg2.extensions
import sqlalchemy

_TABLES = ("log", "cursor", "message", "producer", "queue_reader", "unsettled", "timeline")
_SEQUENCES = ("generation", "log_log_id_seq")
_COLUMNS = """
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
     WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""


class OlderContents:
    """Contents of the embedded logs at the moment when the object was created."""

    def __init__(self, database_url: str) -> None:
        url = sqlalchemy.make_url(database_url).set(drivername="postgresql")
        self._url = url.render_as_string(hide_password=False)
        with closing(psycopg2.connect(self._url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA older")
            for table in _TABLES:
                cursor.execute(f"CREATE TABLE older.{table} AS TABLE embedded.{table}")
            for sequence in _SEQUENCES:
                cursor.execute(
                    f"CREATE TABLE older.{sequence} AS SELECT last_value, is_called FROM embedded.{sequence}"
                )

    def restore(self) -> None:
        """Replace the present contents by these."""
        with closing(psycopg2.connect(self._url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            cursor.execute(f"TRUNCATE {', '.join(f'embedded.{table}' for table in _TABLES)}")
            for table in _TABLES:
                cursor.execute(_COLUMNS, (f"embedded.{table}",))
                ((columns,),) = cursor.fetchall()
                cursor.execute(
                    f"INSERT INTO embedded.{table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM older.{table}"
                )
            for sequence in _SEQUENCES:
                cursor.execute(
                    f"SELECT setval('embedded.{sequence}', last_value, is_called) FROM older.{sequence}"
                )
