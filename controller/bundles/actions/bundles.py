"""Actions on bundles: split and unload. Each is checked against the cluster first; a dry run ends after the check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import ActionRequest, split_lines, split_words
from controller.actions.responses import Response, Row
from controller.actions.rights import Right
from controller.bundles.actions.fields import BundleText
from controller.bundles.bootstrap import bundles_of
from controller.bundles.domain.splitting.algorithms.base import CutRefusal
from controller.bundles.services.manual_actions import ManualSplit
from controller.domain.errors import Conflict


class SplitBundle(ActionRequest):
    """Split a bundle by an algorithm, at positions, or by topics; without them into even parts.

    A repeated split finds the existing cuts and changes nothing.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"parts": 2, "unload": True}, {"positions": ["0x20000000"]}]}
    )

    bundle: BundleText
    algorithm: Annotated[str, Field(max_length=200)] | None = Field(
        None,
        description="Name of an algorithm, as in the setting bundle_split_algorithms. None: implied by the other fields.",
        examples=["topic_count_equally_divide"],
    )
    positions: Annotated[
        tuple[str, ...] | None,
        Field(max_length=1000, description="Hashes at which the bundle is cut, such as 0x20000000."),
        FailFast(),
        BeforeValidator(split_words),
    ] = None
    topics: Annotated[
        tuple[str, ...] | None,
        Field(max_length=1000, description="Topics to isolate, or to divide by; in a text, one per line."),
        FailFast(),
        BeforeValidator(split_lines),
    ] = None
    parts: Annotated[int, Field(ge=2, le=1000)] = Field(2, description="Parts of an even division.")
    unload: bool = Field(False, description="Unload the parts at once, so that they get new owners.")


class UnloadBundle(ActionRequest):
    """Unload a bundle from its owner, and assign it to a broker if one is named. A bundle at its destination stays there."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"destination": "pulsar-1:8080"}]})

    bundle: BundleText
    destination: Annotated[str, Field(max_length=500)] | None = Field(
        None,
        description="host:port of a broker, as brokers are listed. None: the brokers choose.",
        examples=["pulsar-1:8080"],
    )


class BundlePart(BaseModel):
    """A part of a split bundle."""

    part: str = Field(examples=["0x00000000_0x20000000"])
    topics: int = Field(examples=[400])
    msg_rate: float = Field(description="Messages per second.", examples=[120.5])
    byte_rate: int = Field(description="Bytes per second.", examples=[64000])


class SplitBundleResponse(Response):
    """A bundle and its parts; in a dry run the parts that the bundle would have."""

    bundle: str = Field(examples=["acme/shop/0x00000000_0x40000000"])
    parts: list[BundlePart]
    outcome: str | None = Field(None, description="Null in a dry run.", examples=["done"])

    def sentence(self) -> str:
        """Return one sentence: the bundle, the outcome and the parts of the plan; in a dry run, the parts that the bundle would become."""
        parts = ", ".join(part.part for part in self.parts)
        if self.dry_run:
            return f"{self.bundle} would become {parts}"
        return f"{self.bundle}: {self.outcome}, now {parts}"

    def rows(self) -> Sequence[Row]:
        """Return the rows of the answer's table."""
        outcome = {} if self.dry_run else {"outcome": self.outcome}
        return [part.model_dump() | outcome for part in self.parts]


class UnloadBundleResponse(Response):
    """A bundle and its owner: after the unload, in a dry run as it is."""

    bundle: str = Field(examples=["acme/shop/0x00000000_0x40000000"])
    owner: str | None = Field(description="Null: no broker.", examples=["pulsar-0:8080"])
    destination: str | None = Field(examples=["pulsar-1:8080"])
    outcome: str | None = Field(None, description="Null in a dry run.", examples=["done"])

    def sentence(self) -> str:
        """Return one sentence: the bundle, the outcome and the owner after it. In a dry run: the bundle, its present owner, and the
        destination if one was given. Without an owner the sentence says `no broker`.
        """
        owner = self.owner or "no broker"
        if self.dry_run:
            towards = f" to {self.destination}" if self.destination else ""
            return f"{self.bundle}, which {owner} owns, would be unloaded{towards}"
        return f"{self.bundle}: {self.outcome}, now {owner} owns it"

    def rows(self) -> Sequence[Row]:
        """Return the rows of the answer's table."""
        return [self.model_dump(exclude={"dry_run", "outcome"} if self.dry_run else {"dry_run"})]


def split(context: Context, request: SplitBundle) -> SplitBundleResponse:
    """Plan the split by the topics that brokers report now. Unless the request is a dry run, send the split to the cluster and wait for
    its result. The parts in the response are those of the plan, also if the outcome is `nothing-changed`.

    Raises Conflict if the algorithm finds no cut, or if the namespace would exceed its maximum number of bundles; Unsupported for an
    algorithm that the settings do not allow; InvalidInput for wrong options, for a split that the broker refuses, and if the settings
    name no cluster; NotFound or BundleNotFound for an unknown namespace or bundle; DataPlaneTimeout if the split may still happen; and
    the other errors of `plan_manual_split` and of `BundleActions.split_at`.
    """
    manual_split = ManualSplit(
        request.bundle,
        request.algorithm or None,
        request.positions or (),
        request.topics or (),
        request.parts,
    )
    outcome = None
    with bundles_of(context.app) as bundles:
        plan = bundles.plan_split(manual_split)
        if isinstance(plan, CutRefusal):
            raise Conflict(plan.sentence)
        if not context.dry_run:
            outcome = str(bundles.acts.split_at(plan.bundle, plan.cuts, unload=request.unload).outcome)
    parts = [
        BundlePart(
            part=part.bundle.range_text,
            topics=part.topic_count,
            msg_rate=round(part.msg_rate, 1),
            byte_rate=round(part.byte_rate),
        )
        for part in plan.parts
    ]
    return SplitBundleResponse(dry_run=context.dry_run, bundle=str(plan.bundle), parts=parts, outcome=outcome)


def unload(context: Context, request: UnloadBundle) -> UnloadBundleResponse:
    """Check the bundle and its destination. Unless the request is a dry run, unload the bundle and wait until its
    owner has changed, for at most 10 s. The response has the owner after the wait, which may be another broker than
    the destination; None if no broker owns the bundle. A dry run returns the present owner and no outcome.

    Raises InvalidInput for a destination that is not active or that an isolation policy forbids, and if the settings
    name no cluster; NotFound or BundleNotFound for an unknown namespace or bundle; DataPlaneTimeout if the unload may
    still happen; and the other errors of `check_manual_unload` and of `BundleActions.unload`.
    """
    destination, outcome = request.destination or None, None
    with bundles_of(context.app) as bundles:
        bundle, owner = bundles.check_unload(request.bundle, destination)
        if not context.dry_run:
            result = bundles.acts.unload(bundle, destination=destination)
            owner, outcome = result.owner, str(result.outcome)
    return UnloadBundleResponse(
        dry_run=context.dry_run,
        bundle=str(bundle),
        owner=owner,
        destination=destination,
        outcome=outcome,
    )


_PATH = "/namespaces/{bundle}"
ACTIONS = (
    Action("bundles split", f"{_PATH}/split", Right.ADMINISTER, SplitBundle, SplitBundleResponse, split),
    Action("bundles unload", f"{_PATH}/unload", Right.ADMINISTER, UnloadBundle, UnloadBundleResponse, unload),
)
