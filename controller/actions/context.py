"""The context of an action: services, caller, and whether the action is a dry run."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from controller.actions.responses import OperationResponse, operation_fields
from controller.actions.user_name import user_name
from controller.actions.wait_for_operation import run_to_its_end
from controller.bootstrap import Application
from controller.domain.errors import CleaveError, TopicNotFound
from controller.domain.operation import Operation, OperationKind, Origin
from controller.store.journal import operations
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent, repeated_intent
from controller.store.postgres.engine import Store
from controller.store.topics import topics

if TYPE_CHECKING:
    from controller.services.computing.computers import Computation

OperationResponseT = TypeVar("OperationResponseT", bound=OperationResponse)

COMMAND_REASON = "requested on the command line"
REST_REASON = "requested over HTTP"
AIRFLOW_REASON = "requested in Airflow"


@dataclass(frozen=True, slots=True)
class Caller:
    """The person or program that requests an action. Requests with the same `request_key` share one
    operation. `default_reason` is recorded if the request gives no reason.
    """

    actor: str
    origin: Origin
    default_reason: str
    request_key: str


def command_caller() -> Caller:
    """Return a caller for the user of this process, with a new request key."""
    return Caller(user_name(), Origin.MANUAL, COMMAND_REASON, f"cli-{os.urandom(8).hex()}")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an action. `wait_seconds` is the maximum wait for an operation; with 0 the action returns once
    the intent is written.
    """

    dry_run: bool = False
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Context:
    """The application, its store (in a dry run, a store that rolls back), the caller and the options.

    `computation` is the turn of a server to compute, for an action that computes; None in a process that
    serves no other requests.
    """

    app: Application
    store: Store
    caller: Caller
    options: Options = field(default_factory=Options)
    computation: Computation | None = None

    @property
    def dry_run(self) -> bool:
        """True if the action changes nothing."""
        return self.options.dry_run

    def journal_request(self, reason: str | None) -> Request:
        """Return the caller's request for the journal, with the deadline of the settings."""
        return Request(
            request_key=self.caller.request_key,
            origin=self.caller.origin,
            actor=self.caller.actor,
            reason=self.reason_of(reason),
            deadline_seconds=self.app.settings.operation_deadline_seconds,
        )

    def reason_of(self, reason: str | None) -> str:
        """Return the reason to record: the given one, otherwise the caller's default reason."""
        return reason or self.caller.default_reason

    def respond(
        self, kind: type[OperationResponseT], intent: Intent, **extra_fields: Any
    ) -> OperationResponseT:
        """Return a response of class `kind` about the intended operation, with the `extra_fields`, after the wait
        that the options allow. An operation that was aborted or is still in progress is in the response, not
        raised. In a dry run, do not wait, and return the operation without an id but with the present layout epoch
        of its topic (None if only the dry run creates the topic).
        """
        if self.dry_run:
            epoch = self._epoch_of(intent.operation.topic_name)
            fields = operation_fields(intent.operation) | {"operation_id": None, "layout_epoch": epoch}
        else:
            fields = operation_fields(self.wait_for(intent.operation))
        return kind(**fields, **extra_fields, dry_run=self.dry_run, repeated=intent.repeated)

    def earlier_intent(
        self, topic: str, kinds: Collection[OperationKind], subscription: str | None = None
    ) -> Intent | None:
        """Return the operation of an earlier request with the caller's key, also if its topic no longer exists; None if
        there is none. Reads the application's own store, also in a dry run. Raises Conflict if the key was used for
        another topic, subscription (None: any) or kind of operation.
        """
        with self.app.store.transaction() as tx:
            return repeated_intent(tx, self.caller.request_key, topic, kinds, subscription)

    def wait_for(self, operation: Operation) -> Operation:
        """Wait for the operation, at most `wait_seconds` of the options, and return it as it is then, whether it
        has ended or not. An error of the wait or of the operation is not raised; the operation is then read once
        more, which may raise StoreUnavailable, with the operation's id in the message. Without a running worker, this
        process runs the operation. With `wait_seconds` 0, the operation is returned unchanged.
        """
        if self.options.wait_seconds <= 0:
            return operation
        operation_id = operation.operation_id
        try:
            return run_to_its_end(self.app, operation_id, self.options.wait_seconds)
        except CleaveError:  # The operation takes longer, and its state says how far it is.
            from controller.services.operation_wait import through_outages

            read = partial(self.app.store.in_transaction, operations.get_operation, operation_id)
            return through_outages(read, operation_id, 0.0)

    def _epoch_of(self, topic: str) -> int | None:
        """Return the layout epoch of the topic of that name; None if there is no such topic, for example because only the dry run
        has created it.
        """
        try:
            with self.store.transaction() as tx:
                return topics.find_topic(tx, topic).epoch
        except TopicNotFound:  # The dry run has just created the topic and rolled it back.
            return None
