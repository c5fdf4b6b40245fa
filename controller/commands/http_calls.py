"""Calls of `/api/v1`: lists page by page, changes with a key of their own, and the wait for what they led to.

A call that reached nobody, or was not answered whole, is made again for a moment; a change with the same key, so that it is made once.
Other refusals are the server's, with its reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import tenacity
from pydantic import BaseModel, ValidationError

from controller.actions.fields import PATH_FORMS
from controller.actions.responses import read_instants
from controller.client.servers import Servers, path_part
from controller.domain.errors import InvalidInput, Retryable, StoreUnavailable, Terminal, TokenOutOfTime
from controller.domain.names import CLUSTER
from controller.domain.operation import OperationState
from controller.domain.shown import shown

if TYPE_CHECKING:
    from controller.actions.action import AnyAction
    from controller.actions.context import Options
    from controller.actions.responses import Answer
    from controller.questions.question import Question, QuestionRequest

Row = dict[str, Any]

API = "/api/v1"
CALL_SECONDS = 30.0
"""For one answer; a list of 1,000 operations takes a second."""
TRIED_AGAIN_SECONDS = 2.0
"""So long a call is made again that reached nobody. Longer is for the one who waits in front of it to decide."""
LONGEST_WAIT_SECONDS = 60.0
"""For an operation within one call, as the server allows; from then on it is asked how far it is."""
PAGE = 1000
_FORMS = {
    "topic": "topic://tenant/namespace/name",
    "namespace": "tenant/namespace",
    "bundle": "tenant/namespace/0x00000000_0x40000000",
}


@dataclass(frozen=True, slots=True)
class Calls:
    """Of one server, at the address that `url` says."""

    servers: Servers
    url: str
    tried_again_seconds: float = TRIED_AGAIN_SECONDS

    def get(self, path: str, **query: Any) -> Any:
        """One answer; what is None is not asked."""
        return self._ask("GET", path, query=_given(query))

    def look(self, path: str, document: Mapping[str, Any]) -> Any:
        """A question that takes a document and changes nothing."""
        return self._ask("POST", path, document=document)

    def pages(self, path: str, *, limit: int | None = None, **query: Any) -> Iterator[Row]:
        """Yield the items of a list, `limit` at most, page by page; their instants are instants."""
        page, left = None, limit
        while left is None or left > 0:
            asked = PAGE if left is None else min(PAGE, left)
            answer = self.get(path, limit=asked, page=page, **query)
            items, page = (told(answer, name) for name in ("items", "next"))
            yield from map(read_instants, items)
            if page is None:
                return
            left = None if left is None else left - len(items)

    def change(
        self,
        method: str,
        path: str,
        document: object,
        dry_run: bool,
        *,
        answer_seconds: float = CALL_SECONDS,
        **query: Any,
    ) -> Any:
        """A change's answer, for which the server may take so long beside `wait_seconds`. It has a key of its own, so that what is
        asked twice is done once.
        """
        waited = float(query.get("wait_seconds") or 0.0)
        return self._ask(
            method,
            path,
            document=document,
            query=_given({"dry_run": "true" if dry_run else None, **query}),
            headers={"Idempotency-Key": f"cli-{os.urandom(16).hex()}"},
            timeout_seconds=waited + answer_seconds,
        )

    def perform(self, action: AnyAction, request: BaseModel, options: Options) -> Answer:
        """Perform the action on the server, and wait for its operation as the options say."""
        from controller.actions.responses import OperationResponse

        request = self._completed(action, request)
        if action.reads:
            return _answer_of(action, self._read(action, request))
        wait_seconds = 0.0 if options.dry_run else min(options.wait_seconds, LONGEST_WAIT_SECONDS)
        answer = self.change(
            action.method,
            API + _path_of(action, request),
            _rest_of(action, request),
            options.dry_run,
            answer_seconds=action.answer_seconds,
            wait_seconds=wait_seconds if action.is_waited_for and wait_seconds else None,
        )
        response = _answer_of(action, answer)
        if isinstance(response, OperationResponse) and not options.dry_run and options.wait_seconds > 0:
            now = self.ended(
                {"state": response.state, "epoch": response.epoch, "operation_id": response.operation_id},
                options.wait_seconds - wait_seconds,
            )
            return response.model_copy(update=now)
        return response

    def _read(self, action: AnyAction, request: BaseModel) -> Any:
        path, fields = API + _path_of(action, request), _rest_of(action, request)
        return self.get(path, **fields) if action.method == "GET" else self.look(path, fields)

    def _completed(self, action: AnyAction, request: BaseModel) -> BaseModel:
        """Return the request with the fields of the path that the caller has left out, as the lookup of the action has them."""
        missing = [name for name in action.path_fields if getattr(request, name) is None]
        if action.lookup is None or not missing:
            return request
        document = self.get(API + action.lookup.format_map(request.model_dump(mode="json")))
        return request.model_copy(update={name: told(document, name) for name in missing})

    def ask(self, question: Question, request: QuestionRequest, *, limit: int | None) -> Iterator[Row]:
        """Yield the answers, `limit` at most, page by page; their instants are instants."""
        path = API + _path_of(question, request)
        if question.one_row:
            yield read_instants(self.get(path))
            return
        filters = request.model_dump(
            mode="json",
            by_alias=True,
            exclude=set(question.path_fields),
            exclude_none=True,
            exclude_defaults=True,
        )
        yield from self.pages(path, limit=limit, **filters)

    def ended(self, operation: Row, wait_seconds: float) -> Row:
        """The operation once it has ended, or as it is after so long."""
        if not OperationState(operation["state"]).is_live:
            return operation
        look = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda one: OperationState(one["state"]).is_live),
            wait=tenacity.wait_exponential(multiplier=0.05, max=1.0),
            stop=tenacity.stop_after_delay(wait_seconds),
            retry_error_callback=lambda last: last.outcome and last.outcome.result(),
        )
        found: Row = look(self._operation, operation)
        return found

    def _operation(self, before: Row) -> Row:
        """As it is now, with the keys of `before`."""
        now = self.get(f"{API}/operations/{before['operation_id']}")
        now["children"] = [one["segment_id"] for one in now["creates"]]
        return {key: now[key] for key in before}

    def _ask(self, method: str, path: str, **asked: Any) -> Any:
        call = _Repeated(lambda: self.servers.ask(method, path, **asked))
        try:
            return tenacity.Retrying(
                retry=tenacity.retry_if_exception(call.is_worth_another),
                wait=tenacity.wait_random_exponential(multiplier=0.05, max=0.5),
                stop=tenacity.stop_after_delay(self.tried_again_seconds),
                reraise=True,
            )(call)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ValueError):  # whole, and no JSON: a page of somebody else's
                raise Terminal(f"{error.message}; correct CLEAVE_API_URL or --api-url") from error
            if not _reached_nobody(error):
                raise
            raise StoreUnavailable(
                f"{error.message}; see that `cleave serve` or a worker is up at {self.url}, or correct CLEAVE_API_URL or --api-url"
            ) from error


def _path_of(declaration: AnyAction | Question, request: BaseModel) -> str:
    """Return the path of the declaration with the fields of the request that the path names."""
    return re.sub(
        r"{(\w+)}", lambda name: _in_path(name[1], str(getattr(request, name[1]))), declaration.path
    )


def _in_path(name: str, value: str) -> str:
    """Return the field as it stands in a path. Raises InvalidInput for a value that has not the parts of such a field."""
    if name == "level":
        return level_path(value)
    form = PATH_FORMS.get(name, f"{{{name}}}")
    names = re.findall(r"{(\w+)}", form)
    parts = value.removeprefix("topic://").split("/") if name in PATH_FORMS else [value]
    if name in PATH_FORMS and (len(parts) != len(names) or not all(parts)):
        raise InvalidInput(f"{shown(value)} is no name of a {name}; write {_FORMS[name]}")
    return form.format(**dict(zip(names, map(path_part, parts), strict=True)))


def level_path(level: str) -> str:
    """Return the path of a level of policy, below `/policies`."""
    parts = "/".join(path_part(part) for part in level.removeprefix("topic://").split("/"))
    if level == CLUSTER:
        return parts
    return f"topics/{parts}" if "://" in level else f"namespaces/{parts}"


def _rest_of(action: AnyAction, request: BaseModel) -> dict[str, Any]:
    """Return the fields that the path does not name."""
    return request.model_dump(mode="json", by_alias=True, exclude=set(action.path_fields), exclude_none=True)


def _answer_of(action: AnyAction, answer: Any) -> Answer:
    try:
        response: Answer = action.response.model_validate(answer)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise Terminal(
            f"the server's answer has no {where!r}, or another kind of value; see that it is Cleave, and of this command's version"
        ) from None
    return response


class _Repeated:
    """A call, which knows whether it was made before: what it is told then may be about its own first time."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._was_lost = False

    def __call__(self) -> Any:
        return self._call()

    def is_worth_another(self, error: BaseException) -> bool:
        """Whether it got lost, or its first time, which got lost, is still being answered; or a fresh token may be taken."""
        if isinstance(error, StoreUnavailable) and _reached_nobody(error):
            self._was_lost = True
            return True
        return isinstance(error, TokenOutOfTime) or (self._was_lost and isinstance(error, Retryable))


def _reached_nobody(error: StoreUnavailable) -> bool:
    return isinstance(error.__cause__, httpx.HTTPError)


def told(document: Any, name: str) -> Any:
    """A part of an answer. Raises Terminal where there is none, as from a server of another version, or of something else."""
    if not isinstance(document, Mapping) or name not in document:
        raise Terminal(
            f"the server's answer has no {name!r}; see that it is Cleave, and of this command's version"
        )
    return document[name]


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}
