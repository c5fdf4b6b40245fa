"""The policy of a level: each parameter with its stored value, its effective value, and the level that sets the effective value."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.domain.names import CLUSTER, policy_level
from controller.domain.policy import OVERRIDABLE_PARAMETERS, PARAMETERS, AutoScalePolicy, PolicyLevel
from controller.pages.context import MAX_ROWS, Reading, Text
from controller.questions.policies import LIST_PARAMETER_CHANGES
from controller.questions.question import read_answers, read_view
from controller.services.policy_admin import kind_of
from controller.store.topics import inspector_reads


def page(tx: Reading, level: Text = CLUSTER) -> dict[str, Any]:
    """Return the policy of one level with its newest 50 changes, and the first `MAX_ROWS` policies of all levels. Raises InvalidInput for a
    text that is no level, and TopicNotFound.
    """
    where = policy_level(level)
    kind = kind_of(where)
    own = None if where == CLUSTER else where
    stored = inspector_reads.set_parameters(tx, kind.value, own)
    return {
        "level": where,
        "parameters": _parameters(tx, where, kind, stored),
        "levels": read_view(tx, "inspect.policies", order="level, name", limit=MAX_ROWS),
        "history": read_answers(tx, LIST_PARAMETER_CHANGES, 50, level=kind, name=own),
    }


def _parameters(
    tx: Connection, where: str, kind: PolicyLevel, stored: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return each parameter that the level may set, with its effective value, the level that sets it, and the value stored at this level
    (None if there is none).
    """
    if kind is PolicyLevel.TOPIC:
        rows = inspector_reads.effective_policy(tx, inspector_reads.find_topic(tx, where))
    else:
        rows = _in_force(tx, kind, stored)
    may = PARAMETERS if kind is PolicyLevel.CLUSTER else OVERRIDABLE_PARAMETERS
    return [row | {"stored": stored.get(row["parameter"])} for row in rows if row["parameter"] in may]


def _in_force(tx: Connection, kind: PolicyLevel, stored: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the effective value of each parameter for a namespace or the cluster, with its level: from the nearest level that sets the
    parameter, else the default.
    """
    levels = {kind.value: stored}
    if kind is not PolicyLevel.CLUSTER:
        levels[CLUSTER] = inspector_reads.set_parameters(tx, CLUSTER, None)
    levels["default"] = AutoScalePolicy().to_document()
    return [
        {"parameter": parameter, "level": level, "value": levels[level][parameter]}
        for parameter in PARAMETERS
        for level in [next(name for name, document in levels.items() if parameter in document)]
    ]
