"""A PostgreSQL with a migrated database to copy from, for the tests that judge mutants.

`python -m tests.mutants.server COMMAND ...` runs a command whose tests use it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controller.devstack.postgres import FORGETFUL, EmbeddedPostgres
from tests.support.migrated import migrate_to_pip483
from tests.support.quick_logins import make_logins_quick

TEMPLATE = "cleave_mutants_template"


@contextmanager
def postgres(directory: Path) -> Iterator[dict[str, str]]:
    """Run the server. Yield the variables by which tests find it."""
    with EmbeddedPostgres(directory, settings=FORGETFUL) as server:
        make_logins_quick(server)
        migrate_to_pip483(server.create_database(TEMPLATE))
        yield {
            "CLEAVE_TEST_POSTGRES_URL": server.url("postgres"),
            "CLEAVE_TEST_POSTGRES_TEMPLATE": TEMPLATE,
        }
        server.destroy()


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory(prefix="cleave-mutants-") as home,
        postgres(Path(home) / "postgres") as variables,
    ):
        sys.exit(subprocess.run(sys.argv[1:], env=os.environ | variables, check=False).returncode)
