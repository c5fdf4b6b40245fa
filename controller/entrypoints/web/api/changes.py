"""Changes: each may be rehearsed (`dry_run`), and repeated without being made twice (`Idempotency-Key`).

A rehearsal is the same code on a store that takes everything back, as `--dry-run` of the commands. A key is for one request of one
holder: a repeat has the first one's answer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Query
from fastapi import Request as HttpRequest
from pydantic import BaseModel, ConfigDict, Field

from controller.actions.action import AnyAction, perform_in
from controller.actions.context import REST_REASON, Caller, Context, Options
from controller.actions.dry_run import planned_segments, stage
from controller.actions.fields import Reason
from controller.actions.responses import Response
from controller.actions.waiting import run_to_its_end
from controller.bootstrap import Application
from controller.domain.errors import CleaveError
from controller.domain.operation import Operation, Origin
from controller.entrypoints.output import operation_document
from controller.entrypoints.web.acting import Acting, AtDesk
from controller.entrypoints.web.paths import PRINTABLE
from controller.store import api_requests
from controller.store.journal import operations
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store

Answer = TypeVar("Answer", bound=BaseModel)
LONGEST_WAIT_SECONDS = 60.0
DEFAULT_REASON = REST_REASON


class MadeSegment(BaseModel):
    """A segment that an operation makes."""

    segment_id: int = Field(examples=[1])
    hash_range: str = Field(examples=["0000-7fff"])


class PlannedSegment(MadeSegment):
    """And what it is made of."""

    buckets: int = Field(description="Entry buckets.")
    backing_topic: str = Field(examples=["segment://acme/shop/orders/0000-7fff-1"])


class Planned(BaseModel):
    """What a rehearsal says would be made."""

    epoch: int | None = Field(description="Of a reshape: that of the layout it was planned on.", examples=[7])
    segments: list[PlannedSegment]


class OperationNow(BaseModel):
    """An operation of the journal."""

    operation_id: int | None = Field(description="Null in a rehearsal.", examples=[42])
    topic: str = Field(examples=["topic://acme/shop/orders"])
    kind: str = Field(examples=["split"])
    state: str = Field(examples=["done"])
    epoch: int | None = Field(examples=[8])
    parents: list[int] = Field(examples=[[0]])
    children: list[int] = Field(examples=[[1, 2]])
    creates: list[MadeSegment]
    origin: str = Field(examples=["api"])
    actor: str = Field(examples=["ada"])
    reason: str = Field(examples=["before the sale"])


class GivenUp(BaseModel):
    """Operations that are to end as if they had not been asked for."""

    dry_run: bool
    operations: list[OperationNow]


class Intended(BaseModel):
    """What a change led to. In a rehearsal the operation is the one that would be made."""

    dry_run: bool
    repeated: bool = Field(description="An earlier request with the same key has led to it.")
    operation: OperationNow
    planned: Planned | None = Field(None, description="Null but for a rehearsal.")


Made = TypeVar("Made", bound=Intended)


@dataclass(frozen=True, slots=True)
class Change:
    """One change as it is asked for."""

    acting: Acting
    dry_run: bool
    key: str | None
    digest: str

    @property
    def app(self) -> Application:
        """With what it is made."""
        return self.acting.app

    @property
    def actor(self) -> str:
        """Who makes it."""
        return self.acting.grant.subject

    def once(self, kind: type[Answer], act: Callable[[Store], Answer]) -> Answer:
        """Made, rehearsed, or answered as the first time. Raises what `act` raises, Conflict for a key of another request, Retryable
        while the first request with the key is being answered.
        """
        if self.dry_run or self.key is None:
            with stage(self.app, self.dry_run) as store:
                return act(store)
        store = self.app.store
        with store.transaction() as tx:
            first = api_requests.begin(tx, self.actor, self.key, self.digest)
        if first is not None:
            return kind.model_validate(first)
        try:
            answer = act(store)
        except Exception:
            with store.transaction() as tx:
                api_requests.free(tx, self.actor, self.key)
            raise
        with store.transaction() as tx:
            api_requests.finish(tx, self.actor, self.key, answer.model_dump(mode="json"))
        return answer

    def perform(self, action: AnyAction, request: BaseModel, wait_seconds: float = 0.0) -> Response:
        """Perform the action once for the key. Raises as `once`."""
        caller = Caller(self.actor, Origin.API, REST_REASON, self.request_key)
        options = Options(self.dry_run, wait_seconds)
        answer: Response = self.once(
            action.response,
            lambda store: perform_in(Context(self.app, store, caller, options), action, request),
        )
        return answer

    def intend(
        self,
        act: Callable[[Store, Request], Intent],
        *,
        reason: str,
        wait_seconds: float = 0.0,
        planned_on: Callable[[], int] | None = None,
    ) -> Intended:
        """The same for an operation, waited for if somebody wants to see its end. `planned_on` says for a rehearsal on which epoch."""
        return self.intend_as(Intended, act, reason=reason, wait_seconds=wait_seconds, planned_on=planned_on)

    def intend_as(
        self,
        kind: type[Made],
        act: Callable[[Store, Request], Intent],
        *,
        reason: str,
        wait_seconds: float = 0.0,
        planned_on: Callable[[], int] | None = None,
        told: Callable[[], Mapping[str, Any]] = dict,
    ) -> Made:
        """The same with a document of its own; `told` is asked in a rehearsal, after the act, for what else that says."""

        def intended(store: Store) -> Made:
            epoch = planned_on() if planned_on is not None and self.dry_run else None
            intent = act(store, self.acting.request(reason, self._journal_key))
            operation = intent.operation if self.dry_run else self._after(intent, wait_seconds)
            document = operation_document(operation) | ({"operation_id": None} if self.dry_run else {})
            return kind(
                dry_run=self.dry_run,
                repeated=intent.repeated,
                operation=OperationNow.model_validate(document),
                planned=self._planned(intent.operation, epoch),
                **(told() if self.dry_run else {}),
            )

        return self.once(kind, intended)

    def _planned(self, operation: Operation, epoch: int | None) -> Planned | None:
        if not self.dry_run:
            return None
        return Planned.model_validate({"epoch": epoch, "segments": planned_segments(operation)})

    def _after(self, intent: Intent, wait_seconds: float) -> Operation:
        """As it is after the wait, done or not."""
        return self.ended(intent.operation, wait_seconds)

    def ended(self, operation: Operation, wait_seconds: float) -> Operation:
        """The same of an operation that is there."""
        if wait_seconds <= 0:
            return operation
        try:
            return run_to_its_end(self.app, operation.operation_id, wait_seconds)
        except CleaveError:  # it takes longer: its state says how far it is
            with self.app.store.transaction() as tx:
                return operations.get_operation(tx, operation.operation_id)

    @property
    def request_key(self) -> str:
        """Under which what is kept of it is found again, by a repeat with the same key; without a key it is a fresh one."""
        return self._journal_key or f"api-{os.urandom(8).hex()}"

    @property
    def _journal_key(self) -> str | None:
        """In the journal, where keys are everybody's."""
        if self.key is None or self.dry_run:
            return None
        return f"api-{hashlib.sha256(f'{self.actor} {self.key}'.encode()).hexdigest()[:32]}"


async def _change(
    request: HttpRequest,
    acting: AtDesk,
    dry_run: Annotated[
        bool,
        Query(description="Ask everything that the change asks, say what would happen, and change nothing."),
    ] = False,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=200,
            pattern=PRINTABLE,
            description="A text that is new for each change: a repeat with the same one is answered as the first time.",
            examples=["orders-monday-1"],
        ),
    ] = None,
) -> Change:
    request.state.request_key = key
    path, query = request.scope["path"].encode(), request.scope["query_string"]
    asked = request.method.encode() + b" " + path + b"?" + query + b"\n" + await request.body()
    return Change(acting, dry_run, key, hashlib.sha256(asked).hexdigest())


Changing = Annotated[Change, Depends(_change)]
Wait = Annotated[
    float,
    Query(
        ge=0.0,
        le=LONGEST_WAIT_SECONDS,
        description="Wait so long for the operation to end; the answer has its state either way.",
        examples=[30.0],
    ),
]


class WithReason(BaseModel):
    """Why, for the journal."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "before the sale"}]})

    reason: Reason = DEFAULT_REASON
