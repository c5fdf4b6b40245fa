"""The right that each route demands. A route declares exactly one: `dependencies=[READ]` on it or on its router.

It is looked at before anything else of a request. Where the path names a topic or a namespace, the right is demanded there.
Who asks is for whoever serves the app to say: by a token of `cleave token`, or as Airflow knows its users.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, Security
from fastapi import Request as HttpRequest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from controller.domain.errors import AccessDenied, InvariantViolated, TokenOutOfTime
from controller.entrypoints.web import access
from controller.entrypoints.web.access import Grant, Right

Who = Callable[[HttpRequest], Awaitable[Grant]]
"""Says what the sender of a request may do. Raises AccessDenied where it is nobody that is known, TokenOutOfTime where a fresh token may be."""

_BEARER = HTTPBearer(auto_error=False, bearerFormat="JWT", description="A token of `cleave token`.")
_DEMANDS: dict[Callable[..., object], Right] = {}


def _demanding(right: Right) -> Callable[..., Awaitable[Grant]]:
    async def demanded(
        request: HttpRequest,
        _token: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    ) -> Grant:
        request.state.right = right
        who: Who = request.app.state.who
        try:
            grant = await who(request)
        except (AccessDenied, TokenOutOfTime) as error:
            raise type(error)(f"{error.message}; this call is for role {access.roles_with(right)}") from None
        request.state.grant = grant
        path = request.path_params
        names = [str(path[one]) for one in ("tenant", "namespace", "topic") if one in path]
        namespace = "/".join(names[:2]) if len(names) >= 2 else None
        topic = f"topic://{'/'.join(names)}" if len(names) == 3 else None
        grant.demand(right, topic=topic, namespace=namespace)
        return grant

    _DEMANDS[demanded] = right
    return demanded


def token_holder(secret: str) -> Who:
    """Whoever holds the token in the header, as signed with the secret."""

    async def who(request: HttpRequest) -> Grant:
        return access.read(secret, request.headers.get("authorization"))

    return who


LOOK_UP = Depends(_demanding(Right.LOOK_UP))
"""Of one topic, or of what the token may know in a namespace."""
CONSUME = Depends(_demanding(Right.CONSUME))
READ = Depends(_demanding(Right.READ))
OPERATE = Depends(_demanding(Right.OPERATE))
ADMINISTER = Depends(_demanding(Right.ADMINISTER))
WRITE_LOAD = Depends(_demanding(Right.WRITE_LOAD))


async def grant_of(request: HttpRequest) -> Grant:
    """What the token of the request allows; the route has demanded its right before."""
    found: Grant = request.state.grant
    return found


Holder = Annotated[Grant, Depends(grant_of)]


def rights_of(route: APIRoute) -> list[Right]:
    """What the route declares."""
    return [_DEMANDS[call] for call in _calls(route.dependant) if call in _DEMANDS]


def demand_rights(app: FastAPI) -> None:
    """Raises InvariantViolated for an app with a route that demands no right, or more than one."""
    for route in app.routes:
        if isinstance(route, APIRoute) and len(rights_of(route)) != 1:
            raise InvariantViolated(
                f"route {route.path} declares {len(rights_of(route))} rights; give it one, such as dependencies=[READ]"
            )


def _calls(dependant: Dependant) -> Iterator[Callable[..., object]]:
    if dependant.call is not None:
        yield dependant.call
    for one in dependant.dependencies:
        yield from _calls(one)
