"""`cleave topics`: create, adopt, attach, detach, recover, list, show, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from controller.domain.names import topic_name
from controller.entrypoints.commands.actions import add_actions
from controller.entrypoints.commands.options import (
    AsJson,
    Topic,
)
from controller.entrypoints.output import (
    LAYOUT_COLUMNS,
    created,
    emit,
    layout_rows,
    rows_table,
)
from controller.entrypoints.reach.chosen import control_plane

app = typer.Typer(no_args_is_help=True)
_SUBSCRIPTION = ("subscription", "kind", "state")
_FINDING = ("kind", "segment_id", "subscription", "backing_topic", "reason", "error")


def operations_table(documents: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Operations as people read them."""
    rows = [{**one, "children": created(one["creates"])} for one in documents]
    return rows_table(rows, ("operation_id", "topic", "kind", "state", "epoch", "parents", "children"))


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


add_actions(app, "topics")
