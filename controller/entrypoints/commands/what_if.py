"""`cleave what-if`: a topic under another policy, beside the one in force."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer
from sqlalchemy import text

from controller.bootstrap import application
from controller.domain.decision import Lane
from controller.domain.errors import InvalidInput, InvalidPolicy
from controller.domain.evaluator import ALL_LANES
from controller.domain.evaluator import decide as ask
from controller.domain.policy import AutoScalePolicy, UnreadablePolicy, validate
from controller.domain.shown import shown
from controller.domain.situation import Situation
from controller.entrypoints import backtest_requests, completion
from controller.entrypoints.commands import verdicts
from controller.entrypoints.commands.decide import present_situation
from controller.entrypoints.commands.options import AsJson, From, To, Topic, about, topic_name
from controller.entrypoints.commands.policy import parse_knobs
from controller.entrypoints.output import emit, rows_table
from controller.services.policy_backtest import Loads
from controller.store.topics import topics

IN_FORCE, WHAT_IF = "in_force", "what_if"
Answers = tuple[verdicts.Document, verdicts.Document]
_EVERY_LANE = ",".join(Lane)
Lanes = Annotated[
    str,
    typer.Option("--lanes", help=f"Which questions to ask, of {', '.join(Lane)}, with commas between them."),
]


def what_if(
    topic: Topic,
    knobs: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="KNOB=VALUE",
            help="A knob of the policy, for instance max_segments=16; repeatable.",
            autocompletion=completion.knobs,
        ),
    ],
    lanes: Lanes = _EVERY_LANE,
    since: From = None,
    until: To = None,
    as_json: AsJson = False,
) -> None:
    """What another policy would do now, beside the one in force; changes nothing.

    With `--from` (and `--to`) it answers for the past instead: what it would have cost, by a backtest, which is kept.
    """
    name, changes, asked = topic_name(topic), parse_knobs(knobs), parse_lanes(lanes)
    if since is not None or until is not None:
        if asked != ALL_LANES:
            raise InvalidInput("--lanes goes with the present; in the past all lanes are asked")
        _of_the_past(name, changes, since, until, as_json)
        return
    now, then = _situations(name, changes)
    answers = ask(now, asked).to_document(), ask(then, asked).to_document()
    document = {**_question(name, now, then, asked), **_compared(answers, now.now)}
    emit(as_json, document, _table(document, now.now, answers))


def _of_the_past(
    name: str, changes: dict[str, Any], since: str | None, until: str | None, as_json: bool
) -> None:
    from controller.entrypoints.commands import backtest

    _demand_values(changes)
    question = backtest_requests.of_what_if(changes)
    loads = Loads(*backtest.past(since, until), topics=(name,))
    backtest.ask(question, loads, engine=None, html=None, as_json=as_json)


def _demand_values(changes: dict[str, Any]) -> None:
    """Refuse a knob that is taken back: what it would then be is a question of the levels."""
    for knob, value in changes.items():
        if value is None:
            raise InvalidInput(f"{knob}=null: give the value to ask about")


def parse_lanes(given: str) -> frozenset[Lane]:
    """The lanes that are named, with commas between them. Raises InvalidInput."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    unknown = [word for word in words if word not in set(Lane)]
    if unknown or not words:
        raise InvalidInput(
            f"--lanes {shown(given)}: the lanes are {', '.join(Lane)}; name one of them or several with commas"
        )
    return frozenset(map(Lane, words))


def changed(policy: AutoScalePolicy, changes: dict[str, Any]) -> AutoScalePolicy:
    """The policy with other knobs, checked as a whole. Raises InvalidInput for a knob that is taken back, InvalidPolicy for
    the rest.
    """
    if isinstance(policy, UnreadablePolicy):
        raise InvalidPolicy(f"the policy in force cannot be read ({policy.why}); set it right first")
    _demand_values(changes)
    then = AutoScalePolicy.from_document({**policy.to_document(), **changes})
    validate(then)
    return then


def _situations(name: str, changes: dict[str, Any]) -> tuple[Situation, Situation]:
    """The topic under the policy in force and under the changed one, both of one snapshot and at one instant."""
    with about(name), application() as cleave, cleave.store.transaction() as tx:
        tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        row = topics.find_topic(tx, name)
        now = present_situation(tx, row, cleave.planes)
        then = present_situation(tx, row, cleave.planes, instead=changed(now.policy, changes))
    return now, replace(then, now=now.now)


def _question(name: str, now: Situation, then: Situation, lanes: frozenset[Lane]) -> dict[str, Any]:
    was, becomes = now.policy.to_document(), then.policy.to_document()
    return {
        "topic": name,
        "epoch": now.layout.epoch,
        "at": verdicts.at(now.now),
        "lanes": [lane for lane in Lane if lane in lanes],
        "changes": [
            {"knob": knob, "was": was[knob], "value": becomes[knob]}
            for knob in becomes
            if was[knob] != becomes[knob]
        ],
    }


def _compared(answers: Answers, now: int) -> dict[str, Any]:
    difference = verdicts.difference(*answers, (IN_FORCE, WHAT_IF))
    return {
        "is_same": not any(found for side in difference.values() for found in side.values()),
        IN_FORCE: verdicts.document(answers[0], now),
        WHAT_IF: verdicts.document(answers[1], now),
        "difference": difference,
    }


def _table(document: dict[str, Any], now: int, answers: Answers) -> Any:
    changes = ", ".join(f"{one['knob']} {one['was']} -> {one['value']}" for one in document["changes"])
    lines = (
        f"{document['topic']}: {changes or 'no knob would change'}",
        f"in force: {verdicts.title(answers[0])}",
        f"what if:  {verdicts.title(answers[1])}",
        "the same acts and refusals" if document["is_same"] else "what differs comes first",
    )
    rows = verdicts.side_by_side(*answers, ("in force", "what if"), now)
    return rows_table(rows, ("answer", *verdicts.COLUMNS), title="\n".join(lines))
