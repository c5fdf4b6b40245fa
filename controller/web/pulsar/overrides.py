"""Policy overrides of a namespace or a topic in the form of Pulsar's admin API: get, set and remove."""

from __future__ import annotations

from typing import Any

from fastapi.responses import Response

from controller.services import policy_admin
from controller.web.http_caller import Acting
from controller.web.pulsar.documents import AutoScalePolicy, parameters_of, policy_of

ANSWERED: dict[str, Any] = {
    "response_model": AutoScalePolicy,
    "response_model_exclude_none": True,
    "responses": {204: {"description": "No parameter is overridden at this level."}},
}
"""OpenAPI description of the answer with the overrides."""


def get_override(acting: Acting, level: str) -> Response | AutoScalePolicy:
    """Return the level's overrides of Pulsar's fields; a response 204 if there are none. Raises TopicNotFound."""
    with acting.app.store.transaction() as tx:
        return policy_of(policy_admin.stored(tx, level)) or Response(status_code=204)


def set_override(acting: Acting, level: str, policy: AutoScalePolicy) -> None:
    """Replace the level's overrides of Pulsar's fields; a field that is null is no longer overridden. Overrides that only Cleave has are
    kept. Raises the errors of `policy_admin.change`.
    """
    policy_admin.change(
        acting.app.store, level, lambda before: parameters_of(policy, before), actor=acting.grant.subject
    )


def remove_override(acting: Acting, level: str) -> None:
    """Remove all overrides of the level, also those that only Cleave has. Raises the errors of `policy_admin.change`."""
    policy_admin.change(acting.app.store, level, lambda _before: {}, actor=acting.grant.subject)
