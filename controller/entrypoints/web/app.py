"""The app that a worker serves: the routes by subject, what limits them, and how errors are answered."""

from __future__ import annotations

from fastapi import FastAPI

from controller.bootstrap import ConsumerServices
from controller.entrypoints.web import deliveries, key_counts, layouts, sessions
from controller.entrypoints.web.acting import Turns
from controller.entrypoints.web.api import (
    audit_log,
    backtests,
    bundles,
    decisions,
    history,
    load,
    operations,
    policies,
    topics,
)
from controller.entrypoints.web.api import segments as reshapes
from controller.entrypoints.web.audit import Audited
from controller.entrypoints.web.demands import demand_rights
from controller.entrypoints.web.limits import FewAtOnce, SmallRequests
from controller.entrypoints.web.pulsar import namespaces, scalable, segments
from controller.entrypoints.web.refusals import answer_errors
from controller.store import audit
from controller.store.audit import AuditRow

ROUTERS = (
    layouts.router,
    sessions.router,
    deliveries.router,
    key_counts.router,
    scalable.router,
    namespaces.router,
    segments.router,
    topics.router,
    reshapes.router,
    policies.router,
    decisions.router,
    operations.router,
    history.router,
    backtests.router,
    bundles.router,
    audit_log.router,
    load.router,
)


def routed_app() -> FastAPI:
    """Every route, and nothing that answers yet: what tells of routes, their rights and documents, needs no more. Raises
    InvariantViolated where one does not say which right it demands.
    """
    app = FastAPI(title="Cleave", docs_url=None, redoc_url=None)
    for router in ROUTERS:
        app.include_router(router)
    demand_rights(app)
    return app


def create_app(served: ConsumerServices, secret: str, *, most_at_once: int) -> FastAPI:
    """The app that a worker serves, with so many requests and streams under way at once."""
    app = routed_app()
    app.state.served, app.state.secret = served, secret
    app.state.turns = Turns()
    answer_errors(app)

    def write_audit(row: AuditRow) -> None:
        with served.api.store.transaction() as tx:
            audit.write(tx, row)

    app.add_middleware(Audited, write=write_audit)
    app.add_middleware(SmallRequests)
    app.add_middleware(FewAtOnce, most=most_at_once)
    return app
