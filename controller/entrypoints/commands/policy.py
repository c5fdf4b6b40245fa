"""`cleave policy`: get, set, remove at three levels, what is effective for a topic, and candidates that prove themselves."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from controller.bootstrap import application, build_trials
from controller.domain.errors import InvalidInput
from controller.domain.policy import KNOBS, PolicyOverride
from controller.entrypoints import backtest_rows, completion
from controller.entrypoints.commands.options import (
    CLUSTER,
    AsJson,
    DryRun,
    Limit,
    Reason,
    Topic,
    level,
    topic_name,
)
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.reach.chosen import control_plane
from controller.entrypoints.reading import reading
from controller.entrypoints.rehearsal import stage
from controller.entrypoints.running import user_name
from controller.services import policy_admin, policy_candidates
from controller.store.decisions.candidates import CandidateRow, knobs_text
from controller.store.postgres import inspection
from controller.store.topics import inspected

app = typer.Typer(no_args_is_help=True)

EXIT_NOT_BETTER = 1
Document = dict[str, Any]


Where = Annotated[
    str,
    typer.Argument(
        metavar="LEVEL",
        help="cluster, tenant/namespace, or topic://tenant/namespace/name.",
        autocompletion=completion.levels,
    ),
]


@app.command()
def get(where: Where, as_json: AsJson = False) -> None:
    """Show what is stored at a level (not what is effective)."""
    where = level(where)
    with control_plane() as cleave:
        document = cleave.policies.stored(where)
    emit(as_json, document, rows_table([{"knob": k, "value": v} for k, v in document.items()], title=where))


@app.command("set")
def set_policy(
    where: Where,
    knobs: Annotated[
        list[str],
        typer.Argument(
            metavar="KNOB=VALUE...",
            help=f"For instance max_segments=16; null takes a knob back. The knobs: {', '.join(KNOBS)}.",
            autocompletion=completion.knobs,
        ),
    ],
    replace_all: Annotated[bool, typer.Option("--replace", help="Forget the level's other knobs.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Set knobs at a level; the result is checked together with the levels above."""
    where, changes = level(where), parse_knobs(knobs)
    _change(where, changes, replace_all=replace_all, dry_run=dry_run, as_json=as_json)


@app.command()
def remove(where: Where, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Remove everything stored at a level; the levels above apply again."""
    _change(level(where), {}, replace_all=True, dry_run=dry_run, as_json=as_json)


def _change(where: str, knobs: Document, *, replace_all: bool, dry_run: bool, as_json: bool) -> None:
    """Write a level's document anew, or only rehearse that, and print what is different."""
    with control_plane() as cleave:
        changed = cleave.policies.change(where, knobs, replace=replace_all, dry_run=dry_run)
    before, after = changed.before, changed.after
    others = [knob for knob in {**before, **after} if before.get(knob) != after.get(knob)]
    rows = [{"knob": knob, "was": before.get(knob), "value": after.get(knob)} for knob in others]
    verb = "would change" if dry_run else "changed"
    title = f"{where}: {len(rows) or 'no'} {'knob' if len(rows) == 1 else 'knobs'} {verb}"
    emit(
        as_json,
        {
            "level": policy_admin.kind_of(where),
            "name": None if where == CLUSTER else where,
            "dry_run": dry_run,
            "before": before,
            "after": after,
        },
        rows_table(rows, title=title),
    )


@app.command()
def effective(topic: Topic, as_json: AsJson = False) -> None:
    """Show every knob in force for a topic, and the level it comes from."""
    with control_plane() as cleave:
        rows = cleave.policies.in_force(topic_name(topic))
    emit(as_json, rows, rows_table(rows))


@app.command()
def propose(
    topic: Topic,
    knobs: Annotated[
        list[str],
        typer.Argument(
            metavar="KNOB=VALUE...",
            help="What the candidate sets on top of the policy in force, for instance target_use=0.8.",
            autocompletion=completion.knobs,
        ),
    ],
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put a policy into shadow: it is asked beside the one in force, and never acts."""
    name, override = topic_name(topic), _candidate_override(knobs)
    with application() as cleave, stage(cleave, dry_run) as store:
        proposal = policy_candidates.propose(store, name, override, actor=user_name(), reason=reason)
    found = proposal.candidate
    verb = "was in shadow" if proposal.was_there else "would be in shadow" if dry_run else "is in shadow"
    title = f"{name}: candidate {found.candidate_id} ({found.knobs}) {verb}"
    emit(as_json, _candidate_document(name, found) | {"dry_run": dry_run}, Text(title))


@app.command()
def candidates(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]", help="Only this topic's; else those of all.", autocompletion=completion.topics
        ),
    ] = None,
    limit: Limit = 30,
    as_json: AsJson = False,
) -> None:
    """Policies that were proposed, newest first: what they set, what became of them, and both regrets."""
    name = None if topic is None else topic_name(topic)
    with reading() as tx:
        if name is not None:
            inspected.find_topic(tx, name)
        rows = inspection.rows(tx, _CANDIDATES, topic=name, limit=limit)
    shown = [{**row, "knobs": knobs_text(row["override"])} for row in rows]
    emit(as_json, rows, rows_table(shown, _CANDIDATE_COLUMNS))


@app.command()
def withdraw(
    topic: Topic,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take a topic's candidate out of shadow; what is in force stays."""
    name = topic_name(topic)
    with application() as cleave, stage(cleave, dry_run) as store:
        found = policy_candidates.withdraw(store, name, actor=user_name(), reason=reason)
    verb = "would be withdrawn" if dry_run else "is withdrawn"
    title = f"{name}: candidate {found.candidate_id} ({found.knobs}) {verb}"
    emit(as_json, _candidate_document(name, found) | {"dry_run": dry_run}, Text(title))


@app.command()
def promote(
    topic: Topic,
    days: Annotated[
        int,
        typer.Option(
            min=policy_candidates.DAYS_NEEDED,
            max=400,
            help="Days of the topic's own past that both policies are weighed on.",
        ),
    ] = policy_candidates.DAYS,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Weigh a topic's candidate on its own past, and put it in force if it would have cost less; exit 1 if not."""
    name = topic_name(topic)
    with application() as cleave, stage(cleave, dry_run) as store:
        trials = build_trials(replace(cleave, store=store))
        key = f"cli-{os.urandom(8).hex()}"
        weighed: policy_candidates.Weighed | None
        if dry_run:
            weighed = policy_candidates.weigh(
                store, trials, name, days=days, actor=user_name(), request_key=key
            )
            found, is_better = weighed.candidate, weighed.is_better
            said = f"would be {'promoted' if is_better else 'refused'}: {weighed.sentence}"
        else:
            done = policy_candidates.promote(
                store, trials, name, days=days, actor=user_name(), request_key=key
            )
            weighed, found, is_better = done.weighed, done.candidate, done.is_promoted
            said = f"{'was' if weighed is None else 'is'} {found.state}: {found.outcome}"
    rows = backtest_rows.result_rows((weighed.live, weighed.proposed)) if weighed else []
    document = _candidate_document(name, found) | {
        "is_better": is_better,
        "results": rows,
        "dry_run": dry_run,
    }
    parts: list[RenderableType] = [Text(f"{name}: candidate {found.candidate_id} ({found.knobs}) {said}")]
    if rows:
        parts.append(rows_table(backtest_rows.cells(backtest_rows.summary(rows)), backtest_rows.SUMMARY))
    emit(as_json, document, Group(*parts))
    if not is_better:
        raise typer.Exit(EXIT_NOT_BETTER)


_CANDIDATES = """
    SELECT * FROM inspect.policy_candidates WHERE CAST(:topic AS text) IS NULL OR topic = :topic
     ORDER BY candidate_id DESC LIMIT :limit
"""
_CANDIDATE_COLUMNS = (
    "candidate_id",
    "topic",
    "state",
    "knobs",
    "proposed_by",
    "proposed_at",
    "regret",
    "live_regret",
    "run_id",
    "shadow_decisions",
)


def _candidate_override(knobs: list[str]) -> PolicyOverride:
    changes = parse_knobs(knobs)
    for knob, value in changes.items():
        if value is None:
            raise InvalidInput(f"{knob}=null: give the value that the candidate sets")
    return PolicyOverride.from_document(changes)


def _candidate_document(topic: str, found: CandidateRow) -> Document:
    return {"topic": topic, **asdict(found), "state": found.state.value}


def parse_knobs(pairs: list[str]) -> dict[str, Any]:
    """knob=value pairs; values are JSON (true, 16, 0.25) or plain text."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        knob, equals, text = pair.partition("=")
        if not equals or not knob:
            raise InvalidInput(f"{pair!r} is not of the form knob=value, for instance max_segments=16")
        try:
            changes[knob] = json.loads(text, parse_float=_finite)
        except (ValueError, RecursionError):  # plain text, or what no knob holds and its reader refuses
            changes[knob] = text
    return changes


def _finite(text: str) -> float | str:
    """Left as text where no float is as large: it would read as infinity, which somebody would have to mean."""
    number = float(text)
    return number if math.isfinite(number) else text
