"""`python -m controller.devstack DIRECTORY`: a PostgreSQL for trying Cleave, until SIGTERM or Ctrl-C.

Writes `DIRECTORY/env`, which a shell can source for CLEAVE_DATABASE_URL; the data stays in DIRECTORY for the next
start. Binds loopback only and generates a password. `make demo` starts more servers than this.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from controller.devstack.postgres import EmbeddedPostgres
from controller.devstack.running import serve_until_signal
from controller.postgres.address import DatabaseAddress

DATABASE = "cleave"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a PostgreSQL in the directory until SIGTERM or SIGINT, which this process blocks. Return 0, or 1 if the server did not start.

    Writes `DIRECTORY/env` once the server accepts connections, and removes the file at the end.
    """
    parser = argparse.ArgumentParser(
        description="Run a PostgreSQL for trying Cleave, until SIGTERM or Ctrl-C."
    )
    parser.add_argument("directory", type=Path, help="directory of the server's data")
    directory = parser.parse_args(arguments).directory.resolve()
    return serve_until_signal(directory / "env", lambda: EmbeddedPostgres(directory), _description)


def _description(postgres: EmbeddedPostgres) -> tuple[str, str]:
    """Return the exports of the server's address, and the beginning of the line that names its file."""
    exports = f"export CLEAVE_DATABASE_URL='{_database_url(postgres)}'\n"
    return exports, f"PostgreSQL runs on port {postgres.port}; its address is"


def _database_url(postgres: EmbeddedPostgres) -> str:
    """Return the URL of the database, which is created at the first start."""
    import psycopg2

    from controller.postgres.connection import connect

    address = DatabaseAddress.of(postgres.url(DATABASE))
    try:
        connect(address, application_name="cleave-devstack", statement_seconds=60.0).close()
    except psycopg2.OperationalError:
        postgres.create_database(DATABASE)
    return address.uri


if __name__ == "__main__":
    sys.exit(main())
