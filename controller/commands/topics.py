"""`cleave topics`: create, adopt, attach, detach, recover, list, show, delete."""

from __future__ import annotations

from typing import Any

from controller.actions.fields import fill_in
from controller.actions.responses import SEGMENT_COLUMNS, segment_rows
from controller.command_output import emit, rows_table
from controller.commands.actions import group
from controller.commands.options import AsJson, Topic
from controller.commands.server_choice import ask, perform
from controller.domain.names import topic_name
from controller.questions.layouts import SHOW_LAYOUT, ShowLayout
from controller.questions.subscriptions import LIST_SUBSCRIPTIONS
from controller.questions.topics import SHOW_TOPIC

_SUBSCRIPTION = ("subscription", "kind", "state")


def show(topic: Topic, as_json: AsJson = False) -> None:
    """Show a topic's segments and subscriptions."""
    name = topic_name(topic)
    [row] = ask(SHOW_TOPIC, {"topic": name}, limit=1)
    layout = perform(SHOW_LAYOUT, fill_in(ShowLayout, {"topic": name})).layout
    rows = ask(LIST_SUBSCRIPTIONS, {"topic": name}, limit=None)
    subs = [{name: row[name] for name in _SUBSCRIPTION} for row in rows]
    document: dict[str, Any] = {
        "topic": name,
        "state": row["state"],
        "epoch": layout.epoch,
        "data_plane": row["data_plane"],
        "properties": row["properties"],
        "segments": segment_rows(layout),
        "subscriptions": subs,
    }
    title = f"{name}: {row['state']}, epoch {layout.epoch}, {len(layout.active)} active segments, {row['data_plane']}"
    emit(as_json, document, rows_table(document["segments"], SEGMENT_COLUMNS, title=title))
    if not as_json and subs:
        emit(False, None, rows_table(subs, title="subscriptions"))


app = group("topics", show)
