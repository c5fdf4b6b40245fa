"""Actions as tasks: the form of a DAG, and its run. A run stands for one request.

The caller passes the request key. A retried or cleared task with the same key gets the operation of the first
attempt, even if that attempt died right after its commit.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from controller.actions.action import AnyAction, find_action
from controller.actions.context import AIRFLOW_REASON, Caller, Options
from controller.actions.fields import fill_in
from controller.actions.perform import perform_at
from controller.actions.responses import Answer
from controller.bootstrap import Application
from controller.command_output import answer_table, emit
from controller.domain.errors import AccessForbidden, Conflict, InvalidInput
from controller.domain.formatting import shown
from controller.domain.names import CLUSTER, topic_name
from controller.domain.operation import Origin
from controller.tasks import dag_runs
from controller.tasks.application_of_connection import Extras, cleave_at


class Form(BaseModel):
    """Fields of each form in addition to those of the request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dry_run: bool = Field(False, description="Log what would happen, and change nothing.")


_TIMEOUT_SECONDS = (
    float,
    Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds that one attempt waits for the operation. The operation continues in any case; a retry waits for the same operation.",
    ),
)
"""Type and field of a form whose action becomes an operation."""
_CONFIRM = (
    str,
    Field(
        "",
        description="The topic's name again, because the action cannot be undone. Not needed for a dry run.",
    ),
)
"""Type and field of a form whose action cannot be undone."""


@functools.cache
def form_of(action: AnyAction) -> type[Form]:
    """Return the form of an action: the fields of its request, and the options of the action. The class is
    created once for each action.
    """
    options: dict[str, Any] = {}
    if action.is_waited_for:
        options["timeout_seconds"] = _TIMEOUT_SECONDS
        if action.confirms is not None:
            options["confirm"] = _CONFIRM
    return create_model(f"{action.request.__name__}Form", __base__=(Form, action.request), **options)


def perform(
    name: str,
    *,
    dsn: str,
    extras: Extras,
    params: Mapping[str, object],
    request_key: str,
    actor: str,
    may_be_cluster: bool = True,
) -> dict[str, Any]:
    """Perform the action with the values of a form, wait for its operation for the form's `timeout_seconds`,
    and return its response. Log the response as a table, and add it to the note of the DAG run.

    Raises InvalidInput for an invalid value, or for a missing confirmation; the error of `demand_below_cluster` unless
    `may_be_cluster`; Conflict, after the response was logged, if its `exit_code` is not 0; Retryable if the operation
    takes longer, Terminal if it was aborted; and the errors of `find_action` and of the action.
    """
    action = find_action(name)
    form = fill_in(form_of(action), params)
    _demand_confirmed(form)
    if not may_be_cluster:
        demand_below_cluster(action, form)
    with cleave_at(dsn, extras) as app:
        response = perform_form(app, action, form, request_key=request_key, actor=actor)
        response.demand_done(getattr(form, "timeout_seconds", 0.0))
        sentence = response.sentence()
        emit(False, None, answer_table(response, sentence))
        dag_runs.note(app.settings, request_key, f"Dry run: {sentence}" if form.dry_run else sentence)
    if response.exit_code:
        raise Conflict(sentence)
    return response.model_dump(mode="json")


def perform_form(app: Application, action: AnyAction, form: Form, *, request_key: str, actor: str) -> Answer:
    """Perform the action with the options of the form, and return its response. Waits for an operation up to
    the form's `timeout_seconds`; the state of the operation is in the response, and an operation that was
    aborted or is in progress raises no error. Raises the errors of the action.
    """
    caller = Caller(actor, Origin.MANUAL, AIRFLOW_REASON, request_key)
    options = Options(form.dry_run, getattr(form, "timeout_seconds", 0.0))
    fields = action.request.model_fields
    # without validation, because the form is valid, and without the fields that only the form has
    request = action.request.model_construct(
        form.model_fields_set & fields.keys(), **{name: getattr(form, name) for name in fields}
    )
    answer: Answer = perform_at(app, caller, options, action, request)
    return answer


def _demand_confirmed(form: Form) -> None:
    """Raise InvalidInput unless the field `confirm` names the topic. Does nothing for a dry run, or for a
    form without this field.
    """
    confirmed, topic = getattr(form, "confirm", None), getattr(form, "topic", "")
    if form.dry_run or confirmed is None:
        return
    if topic_name(confirmed.strip()) != topic:
        raise InvalidInput(
            f"confirm={shown(confirmed)} is not the topic {topic}; enter its name again to delete it for good"
        )


def demand_below_cluster(action: AnyAction, form: Form) -> None:
    """Raise AccessForbidden if the level of the form is the cluster, and the action requires another right for it."""
    if action.cluster_right is not None and getattr(form, "level", None) == CLUSTER:
        raise AccessForbidden(
            f"level={CLUSTER} requires the right to {action.cluster_right}; use the DAG cleave_cluster_policy"
        )


def form_fields(name: str) -> dict[str, dict[str, Any]]:
    """Return the fields of an action's form as JSON schema, in the order of the form. Each has one `type`,
    which may be a list with `null`, and no `anyOf`, because Airflow's forms do not understand alternatives.
    Raises NotFound for an unknown action.
    """
    action = find_action(name)
    schema = form_of(action).model_json_schema()
    requested = (field.alias or name for name, field in action.request.model_fields.items())
    field_order = [*requested, *Form.model_fields, "timeout_seconds", "confirm"]
    names = sorted(schema["properties"], key=field_order.index)
    definitions = schema.get("$defs", {})
    return {name: _without_alternatives(schema["properties"][name], definitions) for name in names}


def _without_alternatives(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field's schema with its alternatives joined. A list becomes one text, whose words the form
    splits; an enumeration of `definitions` becomes a choice of its values.
    """
    schema = {key: value for key, value in field.items() if key not in ("anyOf", "examples", "$ref")}
    types = []
    for alternative in field.get("anyOf", [field]):
        details = dict(alternative)
        if "$ref" in details:
            definition = definitions[details.pop("$ref").rpartition("/")[2]]
            details |= {key: definition[key] for key in ("type", "enum")}
        kind = details.pop("type", "string")
        types.append("string" if kind == "array" else kind)
        if kind != "array":
            schema |= details
    for key in ("items", "maxItems", "minItems", "anyOf", "examples"):
        schema.pop(key, None)
    if "enum" in schema and "null" in types:
        schema["enum"] = [*schema["enum"], None]
    schema["type"] = types[0] if len(types) == 1 else sorted(types)
    return schema
