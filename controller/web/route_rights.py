"""The right that each route demands. A route declares exactly one: `dependencies=[READ]` on the route or on its router.

The right is checked before the body of a request is read, on the topic or namespace that the path names. The server of the app identifies
the caller: by a token of `cleave token`, or as a user of Airflow.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import lru_cache, partial
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Security
from fastapi import Request as HttpRequest
from fastapi.dependencies.models import Dependant
from fastapi.responses import Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from controller.actions.rights import Right
from controller.domain.errors import AccessDenied, InvalidInput, InvariantViolated, TokenOutOfTime
from controller.domain.utf8 import demand_utf8
from controller.web import access
from controller.web.access import Grant
from controller.web.body_size import MOST_BRACKETS, MOST_COMMAS, has_too_many_values
from controller.web.request_slots import Slots, use_of

Who = Callable[[HttpRequest], Awaitable[Grant]]
"""Returns the grant of the sender of a request. Raises AccessDenied for an unknown sender, TokenOutOfTime if a new token may be accepted."""

_BEARER = HTTPBearer(auto_error=False, bearerFormat="JWT", description="A token of `cleave token`.")
MOST_NESTED = 32
"""Maximum depth of objects and lists in a body; no call needs half of it."""
MOST_TOKENS = 4096
"""Number of valid tokens that are remembered, each up to the size of a request's headers; most clients share one."""
_TOO_DEEP = HTTPException(400, "the body is nested too deeply; send the fields that are documented")
_TOO_MANY = HTTPException(
    400,
    f"the body has more than {MOST_BRACKETS} opening brackets or {MOST_COMMAS} commas; send fewer values in a request",
)
_PARAMETER = re.compile(r"{[^}]*}")
_DEMANDS: dict[Callable[..., object], Right] = {}


def _demanding(right: Right) -> Callable[..., Awaitable[None]]:
    """Return a dependency that declares the right of a route, and record the right in `_DEMANDS`. The dependency checks nothing itself."""

    async def demanded(_token: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]) -> None:
        """Declare the right, which `DemandingRoute` demands."""

    _DEMANDS[demanded] = right
    return demanded


class DemandingRoute(APIRoute):
    """A route that demands its right before it reads the body of a request, and then takes a slot for the holder of the token.

    A request whose body is still arriving holds no slot; its connection is in the lobby, and a large body counts in the limits of
    `Slots.body`.
    """

    def get_route_handler(self) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, preceded by these steps: demand the right, receive the whole body, take a slot,
        and remove the connection from the connections without an admitted request (`Lobby`). `GivesBack` frees the
        slot.

        The handler raises the errors of `_grant_of_sender`, `Slots.body`, `JsonRequest.arrive` and `Slots.take`; the
        route is not called then.
        """
        handle = super().get_route_handler()

        async def demanding(request: HttpRequest) -> Response:
            grant = await self._grant_of_sender(request)
            slots: Slots = request.app.state.slots
            whole = JsonRequest(request.scope, request.receive)
            with slots.body(grant.subject, whole.size):
                await whole.arrive()
                slots.take(grant.subject, use_of(self.path))
                request.state.slot_of = grant.subject
                connection = request.scope["state"].get("connection")
                if connection is not None:
                    connection.admit()
                return await handle(whole)

        return demanding

    async def _grant_of_sender(self, request: HttpRequest) -> Grant:
        """Return the grant of the sender. Store the right in the state of the request, and the grant once the sender is identified, even if
        the request is then refused.

        Raises AccessDenied or TokenOutOfTime for a sender that cannot be identified, and AccessForbidden if the sender does not have the
        right on the topic or namespace in the path.
        """
        (right,) = rights_of(self)
        request.state.right = right
        identify: Who = request.app.state.who
        try:
            grant = await identify(request)
        except (AccessDenied, TokenOutOfTime) as error:
            raise type(error)(f"{error.message}; this call needs role {access.roles_with(right)}") from None
        request.state.grant = grant
        path = request.path_params
        names = [str(path[part]) for part in ("tenant", "namespace", "topic") if part in path]
        namespace = "/".join(names[:2]) if len(names) >= 2 else None
        topic = f"topic://{'/'.join(names)}" if len(names) == 3 else None
        grant.demand(right, topic=topic, namespace=namespace)
        return grant


class JsonRequest(HttpRequest):
    """A request that waits for its whole body, and refuses a body that does not arrive or is nested too deeply."""

    @property
    def size(self) -> int:
        """Announced bytes of the body. 0 for a request without Content-Length, which has no body."""
        return int(self.headers.get("content-length", "0"))

    async def arrive(self) -> None:
        """Wait until the whole body has arrived. Return at once for a request without a body. Raises HTTPException (400) if the client
        disconnects first.
        """
        if not self.size:
            return
        try:
            await self.body()
        except ClientDisconnect:
            raise HTTPException(400, "the body has not arrived; send it again") from None

    async def json(self) -> Any:
        """Return the body as Python values. Raises HTTPException (400) for a body that has too many values, is not UTF-8, is nested too
        deeply, contains a string without a UTF-8 form or an integer with too many digits; raises JSONDecodeError, as FastAPI expects, for
        text that is not JSON.
        """
        body = await self.body()
        if has_too_many_values(body):
            raise _TOO_MANY
        try:
            document = _decoded(body)
            if _is_deeper(document, MOST_NESTED):
                raise _TOO_DEEP
        except RecursionError:
            raise _TOO_DEEP from None
        except json.JSONDecodeError:
            raise
        except UnicodeDecodeError as error:
            raise HTTPException(
                400, f"the body is not UTF-8 from byte {error.start} on; send JSON in UTF-8"
            ) from error
        except (ValueError, InvalidInput) as error:
            raise HTTPException(400, f"the body cannot be read: {error}") from error
        return document


def _decoded(body: bytes) -> Any:
    """Return the body as Python values, NaN and infinity included. Raises JSONDecodeError or UnicodeDecodeError, which name the position of
    the error; RecursionError for a body that is nested too deeply to be parsed, ValueError for an integer with too many digits for Python,
    and InvalidInput for a string without a UTF-8 form.
    """
    try:
        return msgspec.json.decode(body)  # accepts no lone surrogate, so its strings have a UTF-8 form
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Python's decoder names the position of an error, and accepts NaN, infinity and lone surrogates.
        document = json.loads(body.decode("utf-8-sig"))
        demand_utf8(document, "the body")
        return document


def _is_deeper(document: Any, limit: int) -> bool:
    """Return True if the objects and lists of the document are nested more than `limit` deep (1 or more). Any other value has depth 0.
    No depth raises RecursionError.
    """
    holders = (dict, list)  # a tuple, because `dict | list` would be built again for each item
    level = [document] if isinstance(document, holders) else []
    for _ in range(limit):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, holders)
        ]
        if not level:
            return False
    return True


def token_holder(secret: str) -> Who:
    """Return a function that returns the grant of a request from the token in its header `Authorization`. The token
    must be signed with `secret`. The function raises the errors of `access.read`. A valid token is verified once and
    remembered, and verified again at each request after the token has expired.
    """
    read = partial(access.read, secret)
    read_once = lru_cache(MOST_TOKENS)(read)  # errors are not kept, so strangers cannot fill it

    async def identify(request: HttpRequest) -> Grant:
        header = request.headers.get("authorization")
        grant = read_once(header)
        return grant if time.time() < grant.ends_at else read(header)

    return identify


DEMAND_OF: Mapping[Right, Any] = {right: Depends(_demanding(right)) for right in Right}
"""For each right, the dependency that declares it for a route."""

LOOK_UP, CONSUME, READ, OPERATE, ADMINISTER, WRITE_LOAD = DEMAND_OF.values()


async def grant_of(request: HttpRequest) -> Grant:
    """Return the grant of the sender, which `DemandingRoute` has stored in the state of the request after it checked the right."""
    grant: Grant = request.state.grant
    return grant


Holder = Annotated[Grant, Depends(grant_of)]


def rights_of(route: APIRoute) -> list[Right]:
    """Return the rights that the route and its router declare: exactly one for a valid route."""
    return [_DEMANDS[call] for call in _calls(route.dependant) if call in _DEMANDS]


def demand_rights(app: FastAPI) -> None:
    """Check that each route demands exactly one right before it reads a body, and that no two routes of one method
    have paths that differ only in the names of parameters. Raises InvariantViolated, which names the first wrong
    route. Does not detect a fixed path that a parameter of another route also matches.
    """
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    calls = Counter(
        (method, _PARAMETER.sub("{}", route.path)) for route in routes for method in route.methods
    )
    for (method, path), count in calls.items():
        if count > 1:
            raise InvariantViolated(
                f"{count} routes answer {method} {path}; give each call a path of its own"
            )
    for route in routes:
        if len(rights_of(route)) != 1:
            raise InvariantViolated(
                f"route {route.path} declares {len(rights_of(route))} rights; give it one, such as dependencies=[READ]"
            )
        if not isinstance(route, DemandingRoute):
            raise InvariantViolated(
                f"route {route.path} reads bodies before it demands its right; make its router with route_class=DemandingRoute"
            )


def _calls(dependant: Dependant) -> Iterator[Callable[..., object]]:
    """Yield the function of the dependency, then those of its own dependencies at any depth."""
    if dependant.call is not None:
        yield dependant.call
    for dependency in dependant.dependencies:
        yield from _calls(dependency)
