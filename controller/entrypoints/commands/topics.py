"""`cleave topics`: create, adopt, attach, detach, recover, list, show, delete."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from controller import telemetry
from controller.domain.errors import InvalidInput, Terminal
from controller.entrypoints import completion
from controller.entrypoints.adoption_desk import Adoption, PlannedAdoption
from controller.entrypoints.commands.options import (
    AsJson,
    DryRun,
    NoWait,
    PlaneName,
    Reason,
    TimeoutSeconds,
    Topic,
    how_to,
    topic_name,
)
from controller.entrypoints.output import (
    LAYOUT_COLUMNS,
    created,
    emit,
    layout_rows,
    rows_table,
)
from controller.entrypoints.reach.chosen import control_plane
from controller.entrypoints.reach.port import Changed

app = typer.Typer(no_args_is_help=True)
_SUBSCRIPTION = ("subscription", "kind", "state")
_FINDING = ("kind", "segment_id", "subscription", "backing_topic", "reason", "error")


def operations_table(documents: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Operations as people read them."""
    rows = [{**one, "children": created(one["creates"])} for one in documents]
    return rows_table(rows, ("operation_id", "topic", "kind", "state", "epoch", "parents", "children"))


def tell(changed: Changed, as_json: bool) -> None:
    """Print the operation that a change led to."""
    emit(as_json, changed.operation, operations_table([changed.operation]))


@app.command()
def create(
    topic: Topic,
    segments: Annotated[int, typer.Option(min=1, max=65_536, help="Equal segments to begin with.")] = 1,
    data_plane: PlaneName = "embedded",
    properties: Annotated[list[str] | None, typer.Option("--property", help="key=value, repeatable.")] = None,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    name, how = topic_name(topic), how_to(reason, dry_run, no_wait, timeout_seconds)
    given = _properties(properties or [])
    with control_plane() as cleave:
        changed = cleave.topics.create(name, how, segments=segments, data_plane=data_plane, properties=given)
    if changed.planned is None:
        tell(changed, as_json)
        return
    rows = changed.planned.segments
    emit(as_json, {"topic": name, "segments": rows}, rows_table(rows, title=f"{name} would have"))


@app.command()
def adopt(
    old: Annotated[
        str, typer.Argument(metavar="PERSISTENT_TOPIC", help="persistent://tenant/namespace/name.")
    ],
    topic: Annotated[
        str | None, typer.Option("--as", help="The new name; topic://... of the old one.")
    ] = None,
    segments: Annotated[
        int | None,
        typer.Option(min=1, max=65_536, help="Segments to begin with; one a partition if not given."),
    ] = None,
    cut_off: Annotated[bool, typer.Option(help="Although producers or consumers are connected.")] = False,
    data_plane: PlaneName = "pulsar",
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Make a scalable topic of a plain or partitioned one; what is in it is read first."""
    asked = Adoption(old, topic_name(topic or old), segments, data_plane, cut_off)
    with control_plane() as cleave:
        changed, planned = cleave.topics.adopt(asked, how_to(reason, dry_run, no_wait, timeout_seconds))
    if planned is None:
        tell(changed, as_json)
    else:
        _show_plan(planned, as_json)


def _show_plan(planned: PlannedAdoption, as_json: bool) -> None:
    connected = [{"connected": who} for who in (*planned.producers, *planned.consumers)]
    document = asdict(planned)
    old = document.pop("old")
    closed = rows_table([{"closes": log} for log in planned.closes], title=f"{old} would end")
    follow = rows_table(planned.segments, title=f"{planned.topic} would have")
    who = (
        rows_table(connected, ("connected",), title="Stop these first, or give --cut-off")
        if connected
        else None
    )
    emit(as_json, document, Group(*(part for part in (closed, follow, who) if part is not None)))


@app.command()
def attach(
    topic: Topic,
    data_plane: PlaneName = "pulsar_scalable",
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Decide for a scalable topic of Pulsar 5: mirror its layout and turn the broker's own auto-scaler off for it."""
    name, how = topic_name(topic), how_to(reason, dry_run, no_wait, timeout_seconds)
    with control_plane() as cleave:
        changed, rows = cleave.topics.attach(name, how, data_plane=data_plane)
    if rows is None:
        tell(changed, as_json)
        return
    emit(as_json, {"topic": name, "segments": rows}, rows_table(rows, title=f"{name} on its broker"))


@app.command()
def detach(
    topic: Topic,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Give an attached topic back to its broker's own auto-scaler, set as it was before."""
    name, how = topic_name(topic), how_to(reason, dry_run, no_wait, timeout_seconds)
    with control_plane() as cleave:
        changed = cleave.topics.detach(name, how)
    if changed.planned is None:
        tell(changed, as_json)
        return
    document = {"topic": name, "would": "give it back to its broker's auto-scaler"}
    emit(as_json, document, rows_table([document]))


@app.command()
def recover(
    topic: Topic,
    data_plane: Annotated[
        str | None,
        typer.Option(
            "--data-plane",
            help="Data plane with the logs of a topic that the database does not have.",
            autocompletion=completion.planes,
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Compare a topic's logs with the database, and rebuild the layout from the logs where the logs are ahead."""
    telemetry.configure_logging(level=logging.ERROR)  # the command prints what the reconciler warns of
    with control_plane() as cleave:
        recovery = cleave.topics.recover(topic_name(topic), data_plane=data_plane, dry_run=dry_run)
    name, epoch, findings = recovery["topic"], recovery["epoch"], recovery["findings"]
    title = f"{name}: {'not in the database' if epoch < 0 else f'epoch {epoch}'}, {len(findings)} finding(s)"
    rows = [{**one, "reason": None if one["reason"] == one["error"] else one["reason"]} for one in findings]
    emit(as_json, recovery, rows_table(rows, _FINDING, title=title))
    errors = [one["error"] for one in findings if one["error"] is not None]
    reason = next(iter(errors), recovery["held_reason"])
    if reason is not None and not dry_run:
        raise Terminal(f"nothing acts on {name}: {reason}; see docs/runbook/CleaveTopicHeld.md")


def _properties(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair or pair.startswith("="):
            raise InvalidInput(f"property {pair!r} is not of the form key=value")
    return dict(pair.split("=", 1) for pair in pairs)


@app.command("list")
def list_topics(
    namespace: Annotated[str | None, typer.Option(help="tenant/namespace.")] = None,
    prefix: Annotated[str, typer.Option(help="Names that begin with this.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Topics at most.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """List topics that are not deleted."""
    prefix = f"topic://{prefix}" if prefix and "://" not in prefix else prefix
    with control_plane() as cleave:
        rows = cleave.topics.list(namespace=namespace, prefix=prefix, limit=limit)
    emit(as_json, rows, rows_table(rows))


@app.command()
def show(topic: Topic, as_json: AsJson = False) -> None:
    """Show a topic's segments and subscriptions."""
    with control_plane() as cleave:
        found = cleave.topics.find(topic_name(topic))
        subs = [{name: one[name] for name in _SUBSCRIPTION} for one in cleave.subscriptions.list(found.name)]
    layout = found.layout
    document: dict[str, Any] = {
        "topic": found.name,
        "state": found.state,
        "epoch": layout.epoch,
        "data_plane": found.data_plane,
        "properties": dict(found.properties),
        "segments": layout_rows(layout),
        "subscriptions": subs,
    }
    title = f"{found.name}: {found.state}, epoch {layout.epoch}, {len(layout.active)} active segments, {found.data_plane}"
    emit(as_json, document, rows_table(document["segments"], LAYOUT_COLUMNS, title=title))
    if not as_json and subs:
        emit(False, None, rows_table(subs, title="subscriptions"))


@app.command()
def delete(
    topic: Topic,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reason: Reason = "asked for on the command line",
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout_seconds: TimeoutSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and every log behind it, unread messages included."""
    name, how = topic_name(topic), how_to(reason, dry_run, no_wait, timeout_seconds)
    with control_plane() as cleave:
        layout = cleave.topics.layout(name, None)
        if not (yes or dry_run):
            typer.confirm(
                f"Delete {name} with {len(layout.segments)} segments and all their messages?",
                abort=True,
                err=True,
            )
        changed = cleave.topics.delete(name, how)
    if changed.planned is None:
        tell(changed, as_json)
        return
    rows = layout_rows(layout)
    document = {"topic": name, "segments": rows}
    emit(as_json, document, rows_table(rows, LAYOUT_COLUMNS, title=f"{name} would lose"))
