"""Calls of `/api/v1`: lists in pages, changes with an idempotency key, and the wait for operations.

A call that did not reach the server, or whose answer was incomplete, is repeated for `TRIED_AGAIN_SECONDS`. A repeated change has the same
key, so that it is performed once. Other errors have the server's reason.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import tenacity
from pydantic import BaseModel, ValidationError

from controller.actions.fields import PATH_FORMS
from controller.actions.instant_columns import read_instants
from controller.client.servers import Servers, path_part
from controller.domain.errors import (
    InvalidInput,
    Retryable,
    StoreRefused,
    StoreUnavailable,
    Terminal,
    TokenOutOfTime,
)
from controller.domain.formatting import shown
from controller.domain.names import CLUSTER
from controller.domain.operation import OperationState

if TYPE_CHECKING:
    from controller.actions.action import AnyAction
    from controller.actions.context import Options
    from controller.actions.responses import Answer, OperationDocument
    from controller.questions.question import Question, QuestionRequest

Row = dict[str, Any]
OperationT = TypeVar("OperationT", bound="OperationDocument")

API = "/api/v1"
CALL_SECONDS = 30.0
"""Timeout of one answer; a list of 1,000 operations takes a second."""
TRIED_AGAIN_SECONDS = 2.0
"""Seconds for which a call that did not reach the server is repeated. The user decides about longer waits."""
LONGEST_WAIT_SECONDS = 60.0
"""Longest wait for an operation within one call, as the server allows. Afterwards the operation is polled."""
PAGE = 1000
_FORMS = {
    "topic": "topic://tenant/namespace/name",
    "namespace": "tenant/namespace",
    "bundle": "tenant/namespace/0x00000000_0x40000000",
}


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of the server at `url`. Paths begin with `API`. Each call raises StoreUnavailable if the server does not answer,
    Terminal if the answer is not Cleave's, and the errors that the server reports.
    """

    servers: Servers
    url: str
    tried_again_seconds: float = TRIED_AGAIN_SECONDS

    def perform(self, action: AnyAction, request: BaseModel, options: Options) -> Answer:
        """Perform the action on the server, and return its answer; of an action that has parts, perform the first part only. A change has a
        key of its own, so that a repeated request is performed once; an action that changes nothing has no key.

        If the answer is about operations, wait for their ends as long as the options say: up to LONGEST_WAIT_SECONDS within the call, then
        by polling. An operation that takes longer is returned in its present state. A dry run does not wait.
        """
        request = self._completed(action, request)
        path, fields = API + _path_of(action, request), _rest_of(action, request)
        if action.reads:
            sent = {"query": fields} if action.method == "GET" else {"document": fields}
            return _answer_of(action, self._ask(action.method, path, **sent))
        wait_seconds = 0.0 if options.dry_run else min(options.wait_seconds, LONGEST_WAIT_SECONDS)
        waited = wait_seconds if action.is_waited_for else 0.0
        query: dict[str, Any] = {"dry_run": "true"} if options.dry_run else {}
        answer = self._ask(
            action.method,
            path,
            document=fields,
            query=query | ({"wait_seconds": waited} if waited else {}),
            headers={"Idempotency-Key": f"cli-{os.urandom(16).hex()}"},
            timeout_seconds=waited + action.answer_seconds,
        )
        response = _answer_of(action, answer)
        if options.dry_run or options.wait_seconds <= 0:
            return response
        return self._at_end(response, options.wait_seconds - wait_seconds)

    def _at_end(self, response: Answer, wait_seconds: float) -> Answer:
        """Wait for the operations of the response to end, `wait_seconds` at most, and return the response with their present states. A
        response about anything else is returned unchanged.
        """
        from controller.actions.responses import CancelledSeeks, OperationResponse

        if isinstance(response, OperationResponse):
            return self._operation_at_end(response, wait_seconds)
        if isinstance(response, CancelledSeeks):
            ends_at = time.monotonic() + wait_seconds
            operations = [
                self._operation_at_end(operation, ends_at - time.monotonic())
                for operation in response.operations
            ]
            return response.model_copy(update={"operations": operations})
        return response

    def _operation_at_end(self, operation: OperationT, wait_seconds: float) -> OperationT:
        """Wait for the operation to end, `wait_seconds` at most, and return it with its present state, epoch and error. An operation that
        has not ended is read at least once; an operation that has ended is returned unchanged. StoreUnavailable is
        raised at the end of the wait, StoreRefused and TokenOutOfTime at once; the message names the operation.
        """
        if not OperationState(operation.state).is_live:
            return operation
        look = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda present: OperationState(present.state).is_live)
            | tenacity.retry_if_exception(_may_pass),
            wait=tenacity.wait_exponential(multiplier=0.05, max=1.0),
            stop=tenacity.stop_after_delay(wait_seconds),
            retry_error_callback=lambda last: last.outcome and last.outcome.result(),
        )
        try:
            final: OperationT = look(self._present, operation)
        except StoreUnavailable as error:
            raise type(error)(
                f"the state of operation {operation.operation_id} is unknown: {error}"
            ) from error
        return final

    def _present(self, operation: OperationT) -> OperationT:
        """Read the operation again, and return it with its present state, epoch and error."""
        row = self._ask("GET", f"{API}/operations/{operation.operation_id}")
        return operation.model_copy(update={name: row[name] for name in ("state", "epoch", "last_error")})

    def _completed(self, action: AnyAction, request: BaseModel) -> BaseModel:
        """Return the request, in which fields of the path that are None are read from the action's lookup document. An action without a
        lookup: the request unchanged.
        """
        missing = [name for name in action.path_fields if getattr(request, name) is None]
        if action.lookup is None or not missing:
            return request
        document = self._ask("GET", API + action.lookup.format_map(request.model_dump(mode="json")))
        return request.model_copy(update={name: _required_field(document, name) for name in missing})

    def ask(self, question: Question, request: QuestionRequest, *, limit: int | None) -> Iterator[Row]:
        """Yield the rows that answer the question in the server's order, `limit` at most (None: all), with instants as datetimes. A page is
        requested when its first row is needed. A question of one row yields this row. Parameters with their default values are not sent.
        Raises Terminal for a page without `items` or `next`.
        """
        path = API + _path_of(question, request)
        if question.one_row:
            yield read_instants(self._ask("GET", path))
            return
        query = request.model_dump(
            mode="json",
            by_alias=True,
            exclude=set(question.path_fields),
            exclude_none=True,
            exclude_defaults=True,
        )
        remaining = limit
        while remaining is None or remaining > 0:
            query["limit"] = PAGE if remaining is None else min(PAGE, remaining)
            answer = self._ask("GET", path, query=query)
            items, query["page"] = (_required_field(answer, name) for name in ("items", "next"))
            yield from map(read_instants, items)
            if query["page"] is None:
                return
            remaining = None if remaining is None else remaining - len(items)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        """Call the server and return the JSON of its response. For `tried_again_seconds`, repeat a call without a complete answer (after a
        lost answer also on any other Retryable error), and a call that was refused with TokenOutOfTime. Raises StoreUnavailable with the
        server's address if no answer arrives, Terminal if the response is not JSON, and the errors that the server reports.
        """
        try:
            return _repeating(self.tried_again_seconds)(self.servers.ask, method, path, **options)
        except StoreUnavailable as error:
            if isinstance(
                error.__cause__, ValueError
            ):  # a complete answer without JSON comes from another program
                raise Terminal(f"{error.message}; correct CLEAVE_API_URL or --api-url") from error
            if not _did_not_arrive(error):
                raise
            raise StoreUnavailable(
                f"{error.message}; check that `cleave serve` or a worker is running at {self.url}, or correct CLEAVE_API_URL or --api-url"
            ) from error


def _path_of(declaration: AnyAction | Question, request: BaseModel) -> str:
    """Return the declaration's path below `API`, with the escaped values of the request in place of the fields in braces. Raises
    InvalidInput for a name of another form.
    """
    return re.sub(
        r"{(\w+)}", lambda name: _in_path(name[1], str(getattr(request, name[1]))), declaration.path
    )


def _in_path(name: str, value: str) -> str:
    """Return the text of the field `name` in a path, escaped; the name of a topic, namespace or bundle is divided into its parts, and a
    `level` becomes its `level_path`. Raises InvalidInput for a topic, namespace or bundle with another number of parts or an empty part,
    and for a text without a UTF-8 form. The form of other values, such as a level, is not checked.
    """
    if name == "level":
        return level_path(value)
    form = PATH_FORMS.get(name, f"{{{name}}}")
    names = re.findall(r"{(\w+)}", form)
    parts = value.removeprefix("topic://").split("/") if name in PATH_FORMS else [value]
    if name in PATH_FORMS and (len(parts) != len(names) or not all(parts)):
        raise InvalidInput(f"{shown(value)} is no name of a {name}; write {_FORMS[name]}")
    return form.format(**dict(zip(names, map(path_part, parts), strict=True)))


def level_path(level: str) -> str:
    """Return the path of a level of policy (`cluster`, a namespace, or a topic with `://`): `cluster`, `namespaces/{tenant}/{namespace}` or
    `topics/{tenant}/{namespace}/{name}`, with escaped names. The form of the level is not checked. Raises InvalidInput for a level
    without a UTF-8 form.
    """
    parts = "/".join(path_part(part) for part in level.removeprefix("topic://").split("/"))
    if level == CLUSTER:
        return parts
    return f"topics/{parts}" if "://" in level else f"namespaces/{parts}"


def _rest_of(action: AnyAction, request: BaseModel) -> dict[str, Any]:
    """Return the fields of the request that the path does not name, as JSON, without fields that are None."""
    return request.model_dump(mode="json", by_alias=True, exclude=set(action.path_fields), exclude_none=True)


def _answer_of(action: AnyAction, answer: Any) -> Answer:
    """Return the server's answer as the response of the action. Raises Terminal if a field is missing or has another type."""
    try:
        response: Answer = action.response.model_validate(answer)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise Terminal(
            f"the server's answer has no {where!r}, or another kind of value; check that the server is Cleave and has the version of this command"
        ) from None
    return response


def _repeating(seconds: float) -> tenacity.Retrying:
    """Return a retry of one call, for `seconds`. It repeats the call if no complete answer arrived, and on TokenOutOfTime. After a lost
    answer it repeats the call on any Retryable error too, because the lost attempt may still be in progress. Other errors, and the last
    error after `seconds`, are raised.
    """
    was_lost = False

    def is_worth_another(error: BaseException) -> bool:
        nonlocal was_lost
        if isinstance(error, StoreUnavailable) and _did_not_arrive(error):
            was_lost = True
            return True
        return isinstance(error, TokenOutOfTime) or (was_lost and isinstance(error, Retryable))

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_worth_another),
        wait=tenacity.wait_random_exponential(multiplier=0.05, max=0.5),
        stop=tenacity.stop_after_delay(seconds),
        reraise=True,
    )


def _may_pass(error: BaseException) -> bool:
    """Return True if the server or its PostgreSQL is unavailable. False for any other error, for an expired token, and if PostgreSQL refuses
    the server's login.
    """
    return isinstance(error, StoreUnavailable) and not isinstance(error, StoreRefused | TokenOutOfTime)


def _did_not_arrive(error: StoreUnavailable) -> bool:
    """Return True if the error means that the call did not reach the server, or its answer did not arrive completely."""
    return isinstance(error.__cause__, httpx.HTTPError)


def _required_field(document: Any, name: str) -> Any:
    """Return a field of an answer, which may be None. Raises Terminal if the answer is not a mapping or does not have the field, as with
    another version or another program.
    """
    if not isinstance(document, Mapping) or name not in document:
        raise Terminal(
            f"the server's answer has no {name!r}; check that the server is Cleave and has the version of this command"
        )
    return document[name]
