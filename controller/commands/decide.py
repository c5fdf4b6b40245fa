"""`cleave decide`: one evaluation, of a live topic or of an evaluation input in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from controller.actions.fields import fill_in
from controller.command_output import emit, rows_table, say
from controller.commands import completion, evaluation_tables
from controller.commands.options import AsJson
from controller.commands.server_choice import perform
from controller.domain.decision import Evaluation
from controller.domain.errors import InvalidInput
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import decide as ask
from controller.questions import evaluations
from controller.questions.what_if import SHOW_SITUATIONS, ShowSituations


def decide(
    topic: Annotated[
        str | None,
        typer.Argument(help="Live topic to evaluate.", autocompletion=completion.topics),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", help="Evaluation input as JSON: a file, or - for standard input."),
    ] = None,
    print_snapshot: Annotated[
        bool,
        typer.Option(
            "--print-snapshot", help="Print the evaluation input, to edit it and evaluate it again."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a live topic, or the evaluation input in a file, in all lanes, and print the result; with `--print-snapshot` the evaluation
    input instead of the result. Nothing is stored. Raises InvalidInput unless exactly one of both is given, the errors of
    `_read` and `_of_text` for a file, and those of `perform` for a topic. The help text is in `command_list`.
    """
    if (topic is None) == (snapshot is None):
        raise InvalidInput("give either a topic or --snapshot FILE")
    if snapshot is not None:
        situation, evaluation = _of_text(_read(snapshot))
    else:
        request = fill_in(ShowSituations, {"topic": topic})
        situation, _ = perform(SHOW_SITUATIONS, request).situations
        evaluation = ask(situation)
    if print_snapshot:
        say(situation.to_json())
        return
    verdict = evaluation.to_document()
    emit(
        as_json,
        evaluations.document(verdict, situation.now),
        rows_table(
            evaluation_tables.rows(verdict, situation.now),
            evaluation_tables.COLUMNS,
            title=evaluation_tables.title(verdict),
        ),
    )


def _read(source: str) -> str:
    """Return the text of the file `source`, or of standard input for `-`. Raises InvalidInput if the text cannot be read."""
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"snapshot {source}: {error}; give a readable file, or - for standard input"
        ) from error


def _of_text(text: str) -> tuple[EvaluationInput, Evaluation]:
    """Return the evaluation input that the JSON text contains, and its evaluation. Raises InvalidInput if the text is not an evaluation
    input, or its segments do not tile the ring.
    """
    try:
        situation = EvaluationInput.from_json(text)
        _demand_tiling(situation)
        return situation, ask(situation)
    except (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"the snapshot is not an evaluation input ({type(error).__name__}: {error}); "
            "`cleave decide TOPIC --print-snapshot` prints a valid one"
        ) from error


def _demand_tiling(situation: EvaluationInput) -> None:
    """Raise InvalidInput unless every hash has exactly one active segment; otherwise the evaluation would be meaningless."""
    ranges = [segment.hash_range for segment in situation.layout.active]
    begins = [hash_range.start for hash_range in ranges]
    follows = [0, *(hash_range.end + 1 for hash_range in ranges)]
    if [*begins, 0x10000] != follows:
        raise InvalidInput(
            f"the snapshot's segments {', '.join(map(str, ranges)) or '(none)'} do not tile the ring 0000-ffff; "
            "give each hash exactly one segment"
        )
