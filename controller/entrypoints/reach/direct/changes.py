"""A change on the database: rehearsed, or made and waited for."""

from __future__ import annotations

from collections.abc import Callable

from controller.actions.dry_run import planned_segments, stage
from controller.actions.waiting import manual_request, see_through
from controller.bootstrap import Application, application
from controller.entrypoints.output import operation_document
from controller.entrypoints.reach.port import Changed, How, Planned
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store

Act = Callable[[Application, Store, Request], Intent]


def change(act: Act, how: How, *, planned_on: Callable[[Application], int] | None = None) -> Changed:
    """What `act` intends, in the name of whoever runs this process. `planned_on` says for a rehearsal on which epoch."""
    with application() as cleave, stage(cleave, how.dry_run) as store:
        if how.dry_run:
            epoch = None if planned_on is None else planned_on(cleave)
            intent = act(cleave, store, manual_request(cleave, how.reason))
            rows = planned_segments(intent.operation)
            return Changed(operation_document(intent.operation), Planned(epoch, rows))
        intent = act(cleave, store, manual_request(cleave, how.reason))
        waited = how.wait_seconds is not None
        operation = see_through(cleave, intent, how.wait_seconds or 0.0) if waited else intent.operation
        return Changed(operation_document(operation))
