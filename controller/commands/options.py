"""Options that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.commands import completion
from controller.domain.errors import InvalidInput

MAX_WAIT_SECONDS = 366 * 86_400.0


def _wait(seconds: float) -> float:
    """Return the seconds of `--timeout-seconds`. Raises InvalidInput outside 0 to `MAX_WAIT_SECONDS`."""
    if not 0 <= seconds <= MAX_WAIT_SECONDS:  # this form of the comparison also fails for NaN
        raise InvalidInput(
            f"--timeout-seconds {seconds:g} is not a time to wait; give 0 to {MAX_WAIT_SECONDS:g}"
        )
    return seconds


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")]
Topic = Annotated[
    str,
    typer.Argument(
        help="topic://tenant/namespace/name, tenant/namespace/name, or as Pulsar writes it.",
        metavar="TOPIC",
        autocompletion=completion.topics,
    ),
]
TimeoutSeconds = Annotated[
    float, typer.Option("--timeout-seconds", help="Seconds to wait for the operation.", callback=_wait)
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return once the intent is in the journal.")]
From = Annotated[
    str | None,
    typer.Option("--from", help="Start: an instant (2026-11-21T03:00:00Z), or a time before now (12h, 7d)."),
]
To = Annotated[str | None, typer.Option("--to", help="End: an instant, or a time before now. Default: now.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Rows at most.")]
