"""The state of an installation, for pages and checks: workers, and runs of the aggregation of load."""

from __future__ import annotations

from sqlalchemy import Connection

from controller.questions.question import Row, read_view


def live_workers(tx: Connection) -> list[Row]:
    """Return the leases of the workers that are up, by name."""
    return read_view(tx, "inspect.leases", "starts_with(name, 'worker/')", "live", order="name")


def last_load_run(tx: Connection) -> Row | None:
    """Return the newest run of the aggregation of load; None before the first."""
    runs = read_view(tx, "inspect.load_runs", order="window_end DESC", limit=1)
    return runs[0] if runs else None
