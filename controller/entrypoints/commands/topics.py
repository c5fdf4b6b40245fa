"""`cleave topics`: create, adopt, attach, detach, list, show, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from controller.bootstrap import Application, application
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import InvalidInput
from controller.domain.operation import Operation
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
    operation_document,
    rows_table,
)
from controller.entrypoints.reach.chosen import control_plane
from controller.entrypoints.reach.port import Changed
from controller.entrypoints.rehearsal import planned_segments, stage
from controller.entrypoints.running import manual_request, see_through
from controller.services import topic_admin, topic_adoption
from controller.store.journal.request_keys import Intent

app = typer.Typer(no_args_is_help=True)
_SUBSCRIPTION = ("subscription", "kind", "state")


def finish(
    cleave: Application, intent: Intent, *, no_wait: bool, timeout_seconds: float, as_json: bool
) -> None:
    """Wait for the operation unless told not to, and print it."""
    operation = intent.operation if no_wait else see_through(cleave, intent, timeout_seconds)
    document = operation_document(operation)
    emit(as_json, document, operations_table([document]))


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
    with application() as cleave, stage(cleave, dry_run) as store:
        name = None if topic is None else topic_name(topic)
        planned = topic_adoption.plan(
            cleave.planes, old, topic=name, segments=segments, data_plane=data_plane
        )
        request = manual_request(cleave, reason)
        intent = topic_adoption.adopt(
            store, cleave.planes, planned, request, data_plane=data_plane, cut_off=cut_off or dry_run
        )
        if dry_run:
            _show_plan(planned, intent.operation, as_json)
            return
        finish(cleave, intent, no_wait=no_wait, timeout_seconds=timeout_seconds, as_json=as_json)


def _show_plan(planned: topic_adoption.Plan, operation: Operation, as_json: bool) -> None:
    rows = planned_segments(operation)
    found = planned.found
    connected = [{"connected": who} for who in (*found.producers, *found.consumers)]
    document = {
        "topic": planned.topic,
        "closes": list(found.logs),
        "segments": rows,
        "subscriptions": {
            name: "QUEUE" if queue else "STREAM" for name, queue in found.subscriptions.items()
        },
        "producers": list(found.producers),
        "consumers": list(found.consumers),
    }
    closed = rows_table([{"closes": log} for log in found.logs], title=f"{found.name} would end")
    follow = rows_table(rows, title=f"{planned.topic} would have")
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
    name = topic_name(topic)
    with application() as cleave, stage(cleave, dry_run) as store:
        intent = topic_admin.attach_topic(
            store, cleave.planes, name, manual_request(cleave, reason), data_plane=data_plane
        )
        if dry_run:
            rows = _layout_on_broker(cleave, name, data_plane)
            emit(as_json, {"topic": name, "segments": rows}, rows_table(rows, title=f"{name} on its broker"))
            return
        finish(cleave, intent, no_wait=no_wait, timeout_seconds=timeout_seconds, as_json=as_json)


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
    name = topic_name(topic)
    with application() as cleave, stage(cleave, dry_run) as store:
        intent = topic_admin.detach_topic(store, name, manual_request(cleave, reason))
        if dry_run:
            document = {"topic": name, "would": "give it back to its broker's auto-scaler"}
            emit(as_json, document, rows_table([document]))
            return
        finish(cleave, intent, no_wait=no_wait, timeout_seconds=timeout_seconds, as_json=as_json)


def _layout_on_broker(cleave: Application, name: str, data_plane: str) -> list[dict[str, Any]]:
    keeper = cleave.planes[data_plane]
    if not isinstance(keeper, LayoutKeeper):
        raise InvalidInput(f"data plane {data_plane!r} keeps no layouts; choose pulsar_scalable")
    return [
        {"segment_id": one.segment_id, "hash_range": str(one.hash_range), "parents": list(one.parent_ids)}
        for one in keeper.read_layout(name).active
    ]


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
