"""`cleave what-if`: a topic under another policy, compared with the policy in force."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from controller.actions.fields import fill_in, parse_parameters
from controller.command_output import emit, rows_table
from controller.commands import completion, evaluation_tables
from controller.commands.options import AsJson, From, To, Topic
from controller.commands.server_choice import perform
from controller.domain.decision import Lane
from controller.domain.errors import InvalidInput
from controller.domain.evaluator import ALL_LANES
from controller.domain.formatting import shown
from controller.domain.names import topic_name
from controller.questions import backtest_requests, evaluations
from controller.questions.backtest_requests import BacktestRequest
from controller.questions.what_if import SHOW_SITUATIONS, ShowSituations
from controller.services import what_if as service
from controller.services.policy_backtest import Loads
from controller.services.what_if import WhatIf

_EVERY_LANE = ",".join(Lane)


def what_if(
    topic: Topic,
    parameters: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="PARAMETER=VALUE",
            help="Policy parameter, for instance max_segments=16; repeatable.",
            autocompletion=completion.parameters,
        ),
    ],
    lanes: Annotated[
        str, typer.Option("--lanes", help=f"Lanes to evaluate, of {', '.join(Lane)}, separated by commas.")
    ] = _EVERY_LANE,
    since: From = None,
    until: To = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the topic now, in the lanes, under the policy in force and under this policy with `parameters`, and print both evaluations
    and their differences; changes nothing.

    With `--from` or `--to` the command runs a backtest of the past in all lanes instead, and stores it. Raises InvalidInput for parameters
    or lanes that cannot be read, and for fewer than all lanes with a span, and the errors of `perform` or `_of_the_past`. The help text is
    in `command_list`.
    """
    name, changes, wanted_lanes = topic_name(topic), parse_parameters(parameters), parse_lanes(lanes)
    if since is not None or until is not None:
        if wanted_lanes != ALL_LANES:
            raise InvalidInput("--lanes applies to the present; a backtest evaluates all lanes")
        _of_the_past(name, changes, since, until, as_json)
        return
    now, then = perform(
        SHOW_SITUATIONS, fill_in(ShowSituations, {"topic": name, "changes": changes})
    ).situations
    comparison = service.compare(name, now, then, wanted_lanes)
    document = evaluations.comparison(comparison)
    emit(as_json, document, _table(document, comparison))


def _of_the_past(
    name: str, changes: dict[str, Any], since: str | None, until: str | None, as_json: bool
) -> None:
    """Run a backtest of the topic over the span, under the policy in force without and with `changes`, and print the
    results. Raises InvalidInput for a parameter without a value or an invalid span, and the errors of `backtest.ask`.
    """
    from controller.commands import backtest

    service.demand_values(changes)
    loads = Loads(*backtest_requests.past(since, until, datetime.now(UTC)), topics=(name,))
    backtest.ask(BacktestRequest(loads, parameters=changes), html=None, as_json=as_json)


def parse_lanes(text: str) -> frozenset[Lane]:
    """Return the lanes in the text, whose names are separated by commas. Raises InvalidInput for an unknown name or no name."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in set(Lane)]
    if unknown or not words:
        raise InvalidInput(
            f"--lanes {shown(text)}: the lanes are {', '.join(Lane)}; name one or several, separated by commas"
        )
    return frozenset(map(Lane, words))


def _table(document: dict[str, Any], comparison: WhatIf) -> Any:
    """Return the table of both evaluations, with the changed parameters and the counts above."""
    answers = comparison.in_force.to_document(), comparison.what_if.to_document()
    changes = ", ".join(
        f"{change['parameter']} {change['was']} -> {change['value']}" for change in document["changes"]
    )
    lines = (
        f"{document['topic']}: {changes or 'no parameter would change'}",
        f"in force: {evaluation_tables.title(answers[0])}",
        f"what if:  {evaluation_tables.title(answers[1])}",
        "the same acts and refusals" if document["is_same"] else "differences come first",
    )
    rows = evaluation_tables.side_by_side(*answers, ("in force", "what if"), comparison.now.now)
    return rows_table(rows, ("answer", *evaluation_tables.COLUMNS), title="\n".join(lines))
