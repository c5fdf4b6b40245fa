"""Changes over HTTP: dry runs (`dry_run`), and repeated requests that are performed once (`Idempotency-Key`).

A dry run executes the same code on a store that rolls back, like `--dry-run` of the commands. A key belongs to one request of one token
holder: a repeated request gets the first answer. How long keys and their answers are kept is in `store.idempotency_keys`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Query
from fastapi import Request as HttpRequest
from pydantic import BaseModel

from controller.actions.action import AnyAction
from controller.actions.context import Context, Options
from controller.actions.perform import perform_in, store_for
from controller.actions.responses import Response
from controller.services.computing.computers import Computation
from controller.store import idempotency_keys
from controller.store.postgres.engine import Store
from controller.web.http_caller import Acting, HttpCaller
from controller.web.paths import PRINTABLE

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

    def perform(
        self,
        action: AnyAction,
        request: BaseModel,
        wait_seconds: float = 0.0,
        computation: Computation | None = None,
    ) -> Response:
        """Perform the action, or its dry run, and return the response. A repeated request with the same idempotency
        key gets the response of the earlier request. If the earlier request failed, the action is performed again. A
        dry run ignores the key.

        `wait_seconds` is the maximum wait for the operation of the action; with 0 the response is returned once the
        intent is written. `computation` is the turn of an action that computes. Raises the errors of the action and
        of `_once`.
        """
        app, caller = self.acting.app, self.acting.caller(self._journal_key)
        options = Options(self.dry_run, wait_seconds)

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
        error, the key is freed, so that the request can be repeated. If no answer is stored, because the process
        ended or the last transaction failed, the first request with the key after
        `idempotency_keys.TAKEN_OVER_AFTER_SECONDS` performs `act` again. `act` must therefore be safe to repeat.

        Raises the errors of `act` and of the transactions; Conflict if the subject of the token has used the key with
        another digest; and Retryable if the key has no answer yet and was stored within that time.
        """
        store, actor = self.acting.app.store, self.acting.grant.subject
        with store.transaction() as tx:
            first = idempotency_keys.begin(tx, actor, key, self.digest)
        if first is not None:
            return kind.model_validate(first)
        try:
            answer = act(store)
        except Exception:
            with store.transaction() as tx:
                idempotency_keys.free(tx, actor, key)
            raise
        with store.transaction() as tx:
            idempotency_keys.finish(tx, actor, key, answer.model_dump(mode="json"))
        return answer

    @property
    def _journal_key(self) -> str | None:
        """Key in the journal, the same for repeated requests with an idempotency key. None for any other request, which gets a new key."""
        if self.key is None or self.dry_run:
            return None
        return f"api-{hashlib.sha256(f'{self.acting.grant.subject} {self.key}'.encode()).hexdigest()[:32]}"


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
