"""Names of the checks of `cleave doctor`."""

from __future__ import annotations

DATABASE_CHECKS = frozenset(
    {
        "database",
        "schema",
        "role",
        "loader role",
        "public rights",
        "login limits",
        "writes",
        "workers",
        "worker schemas",
        "operations",
        "topics held",
        "unmanaged logs",
        "entry buckets",
        "gates",
        "load runs",
        "collectors",
        "set aside",
    }
)
"""Checks that fail if PostgreSQL does not answer. `loader role` runs only if `CLEAVE_LOADER_URL` is set."""
