"""Actions on namespaces: sets the balancing mode and the split policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import AS_ARGUMENT, ActionRequest, PolicyParameters
from controller.actions.responses import Answer, Response, Row
from controller.actions.rights import Right
from controller.bundles.actions.fields import BundleNamespace
from controller.bundles.domain.splitting.policy import SplitPolicy
from controller.bundles.store import namespaces
from controller.bundles.store.namespaces import BalancingMode
from controller.domain.formatting import exact


class SetMode(ActionRequest):
    """Enable a namespace for balancing, or set it back to dry run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "approval"}]})

    namespace: BundleNamespace
    mode: BalancingMode = Field(
        description="Handling of proposals of the namespace: dry-run (only shown), approval (applied after approval), "
        "automatic (applied)."
    )


class SetSplitPolicy(ActionRequest):
    """Set parameters of a namespace's split policy. They are checked together, and used from the next cycle on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"parameters": {"max_topics": 500}}]})

    namespace: BundleNamespace
    parameters: Annotated[PolicyParameters, AS_ARGUMENT] = Field(
        default={}, description="Parameters by name, such as max_topics=500; null removes a parameter."
    )
    replace: bool = Field(False, description="Remove all parameters that are not given.")


class BalancingModeResponse(Response):
    """The mode of a namespace; in a dry run, the mode that it would have."""

    namespace: str = Field(examples=["acme/shop"])
    mode: BalancingMode
    row_version: int

    def sentence(self) -> str:
        """Return one sentence about the answer."""
        return f"{self.namespace}: balancing {'would be' if self.dry_run else 'is'} {self.mode.value}"

    def rows(self) -> Sequence[Row]:
        """Return the rows of the answer's table."""
        return [{"namespace": self.namespace, "mode": self.mode.value, "row_version": self.row_version}]


class SplitPolicyDocument(Answer):
    """The split policy of a namespace."""

    namespace: str = Field(examples=["acme/shop"])
    effective: dict[str, Any] = Field(description="Every parameter in force.", examples=[{"max_topics": 500}])
    overrides: dict[str, Any] = Field(
        description="Parameters that the namespace sets.", examples=[{"max_topics": 500}]
    )

    @classmethod
    def of(cls, namespace: str, overrides: Mapping[str, Any], **fields: Any) -> Self:
        """Return the document of a namespace that sets the parameters `overrides`, with further `fields`. Raises
        InvalidPolicy for parameters that are unknown, of a wrong type or not valid together.
        """
        effective = SplitPolicy.from_document(overrides).to_document()
        return cls(namespace=namespace, effective=effective, overrides=overrides, **fields)

    def sentence(self) -> str:
        """Return one sentence about the answer."""
        return self.namespace

    def rows(self) -> Sequence[Row]:
        """Return a row for each parameter in force. `from` in the row is `namespace` for a parameter that the
        namespace sets, otherwise `default`.
        """
        return [
            {
                "parameter": name,
                "value": exact(value),
                "from": "namespace" if name in self.overrides else "default",
            }
            for name, value in self.effective.items()
        ]


class SplitPolicyResponse(SplitPolicyDocument, Response):
    """The split policy of a namespace; in a dry run, the policy that it would have."""

    def sentence(self) -> str:
        """Return one sentence about the answer."""
        parameters = (
            ", ".join(f"{parameter}={value}" for parameter, value in self.overrides.items()) or "no parameter"
        )
        return f"{self.namespace} {'would set' if self.dry_run else 'sets'} {parameters}"


def set_mode(context: Context, request: SetMode) -> BalancingModeResponse:
    """Set the balancing mode of the namespace in the cluster of the settings, and return the mode. Mode approval
    requests an approval for each proposal of the namespace that is neither decided nor stale and has no pending
    approval; any other mode ends the namespace's pending approvals. No proposal changes its state. Raises NotFound if no
    report has named the namespace yet, LostRace if the namespace changed at the same time.
    """
    cluster = context.app.settings.pulsar_cluster
    with context.store.transaction() as tx:
        row_version = namespaces.get_namespace(tx, cluster, request.namespace).row_version
        row = namespaces.set_mode(
            tx,
            cluster,
            request.namespace,
            request.mode,
            actor=context.caller.actor,
            seen_row_version=row_version,
        )
    return BalancingModeResponse(
        dry_run=context.dry_run, namespace=row.namespace, mode=row.mode, row_version=row.row_version
    )


def set_split_policy(context: Context, request: SetSplitPolicy) -> SplitPolicyResponse:
    """Change the split policy of the namespace, and return the policy in force. Null removes a parameter, and `replace` removes all
    parameters that the request does not give. Writes nothing if the parameters do not change. The next cycle uses them.

    Raises NotFound if no report has named the namespace yet; InvalidPolicy for parameters that are unknown (unless null), of a wrong type
    or not valid together, and for one that an older version left unreadable, unless null or `replace` removes it; and LostRace if the
    namespace changed at the same time.
    """
    cluster, namespace = context.app.settings.pulsar_cluster, request.namespace
    with context.store.transaction() as tx:
        row = namespaces.get_namespace(tx, cluster, namespace)
        document = {**({} if request.replace else row.split_settings), **request.parameters}
        overrides = {parameter: value for parameter, value in document.items() if value is not None}
        response = SplitPolicyResponse.of(namespace, overrides, dry_run=context.dry_run)
        if overrides != row.split_settings:
            namespaces.set_split_settings(
                tx,
                cluster,
                namespace,
                overrides,
                actor=context.caller.actor,
                seen_row_version=row.row_version,
            )
    return response


_PATH = "/namespaces/{namespace}/bundles"
ACTIONS = (
    Action("bundles mode", f"{_PATH}/mode", Right.ADMINISTER, SetMode, BalancingModeResponse, set_mode),
    Action(
        "bundles set-policy",
        f"{_PATH}/policy",
        Right.ADMINISTER,
        SetSplitPolicy,
        SplitPolicyResponse,
        set_split_policy,
    ),
)
