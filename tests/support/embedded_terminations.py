"""Logs in PostgreSQL that lose their termination, as topics of a broker can."""

from __future__ import annotations

from tests.support.bench import Bench

_FORGET = """
    ALTER TABLE embedded.log DISABLE TRIGGER USER;
    UPDATE embedded.log SET terminated_at = NULL WHERE name = :log;
    ALTER TABLE embedded.log ENABLE TRIGGER USER
"""


def forget_termination(bench: Bench, log: str) -> None:
    """Make the log accept messages again, which PostgreSQL refuses to everybody else."""
    bench.execute(_FORGET, log=log)
