"""`cleave check-history`: the order certificate of a run, from the histories of its producers and consumers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from controller.command_output import emit, rows_table
from controller.domain.errors import InvalidInput

if TYPE_CHECKING:
    from controller.client.history_check import Verdict

EXIT_FAULTS = 1
_TOTALS = ("sent", "delivered", "redelivered", "ended", "acknowledged")
_MEANINGS: Mapping[str, str] = {
    "lost": "sent, and never delivered",
    "duplicated": "delivered again after it was acknowledged",
    "overtaken": "delivered or processed before its predecessor of the same key",
    "gap": "skipped by an attachment that continued with its key",
    "two_owners": "two consumers held its key at once",
    "unconfirmed": "no fault: delivered, and no producer knows that it was stored",
}
_COLUMNS = (
    "found",
    "producer",
    "key",
    "number",
    "consumer",
    "segment",
    "bucket",
    "attachment",
    "at_ns",
    "why",
)


def check_history(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Histories, or directories of files *.history. Of one subscription only."
        ),
    ],
    acknowledged: Annotated[
        bool,
        typer.Option("--acknowledged", help="Also count messages as lost that were never acknowledged."),
    ] = False,
    examples: Annotated[
        int, typer.Option("--examples", min=0, help="Maximum number of examples for each kind.")
    ] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of a table.")
    ] = False,
) -> None:
    """Check in a run's histories that every message was delivered in the order of its key, and print the verdict; exit with 1 if there is
    a fault. Raises InvalidInput for a file that cannot be read as a history, a directory without histories, and histories in which no
    message was sent or delivered. The help text is in `command_list`.
    """
    from controller.client.history import history_files, read_history
    from controller.client.history_check import check

    history_paths = history_files(files)
    verdict = check(read_history(*history_paths), demand_acknowledged=acknowledged, examples=examples)
    if not verdict.sent and not verdict.delivered:
        raise InvalidInput(
            f"{', '.join(map(str, files))}: no message was sent or delivered, so there is nothing to judge"
        )
    emit(as_json, verdict.document(), _page(verdict, acknowledged))
    if not verdict.is_clean:
        raise typer.Exit(EXIT_FAULTS)


def _page(verdict: Verdict, acknowledged: bool) -> RenderableType:
    """Return the verdict as tables: the number of findings of each kind, and the examples if there are any. `acknowledged`: True
    if messages that were never acknowledged count as lost, which changes the meaning shown for `lost`.
    """
    document = verdict.document()
    totals = ", ".join(f"{document[name]:,} {name.replace('_', ' ')}" for name in _TOTALS)
    title = f"{_how_many(verdict.faults)}: {totals}"
    meanings = {
        **_MEANINGS,
        **({"lost": "sent, and never delivered or acknowledged"} if acknowledged else {}),
    }
    counts = [
        {"check": _shown(kind), "found": document[kind], "meaning": meaning}
        for kind, meaning in meanings.items()
    ]
    parts = [rows_table(counts, title=title)]
    if verdict.examples:
        parts += [Text(""), rows_table([_row(example.document()) for example in verdict.examples], _COLUMNS)]
    return Group(*parts)


def _how_many(faults: int) -> str:
    """Return the number of faults as text."""
    return "no fault" if not faults else "1 fault" if faults == 1 else f"{faults:,} faults"


def _row(example: dict[str, Any]) -> dict[str, Any]:
    """Return the document of an example as a row of a table, without empty values; the kind of fault is in column `found`."""
    fields = {name: value for name, value in example.items() if value != ""}
    return {**fields, "found": _shown(fields["kind"])}


def _shown(kind: str) -> str:
    """Return the name of a kind of fault with spaces."""
    return kind.replace("_", " ")
