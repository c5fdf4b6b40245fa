"""Which versions are the smallest and the largest, and where the smallest PostgreSQL is."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

SMALLEST = {"apache-airflow": "3.1.0", "pyspark": "4.0.0", "sqlalchemy": "2.0.50"}
"""The lower bounds in pyproject.toml."""
BETWEEN = {"apache-airflow": ("3.2.0",)}
"""Others that are tried where they differ from both: each minor version of Airflow draws its pages with another frontend, and has
names, serialised DAGs and triggers of its own, for which `cleave_provider.airflow_compatibility` has branches."""
LARGEST = {name: version(name) for name in SMALLEST}
"""What the development environment has."""

OLD_POSTGRES = Path("/usr/lib/postgresql/15/bin")
"""PostgreSQL 15, as Debian 12 has it; the newest is the wheel's."""
