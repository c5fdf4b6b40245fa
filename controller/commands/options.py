"""Options that several commands share, declared once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from controller.commands import completion
from controller.dataplane.registry import PLANE_NAMES
from controller.domain.errors import Conflict, InvalidInput, InvalidLayoutChange, InvalidRange, NotFound

MAX_WAIT_SECONDS = 366 * 86_400.0


def _wait(seconds: float) -> float:
    if not 0 <= seconds <= MAX_WAIT_SECONDS:  # written so that what is no number fails too
        raise InvalidInput(
            f"--timeout-seconds {seconds:g} is no time to wait; give 0 to {MAX_WAIT_SECONDS:g}"
        )
    return seconds


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen and change nothing.")]
Topic = Annotated[
    str,
    typer.Argument(
        help="topic://tenant/namespace/name, tenant/namespace/name, or as Pulsar writes it.",
        metavar="TOPIC",
        autocompletion=completion.topics,
    ),
]
TimeoutSeconds = Annotated[
    float, typer.Option("--timeout-seconds", help="How long to wait for the operation.", callback=_wait)
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return once the intent is in the journal.")]
From = Annotated[
    str | None,
    typer.Option("--from", help="From this instant on (2026-11-21T03:00:00Z), or so long ago (12h, 7d)."),
]
To = Annotated[
    str | None, typer.Option("--to", help="Until this instant, or so long ago; now where left out.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Rows at most.")]


PlaneName = Annotated[
    str,
    typer.Option("--data-plane", help=f"One of {', '.join(PLANE_NAMES)}.", autocompletion=completion.planes),
]


_OF_A_TOPIC = (InvalidRange, InvalidLayoutChange, NotFound, Conflict)
"""What may be wrong with a topic. A database that is away, a setting, a broker: these are no topic's fault."""


@contextmanager
def about(topic: str) -> Iterator[None]:
    """Errors about the topic name it: the model refuses a segment or a range and knows no names."""
    try:
        yield
    except _OF_A_TOPIC as error:
        if topic not in error.message:
            error.message = f"topic {topic}: {error.message}"
            error.args = (error.message,)
        raise
