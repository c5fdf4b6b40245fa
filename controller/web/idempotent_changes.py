"""Changes over HTTP: dry runs (`dry_run`), and repeated requests that are performed once (`Idempotency-Key`).

A dry run executes the same code on a store that rolls back, like `--dry-run` of the commands. A key belongs to one request of one token
holder: a repeated request gets the first answer. How long keys and their answers are kept is in `store.idempotency_keys`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Concatenate, ParamSpec

import tenacity
from fastapi import Depends, Header, Query
from fastapi import Request as HttpRequest
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from controller.actions.action import AnyAction
from controller.actions.context import Context, Options
from controller.actions.perform import perform_in, store_for
from controller.actions.responses import Response
from controller.domain.errors import Retryable, StoreUnavailable
from controller.repeating import contained
from controller.services.computing.computers import Computation
from controller.store import idempotency_keys
from controller.store.idempotency_keys import Reservation
from controller.store.postgres.engine import Store
from controller.telemetry import get_logger, start_thread
from controller.web.http_caller import Acting, HttpCaller
from controller.web.paths import PRINTABLE

log = get_logger(__name__)

LONGEST_WAIT_SECONDS = 60.0
_NOT_SETTLED = "idempotency key not settled"

Arguments = ParamSpec("Arguments")


@dataclass(frozen=True, slots=True)
class Change:
    """A request for a change. `key` is the client's idempotency key; `digest` identifies the method, path, query and body that the key
    belongs to. `wait_seconds` is the maximum wait for the operation of the action; with 0 the response is returned once the intent is
    written.
    """

    acting: Acting
    dry_run: bool
    wait_seconds: float
    key: str | None
    digest: str

    def perform(
        self, action: AnyAction, request: BaseModel, computation: Computation | None = None
    ) -> Response:
        """Perform the action, or its dry run, and return the response. A repeated request with the same idempotency
        key gets the response of the earlier request. If the earlier request failed, the action is performed again. A
        dry run ignores the key.

        `computation` is the turn of an action that computes. Raises the errors of the action and of `_once`.
        """
        app, caller = self.acting.app, self.acting.caller(self._journal_key)
        options = Options(self.dry_run, self.wait_seconds)

        def act(store: Store) -> Response:
            context = Context(app, store, caller, options, computation)
            response: Response = perform_in(context, action, request)
            return response

        if self.dry_run or self.key is None:
            with store_for(app, self.dry_run) as store:
                return act(store)
        return self._once(self.key, action.response, act)

    def _once(self, key: str, kind: type[Response], act: Callable[[Store], Response]) -> Response:
        """Perform `act` and return its answer. If the key already has an answer, return that answer as an object of
        class `kind`, and do not perform `act`.

        The key is stored before `act` and the answer after it, each in a transaction of its own. If `act` raises an
        error, the key is freed, so that the request can be repeated (`_settle`). If no answer is stored, because the
        process ended, the first request with the key after `idempotency_keys.TAKEN_OVER_AFTER_SECONDS` performs `act`
        again. `act` must therefore be safe to repeat.

        Raises the errors of `act`, of `_begin` and of `_settle`.
        """
        store = self.acting.app.store
        begun = self._begin(store, key)
        if not isinstance(begun, Reservation):
            return kind.model_validate(begun)
        try:
            answer = act(store)
        except Exception:
            _settle(store, begun, idempotency_keys.free)
            raise
        _settle(store, begun, idempotency_keys.finish, answer.model_dump(mode="json"))
        return answer

    def _begin(self, store: Store, key: str) -> Reservation | Mapping[str, Any]:
        """Reserve the key in a transaction of its own, or return the stored answer (`idempotency_keys.begin`).

        Raises the errors of the transaction; Conflict if the subject of the token has used the key with another
        digest; and Retryable if the key has no answer yet and was stored within
        `idempotency_keys.TAKEN_OVER_AFTER_SECONDS`.
        """
        begun = None
        try:
            with store.transaction() as tx:
                begun = idempotency_keys.begin(tx, self.acting.grant.subject, key, self.digest)
        except StoreUnavailable:
            if isinstance(begun, Reservation):  # the COMMIT failed, and may have taken effect
                _settle(store, begun, idempotency_keys.free)
            raise
        return begun

    @property
    def _journal_key(self) -> str | None:
        """Key in the journal, the same for repeated requests with an idempotency key. None for any other request, which gets a new key."""
        if self.key is None or self.dry_run:
            return None
        return f"api-{hashlib.sha256(f'{self.acting.grant.subject} {self.key}'.encode()).hexdigest()[:32]}"


def _settle(
    store: Store,
    reservation: Reservation,
    settle: Callable[Concatenate[Connection, Reservation, Arguments], None],
    *arguments: Arguments.args,
    **keywords: Arguments.kwargs,
) -> None:
    """Call `settle`, which is `idempotency_keys.finish` or `free`, in a transaction of its own.

    If PostgreSQL is unavailable, a background thread repeats the call, because only this process knows that the
    request has ended. The thread stops when another request may take the key over. The threads are few, because
    without PostgreSQL no further request gets a reservation. Raises Terminal errors of the transaction.
    """
    settling = partial(store.in_transaction, settle, reservation, *arguments, **keywords)
    try:
        settling()
    except Retryable as error:
        log.warning(_NOT_SETTLED, request_key=reservation.key, error=str(error))
        start_thread("idempotency-key", _settle_later, reservation, settling)


def _settle_later(reservation: Reservation, settling: Callable[[], None]) -> None:
    """Repeat the call until it succeeds, for at most `idempotency_keys.TAKEN_OVER_AFTER_SECONDS`. Any error at the end is logged."""
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Retryable),
        wait=tenacity.wait_exponential(multiplier=0.1, max=1.0),
        stop=tenacity.stop_after_delay(idempotency_keys.TAKEN_OVER_AFTER_SECONDS),
        reraise=True,
    )
    with contained(log, _NOT_SETTLED, request_key=reservation.key):
        attempts(settling)


class ChangeQuery(BaseModel):
    """The query of a change. Other parameters are refused, because a misspelt `dry_run` would otherwise make the change."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = Field(False, description="Run all checks, return what would happen, and change nothing.")


class WaitedQuery(ChangeQuery):
    """The query of a change that becomes an operation."""

    wait_seconds: float = Field(
        0.0,
        ge=0.0,
        le=LONGEST_WAIT_SECONDS,
        description="Seconds to wait for the operation to end. The answer has the state of the operation in any case.",
        examples=[30.0],
    )


Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=PRINTABLE,
        description="A text that is unique for each change. A repeated request with the same key gets the first answer.",
        examples=["orders-monday-1"],
    ),
]


async def _change(
    request: HttpRequest, acting: HttpCaller, query: Annotated[ChangeQuery, Query()], key: Key = None
) -> Change:
    """Return the change that the request describes. Stores the idempotency key in the state of the request, for the audit."""
    request.state.request_key = key
    path, query_text = request.scope["path"].encode(), request.scope["query_string"]
    requested = request.method.encode() + b" " + path + b"?" + query_text + b"\n" + await request.body()
    return Change(acting, query.dry_run, 0.0, key, hashlib.sha256(requested).hexdigest())


async def _waited_change(
    request: HttpRequest, acting: HttpCaller, query: Annotated[WaitedQuery, Query()], key: Key = None
) -> Change:
    """Return the change of `_change` with the wait for its operation."""
    return replace(await _change(request, acting, query, key), wait_seconds=query.wait_seconds)


Changing = Annotated[Change, Depends(_change)]
WaitedChanging = Annotated[Change, Depends(_waited_change)]
"""A change that becomes an operation, for whose end the request may wait."""
