"""Documents that actions respond with: the same in REST, `--json`, XCom and on the pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from controller.domain.errors import Retryable, Terminal
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation, OperationState, ReservedChild
from controller.domain.segment import Segment

Row = Mapping[str, Any]


class WithExample:
    """Adds an example to the schema of a class that belongs to the store and has no example."""

    def __init__(self, example: Row) -> None:
        self._example = example

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        handler.resolve_ref_schema(schema)["examples"] = [dict(self._example)]
        return schema


class Document(BaseModel):
    """The answer of an action, for programs."""

    model_config = ConfigDict(frozen=True)

    def rest_of(self, request: Any) -> Any:  # noqa: ARG002 - most actions have one part
        """Return the request for the remaining part, if one call performs only a part of the action; None if
        nothing remains.
        """
        return None

    def joined(self, earlier: Self) -> Self:  # noqa: ARG002
        """Return the answer about this part and the earlier parts. An action without parts returns this answer."""
        return self


class Answer(Document, ABC):
    """The answer of an action that is also a command or a form. People read its sentence and its tables."""

    replaces_log: ClassVar[bool] = False
    """True if the answer contains everything that the log would warn about, so that a command does not print
    the log too.
    """

    @abstractmethod
    def sentence(self) -> str:
        """Return one sentence for people: a note, a preview, or the title of a table."""

    def rows(self) -> Sequence[Row]:
        """Return the rows of the table for people; none if the sentence is sufficient."""
        return []

    def title(self) -> str | None:
        """Return the line above the rows; None if the rows need no title."""
        return self.sentence()

    def tables(self) -> Sequence[tuple[str, Sequence[Row]]]:
        """Return further tables below the first, each with its title."""
        return ()

    @property
    def exit_code(self) -> int:
        """Exit code of the command; not 0 if the action was performed and its result is negative."""
        return 0

    def demand_done(self, wait_seconds: float) -> None:
        """Raise Terminal if the action has failed, Retryable if it has not ended within `wait_seconds`. By default
        do nothing.
        """


class Response(Answer):
    """The answer of an action that changes something."""

    dry_run: bool = Field(False, description="Nothing was changed.")

    def title(self) -> str | None:
        """Return the sentence for a dry run or an answer without rows; otherwise None, because the rows suffice."""
        return self.sentence() if self.dry_run or not self.rows() else None


class CreatedSegment(BaseModel):
    """A segment that an operation creates."""

    segment_id: int = Field(examples=[1])
    hash_range: str = Field(examples=["0000-7fff"])
    buckets: int = Field(description="Entry buckets.", examples=[4])
    backing_topic: str = Field(examples=["segment://acme/shop/orders/0000-7fff-1"])

    @classmethod
    def of(cls, child: ReservedChild) -> Self:
        """Return the document of a child segment that an operation reserves."""
        plan = child.plan
        return cls(
            segment_id=plan.segment_id,
            hash_range=str(plan.hash_range),
            buckets=len(plan.bucket_splits) + 1,
            backing_topic=child.backing_topic,
        )


class OperationDocument(BaseModel):
    """An operation of the journal."""

    operation_id: int | None = Field(description="Null in a dry run.", examples=[42])
    topic: str = Field(examples=["topic://acme/shop/orders"])
    kind: str = Field(examples=["split"])
    state: str = Field(examples=["done"])
    epoch: int | None = Field(description="Epoch of the layout after the commit.", examples=[8])
    parents: list[int] = Field(examples=[[0]])
    children: list[int] = Field(examples=[[1, 2]])
    creates: list[CreatedSegment]
    origin: str = Field(examples=["api"])
    actor: str = Field(examples=["ada"])
    reason: str = Field(examples=["before the sale"])
    last_error: str | None = Field(
        None, description="Reason why the operation was aborted, or its last attempt failed."
    )
    parameters: dict[str, Any] = Field(examples=[{"subscription": "billing"}])

    def row(self) -> Row:
        """Return the operation as a row of a table, with the created segments as text."""
        columns = ("operation_id", "topic", "kind", "state", "epoch", "parents")
        return {name: getattr(self, name) for name in columns} | {"children": segments_text(self.creates)}


def operation_fields(operation: Operation) -> dict[str, Any]:
    """Return the fields of `OperationDocument` for the operation, by name."""
    return {
        "operation_id": operation.operation_id,
        "topic": operation.topic_name,
        "kind": operation.kind.value,
        "state": operation.state.value,
        "epoch": operation.epoch,
        "parents": list(operation.parent_ids),
        "children": [child.plan.segment_id for child in operation.children],
        "creates": [CreatedSegment.of(child) for child in operation.children],
        "origin": operation.origin.value,
        "actor": operation.actor,
        "reason": operation.reason,
        "last_error": operation.last_error,
        "parameters": dict(operation.parameters),
    }


class OperationResponse(OperationDocument, Response):
    """The operation of an action. In a dry run, the operation that the action would create."""

    repeated: bool = Field(False, description="An earlier request with the same key created the operation.")
    layout_epoch: int | None = Field(
        None, description="Epoch of the layout that a dry run planned on; null otherwise.", examples=[7]
    )

    def sentence(self) -> str:
        """Return a sentence with the id, kind, parents, topic and state of the operation; for a dry run that of `preview`."""
        if self.dry_run:
            return self.preview()[0]
        sealed_text = f" of segment {', '.join(map(str, self.parents))}" if self.parents else ""
        return f"operation {self.operation_id}: {self.kind}{sealed_text} on {self.topic} is {self.state}"

    def preview(self) -> tuple[str, Sequence[Row]]:
        """Return the sentence and the rows of a dry run: the topic, the epoch of its layout, the kind, the subscription (epoch and
        subscription only if there is one), and the segments to seal and create, or that the action would be accepted if it would create
        none; the segments to create as rows.
        """
        epoch_text = "" if self.layout_epoch is None else f" at epoch {self.layout_epoch}"
        seal_text = f"seal {', '.join(map(str, self.parents))} and " if self.parents else ""
        effect = f"{seal_text}create {segments_text(self.creates)}" if self.creates else "be accepted"
        subscription = self.parameters.get("subscription")
        sentence = f"{self.topic}{epoch_text}: {self.kind}{f' {subscription}' if subscription else ''} would {effect}"
        return sentence, [segment.model_dump() for segment in self.creates]

    def rows(self) -> Sequence[Row]:
        """Return the rows of `preview` for a dry run, otherwise the operation as one row."""
        return self.preview()[1] if self.dry_run else [self.row()]

    def demand_done(self, wait_seconds: float) -> None:
        """Raise Terminal if the operation was aborted, Retryable if it is still in progress. Does nothing in a dry
        run, or if the caller did not wait (`wait_seconds` 0). Does not wait itself.
        """
        if self.dry_run or wait_seconds <= 0:
            return
        if demand_ended(self, wait_seconds) is OperationState.ABORTED:
            raise aborted(self.operation_id, self.kind, self.topic, self.last_error)


def demand_ended(operation: OperationDocument, wait_seconds: float) -> OperationState:
    """Return the final state of the operation, done or aborted. Raises Retryable, which names `wait_seconds`, if
    the operation is still in progress.
    """
    state = OperationState(operation.state)
    if state.is_live:
        raise Retryable(
            f"operation {operation.operation_id} ({operation.kind} of {operation.topic}) is {state} after {wait_seconds:g} s; wait "
            "longer, check that a worker runs, or read `cleave operations --stuck`"
        )
    return state


def demand_done(operation: Operation) -> Operation:
    """Return the operation unchanged, done or still in progress. Raises Terminal if it was aborted."""
    if operation.state is OperationState.ABORTED:
        raise aborted(operation.operation_id, operation.kind, operation.topic_name, operation.last_error)
    return operation


def aborted(operation_id: int | None, kind: str, topic: str, reason: str | None) -> Terminal:
    """Return the error about an aborted operation; it is not raised here. `reason` None: the journal has no reason."""
    return Terminal(
        f"operation {operation_id} ({kind} of {topic}) was aborted: {reason or 'no reason is recorded'}"
    )


class CancelledSeeks(Response):
    """The operations of the seeks that were cancelled."""

    operations: list[OperationDocument]

    def sentence(self) -> str:
        ids = ", ".join(str(operation.operation_id) for operation in self.operations)
        return f"{'would cancel' if self.dry_run else 'cancelled'} {len(self.operations)} seek(s): {ids}"

    def rows(self) -> Sequence[Row]:
        return [operation.row() for operation in self.operations]

    def demand_done(self, wait_seconds: float) -> None:
        """Raise Retryable if a seek is still in progress after `wait_seconds`. Does nothing in a dry run, or if
        the caller did not wait.
        """
        if not self.dry_run and wait_seconds > 0:
            for operation in self.operations:
                demand_ended(operation, wait_seconds)


class SegmentDocument(BaseModel):
    """A segment of a layout."""

    segment_id: int = Field(examples=[1])
    hash_range: str = Field(examples=["0000-7fff"])
    state: str = Field(examples=["ACTIVE"])
    buckets: int = Field(description="Entry buckets.", examples=[4])
    parents: list[int] = Field(examples=[[0]])
    children: list[int]
    merge_depth: int
    created_epoch: int = Field(examples=[1])
    sealed_epoch: int | None

    @classmethod
    def of(cls, segment: Segment) -> SegmentDocument:
        """Return the document of a segment."""
        return cls(
            segment_id=segment.segment_id,
            hash_range=str(segment.hash_range),
            state=segment.state.value,
            buckets=segment.bucket_count,
            parents=list(segment.parent_ids),
            children=list(segment.child_ids),
            merge_depth=segment.merge_depth,
            created_epoch=segment.created_epoch,
            sealed_epoch=segment.sealed_epoch,
        )


SEGMENT_COLUMNS = (
    "segment_id",
    "hash_range",
    "state",
    "buckets",
    "parents",
    "children",
    "created_epoch",
    "sealed_epoch",
)
"""Fields of a segment that fit into a table."""


def segment_documents(layout: SegmentLayout) -> list[SegmentDocument]:
    """Return the active segments by range, then the sealed segments by id."""
    sealed = [segment for segment in layout.segments.values() if segment not in layout.active]
    segments = [*layout.active, *sorted(sealed, key=lambda segment: segment.segment_id)]
    return [SegmentDocument.of(segment) for segment in segments]


def segment_rows(layout: SegmentLayout) -> list[dict[str, Any]]:
    """Return the segments of the layout as rows: the active segments by range, then the sealed segments by id."""
    return [document.model_dump() for document in segment_documents(layout)]


def segments_text(segments: Iterable[CreatedSegment]) -> str:
    """Return the ids and ranges of the segments as text for a cell of a table."""
    return ", ".join(f"{segment.segment_id} [{segment.hash_range}]" for segment in segments)
