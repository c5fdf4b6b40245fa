"""`cleave policy`: get, set, remove at three levels, what is effective for a topic, and candidates that prove themselves."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from controller.domain.names import CLUSTER, policy_level, topic_name
from controller.domain.policy import KNOBS
from controller.entrypoints import backtest_rows, completion
from controller.entrypoints.commands.options import AsJson, DryRun, Limit, Reason, Topic
from controller.entrypoints.knob_texts import parse_knobs
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.reach.chosen import control_plane
from controller.services import policy_admin, policy_candidates
from controller.store.decisions.candidates import knobs_text

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
    where = policy_level(where)
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
    where, changes = policy_level(where), parse_knobs(knobs)
    _change(where, changes, replace_all=replace_all, dry_run=dry_run, as_json=as_json)


@app.command()
def remove(where: Where, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Remove everything stored at a level; the levels above apply again."""
    _change(policy_level(where), {}, replace_all=True, dry_run=dry_run, as_json=as_json)


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
    name, changes = topic_name(topic), parse_knobs(knobs)
    with control_plane() as cleave:
        proposed = cleave.candidates.propose(name, changes, reason=reason, dry_run=dry_run)
    verb = "was in shadow" if proposed.was_there else "would be in shadow" if dry_run else "is in shadow"
    _tell(proposed.candidate, verb, dry_run=dry_run, as_json=as_json)


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
    with control_plane() as cleave:
        rows = cleave.candidates.list(topic=name, limit=limit)
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
    with control_plane() as cleave:
        candidate = cleave.candidates.withdraw(topic_name(topic), reason=reason, dry_run=dry_run)
    _tell(candidate, "would be withdrawn" if dry_run else "is withdrawn", dry_run=dry_run, as_json=as_json)


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
    with control_plane() as cleave:
        judged = cleave.candidates.promote(topic_name(topic), days=days, dry_run=dry_run)
    state = ("promoted" if judged.is_better else "refused") if dry_run else judged.candidate["state"]
    verb = "would be" if dry_run else "was" if judged.had_ended else "is"
    document = {
        **judged.candidate,
        "is_better": judged.is_better,
        "results": judged.results,
        "dry_run": dry_run,
    }
    parts: list[RenderableType] = [
        Text(f"{_named(judged.candidate)} {verb} {state}: {judged.sentence}"),
    ]
    if judged.results:
        rows = backtest_rows.cells(backtest_rows.summary(judged.results))
        parts.append(rows_table(rows, backtest_rows.SUMMARY))
    emit(as_json, document, Group(*parts))
    if not judged.is_better:
        raise typer.Exit(EXIT_NOT_BETTER)


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


def _tell(candidate: Document, what: str, *, dry_run: bool, as_json: bool) -> None:
    """One line of what happened to a candidate, or would."""
    emit(as_json, {**candidate, "dry_run": dry_run}, Text(f"{_named(candidate)} {what}"))


def _named(candidate: Document) -> str:
    knobs = knobs_text(candidate["override"])
    return f"{candidate['topic']}: candidate {candidate['candidate_id']} ({knobs})"
