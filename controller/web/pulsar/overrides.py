"""What a namespace or a topic overrides of the policy, as Pulsar's admin API asks for it: the same three acts for both."""

from __future__ import annotations

from typing import Any

from fastapi.responses import Response

from controller.services import policy_admin
from controller.web.acting import Acting
from controller.web.pulsar.documents import AutoScalePolicy, parameters_of, policy_of

ANSWERED: dict[str, Any] = {
    "response_model": AutoScalePolicy,
    "response_model_exclude_none": True,
    "responses": {204: {"description": "Nothing is overridden here."}},
}
"""How a route says what is overridden."""


def get_override(acting: Acting, level: str) -> Response | AutoScalePolicy:
    """What the level overrides; 204 for nothing."""
    with acting.app.store.transaction() as tx:
        return policy_of(policy_admin.stored(tx, level)) or Response(status_code=204)


def set_override(acting: Acting, level: str, policy: AutoScalePolicy) -> None:
    """Replace what the level overrides of Pulsar's fields; parameters that only Cleave has stay."""
    policy_admin.change(
        acting.app.store, level, lambda before: parameters_of(policy, before), actor=acting.grant.subject
    )


def remove_override(acting: Acting, level: str) -> None:
    """Override nothing any more."""
    policy_admin.change(acting.app.store, level, lambda _before: {}, actor=acting.grant.subject)
