"""`cleave policy`: get, set, remove at three levels, what is effective for a topic, and candidates that prove themselves."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.domain.names import policy_level, topic_name
from controller.entrypoints import completion
from controller.entrypoints.commands.actions import add_actions
from controller.entrypoints.commands.options import AsJson, Topic
from controller.entrypoints.commands.questions import add_questions
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.reach.chosen import control_plane

app = typer.Typer(no_args_is_help=True)

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


@app.command()
def effective(topic: Topic, as_json: AsJson = False) -> None:
    """Show every knob in force for a topic, and the level it comes from."""
    with control_plane() as cleave:
        rows = cleave.policies.in_force(topic_name(topic))
    emit(as_json, rows, rows_table(rows))


add_questions(app, "policy")
add_actions(app, "policy")
