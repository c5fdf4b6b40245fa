"""What the form of a DAG would do, without doing it: the same form, the same plan, nothing written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.bootstrap import Application
from controller.domain.errors import InvalidInput
from controller.entrypoints.rehearsal import preview_document
from controller.entrypoints.tasks.by_hand import ReshapeForm, planner_of
from controller.entrypoints.tasks.forms import MergeForm, PolicyForm, RebucketForm, SplitForm, fill_in
from controller.entrypoints.tasks.policies import preview_policy
from controller.services import segment_admin

_POLICY = "cleave_policy"
_RESHAPES: Mapping[str, type[ReshapeForm]] = {
    "cleave_manual_split": SplitForm,
    "cleave_manual_merge": MergeForm,
    "cleave_manual_rebucket": RebucketForm,
}


def rehearse(cleave: Application, dag_id: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """What would be sealed and created. Raises what the run itself would refuse with."""
    if dag_id == _POLICY:
        return preview_policy(cleave, fill_in(PolicyForm, conf))
    if dag_id not in _RESHAPES:
        raise InvalidInput(
            f"{dag_id!r} has no preview; those with one are {', '.join((*_RESHAPES, _POLICY))}"
        )
    form = fill_in(_RESHAPES[dag_id], conf)
    plan = preview_document(segment_admin.preview(cleave.store, cleave.planes, form.topic, planner_of(form)))
    return plan | {"sentence": _sentence(plan)}


def _sentence(plan: Mapping[str, Any]) -> str:
    sealed = ", ".join(map(str, plan["parents"]))
    created = ", ".join(f"{one['segment_id']} [{one['hash_range']}]" for one in plan["creates"])
    return f"{plan['kind']} at epoch {plan['epoch']} would seal {sealed} and create {created}"
