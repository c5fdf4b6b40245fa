"""Changes over HTTP: dry runs (`dry_run`), and repeated requests that are performed once (`Idempotency-Key`).

A dry run executes the same code on a store that rolls back, like `--dry-run` of the commands. A key belongs to one request of one token
holder: a repeated request gets the first answer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Query
from fastapi import Request as HttpRequest
from pydantic import BaseModel

from controller.actions.action import AnyAction, perform_in
from controller.actions.context import Context, Options
from controller.actions.dry_run import store_for
from controller.actions.responses import Response
from controller.bootstrap import Application
from controller.services.computing.computers import Computation
from controller.store import idempotency_keys
from controller.store.postgres.engine import Store
from controller.web.http_caller import Acting, HttpCaller
from controller.web.paths import PRINTABLE

Answer = TypeVar("Answer", bound=BaseModel)
LONGEST_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """A request for a change. `key` is the client's idempotency key; `digest` identifies the method, path, query and body that the key
    belongs to.
    """

    acting: Acting
    dry_run: bool
    key: str | None
    digest: str

    @property
    def app(self) -> Application:
        """The application that carries out the change."""
        return self.acting.app

    @property
    def actor(self) -> str:
        """The subject of the token."""
        return self.acting.grant.subject

    def once(self, kind: type[Answer], act: Callable[[Store], Answer]) -> Answer:
        """Return the answer of `act`, of its dry run, or the first answer to the key. `kind` is the class of the answer.

        A request with a key stores the key before `act` and the answer after it, each in a transaction of its own. If `act` raises an
        error, the key is freed, so that the request can be repeated. A first request without an answer for
        `idempotency_keys.TAKEN_OVER_AFTER_SECONDS` is performed again. A dry run stores no key. Raises the errors of `act`, Conflict for a
        key of another request, and Retryable while the first request with the key is being answered.
        """
        if self.dry_run or self.key is None:
            with store_for(self.app, self.dry_run) as store:
                return act(store)
        store = self.app.store
        with store.transaction() as tx:
            first = idempotency_keys.begin(tx, self.actor, self.key, self.digest)
        if first is not None:
            return kind.model_validate(first)
        try:
            answer = act(store)
        except Exception:
            with store.transaction() as tx:
                idempotency_keys.free(tx, self.actor, self.key)
            raise
        with store.transaction() as tx:
            idempotency_keys.finish(tx, self.actor, self.key, answer.model_dump(mode="json"))
        return answer

    def perform(
        self,
        action: AnyAction,
        request: BaseModel,
        wait_seconds: float = 0.0,
        computation: Computation | None = None,
    ) -> Response:
        """Perform the action, or its dry run, and return the response; a repeated request with the same key gets the first response.
        `wait_seconds` bounds the wait for an operation; `computation` is the turn of an action that computes. Raises the errors of the
        action and of `once`.
        """
        caller = self.acting.caller(self.request_key)
        options = Options(self.dry_run, wait_seconds)
        answer: Response = self.once(
            action.response,
            lambda store: perform_in(Context(self.app, store, caller, options, computation), action, request),
        )
        return answer

    @property
    def request_key(self) -> str:
        """Key of the change in the journal: the same for repeated requests with an idempotency key, else a new key."""
        return self._journal_key or f"api-{os.urandom(8).hex()}"

    @property
    def _journal_key(self) -> str | None:
        """Key in the journal, which all callers share; None where the request has no key."""
        if self.key is None or self.dry_run:
            return None
        return f"api-{hashlib.sha256(f'{self.actor} {self.key}'.encode()).hexdigest()[:32]}"


async def _change(
    request: HttpRequest,
    acting: HttpCaller,
    dry_run: Annotated[
        bool,
        Query(description="Run all checks, return what would happen, and change nothing."),
    ] = False,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=200,
            pattern=PRINTABLE,
            description="A text that is unique for each change. A repeated request with the same key gets the first answer.",
            examples=["orders-monday-1"],
        ),
    ] = None,
) -> Change:
    """Return the change that the request describes. Stores the idempotency key in the state of the request, for the audit."""
    request.state.request_key = key
    path, query = request.scope["path"].encode(), request.scope["query_string"]
    requested = request.method.encode() + b" " + path + b"?" + query + b"\n" + await request.body()
    return Change(acting, dry_run, key, hashlib.sha256(requested).hexdigest())


Changing = Annotated[Change, Depends(_change)]
Wait = Annotated[
    float,
    Query(
        ge=0.0,
        le=LONGEST_WAIT_SECONDS,
        description="Seconds to wait for the operation to end. The answer has the state of the operation in any case.",
        examples=[30.0],
    ),
]
