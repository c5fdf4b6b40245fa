"""The app that a worker serves: routes by subject, limits and error answers. A second app has only the routes for people, for a server that
identifies its users itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyio import CapacityLimiter
from fastapi import APIRouter, FastAPI

from controller.bootstrap import ConsumerServices
from controller.services.computing.computers import Computers
from controller.store import audit
from controller.store.audit import AuditRow
from controller.web import (
    actions,
    client_reports,
    deliveries,
    layouts,
    load,
    questions,
    segment_lists,
    sessions,
)
from controller.web.audit import Audited
from controller.web.body_size import SmallRequests
from controller.web.computing_limits import ComputingTurns
from controller.web.description import describe
from controller.web.http_caller import Turns
from controller.web.pulsar import policies, scalable, segments
from controller.web.refusals import answer_errors
from controller.web.request_slots import GivesBack, Slots
from controller.web.route_rights import Who, demand_rights, token_holder
from controller.web.shared_parameters import PeopleServices

ROUTERS_FOR_PEOPLE = (
    layouts.router_for_people,
    scalable.router,
    policies.router,
    segments.router,
    actions.router(),
    questions.router(),
)
ROUTERS = (
    layouts.router,
    segment_lists.router,
    sessions.router,
    deliveries.router,
    client_reports.router,
    *ROUTERS_FOR_PEOPLE,
    load.router,
)

SESSION_THREADS = 8
"""Threads in which consumers' requests look up their leader; no other request uses these threads."""

DATA_PLANE_THREADS = 8
"""Threads in which consumers' requests call data planes, so that a broker that does not answer holds no other thread."""


def routed_app() -> FastAPI:
    """Return an app with every route and without services, enough for a description of routes, rights and documents. Raises InvariantViolated
    if a route does not declare its right.
    """
    return _routed(ROUTERS)


def create_app(
    served: ConsumerServices, secret: str, slots: Slots, *, computers: Computers, address: str
) -> FastAPI:
    """Return the app that a worker serves, not started. `secret` verifies the tokens. `slots` limits the requests and
    streams in progress. `computers` run the long computations; the caller closes them. `address` is the URL that the
    worker announces. Raises InvariantViolated if the routes are declared wrongly.
    """
    app = _app(ROUTERS, served, token_holder(secret), slots, computers)
    app.state.address = address
    return app


def app_for_people(served: PeopleServices, identify: Who, *, most_at_once: int) -> FastAPI:
    """Return the app with the routes for people, without those of consumers and brokers. `identify` returns the grant of each caller;
    `most_at_once` limits the requests in progress, of which one subject may have a quarter.
    """
    return _app(ROUTERS_FOR_PEOPLE, served, identify, Slots(most_at_once), Computers())


def _app(
    routers: Sequence[APIRouter], served: PeopleServices, identify: Who, slots: Slots, computers: Computers
) -> FastAPI:
    """Return an app with the routes of the routers, its services and limits, error answers, the description, and middleware that records
    changes and denials, refuses large bodies, and frees the slots of requests. Raises InvariantViolated as `_routed` does.
    """
    app = _routed(routers)
    app.state.served, app.state.who, app.state.slots = served, identify, slots
    app.state.turns, app.state.computing = Turns(), ComputingTurns(computers)
    app.state.session_threads = CapacityLimiter(SESSION_THREADS)
    app.state.data_plane_threads = CapacityLimiter(DATA_PLANE_THREADS)
    answer_errors(app)
    describe(app)

    def write_audit(row: AuditRow) -> None:
        with served.api.store.transaction() as tx:
            audit.write(tx, row)

    app.add_middleware(Audited, write=write_audit)
    app.add_middleware(SmallRequests)
    app.add_middleware(GivesBack, slots=slots)
    return app


def _routed(routers: Sequence[APIRouter]) -> FastAPI:
    """Return an app with the routes of the routers and nothing else. Raises InvariantViolated if a route does not declare exactly one right
    or could read a body before checking it, or if two routes of one method have equal paths but for the names of parameters.
    """
    # `include_router` would build each route and its documents' models a second time, which takes half a second. It is
    # only needed where an app adds a prefix, tags or answers to a router.
    routes = [route for router in routers for route in router.routes]
    # A path with a superfluous slash is unknown, because a redirect would lead to the host that the request names.
    app = FastAPI(
        title="Cleave", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, routes=routes
    )
    demand_rights(app)
    return app
