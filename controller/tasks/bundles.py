"""Tasks of bundle balancing: read the brokers, aggregate on Spark, propose, apply, verify, and delete old
data.

Each returns a document of plain values. A repeated call with the same id changes nothing: it finds the rows
of the run, the cycle and each proposal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from controller.bundles import tables
from controller.bundles.bootstrap import Bundles, bundles_of
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store import views as bundle_views
from controller.bundles.store.proposals import ProposalState
from controller.clock import to_ms
from controller.landing.scratch import sweep
from controller.postgres.session_settings import BULK_STATEMENT_SECONDS, STATEMENT_SECONDS
from controller.services import approval_answers
from controller.store.postgres.clock import database_now
from controller.tasks.application_of_connection import Extras, cleave_at


@contextmanager
def _cluster(dsn: str, extras: Extras, *, statement_seconds: float = STATEMENT_SECONDS) -> Iterator[Bundles]:
    """Open the bundle services of the cluster that the settings of the connection name, and close them at the
    end of the block. Raises InvalidInput if the settings name no cluster or are invalid.
    """
    with cleave_at(dsn, extras, statement_seconds=statement_seconds) as app, bundles_of(app) as bundles:
        yield bundles


def collect_bundles(*, dsn: str, extras: Extras) -> dict[str, Any]:
    """Read every broker once and write the reports to the landing area. Return the result of the reading.
    Raises DataPlaneUnavailable if no broker answered, OSError if the storage does not answer.
    """
    with _cluster(dsn, extras) as bundles:
        return bundles.collector().tick_once().document()


def aggregate_bundles(*, dsn: str, extras: Extras, run_id: str) -> dict[str, Any]:
    """Compute the load of the last window on Spark, with the loader's login, and merge it. Return the numbers
    of the run. A repeated call for the cluster with the same `run_id` merges nothing again. Raises the errors of
    `services.aggregation.aggregate`.
    """
    with _cluster(dsn, extras) as bundles:
        result = bundles.aggregate(re.sub(r"[^A-Za-z0-9._-]", "-", _of_cluster(bundles, run_id)))
    return {**asdict(result), "quarantined": list(result.quarantined)}


def propose_bundles(*, dsn: str, extras: Extras, request_key: str, decided_by: str) -> dict[str, Any]:
    """Decide one cycle and store its proposals, and the reasons why there are no more. Return them; `unasked`
    is True if an approval awaits an answer and no run presents it. A repeated call for the cluster with the
    same `request_key` returns the first cycle. Raises the errors of `balancer.propose`.
    """
    with _cluster(dsn, extras) as bundles:
        cycle = bundles.propose(_of_cluster(bundles, request_key), decided_by)
        proposals, why_not = bundles.store.in_transaction(
            bundle_views.cycle_rows, bundles.cluster, cycle.cycle_id
        )
        return {
            **asdict(cycle),
            "proposals": _plain(proposals),
            "why_not": _plain(why_not),
            "unasked": approval_answers.some_unasked(bundles.store),
        }


def apply_bundles(
    *, dsn: str, extras: Extras, cycle_id: int | None, claimant: str, dry_run: bool = False
) -> dict[str, Any]:
    """Apply approved proposals, and the proposals of the cycle `cycle_id` in automatic namespaces (None:
    approved ones only), in the name of `claimant`: of splits and of unloads each up to the limit of the
    settings. Old approvals are refused instead. Return the result of each claimed proposal. A dry run lists
    the proposals that `apply` may apply, without these limits. Raises the errors of `balancer.apply`.
    """
    with _cluster(dsn, extras) as bundles:
        if dry_run:
            return {"would_apply": [tables.waiting_row(row) for row in bundles.waiting(cycle_id)]}
        return {"applied": [tables.act_row(report) for report in bundles.apply(cycle_id, claimant)]}


def verify_bundles(*, dsn: str, extras: Extras, claimant: str, dry_run: bool = False) -> dict[str, Any]:
    """Check at the brokers whether applied proposals, at most 100, are in effect, and store the results.
    Return a result for each; a proposal that cannot be judged yet stays applied. A dry run lists all applied
    proposals. Raises the errors of `balancer.verify`.
    """
    with _cluster(dsn, extras) as bundles:
        if dry_run:
            applied = [ProposalState.APPLIED]
            rows = bundles.store.in_transaction(
                bundle_proposals.list_proposals, bundles.cluster, states=applied
            )
            return {"would_verify": [tables.waiting_row(row) for row in rows]}
        return {"verified": [tables.act_row(report) for report in bundles.verify(claimant)]}


def keep_bundles(*, dsn: str, extras: Extras, dry_run: bool = False) -> dict[str, Any]:
    """Delete reports older than `landing_keep_days`, cycles older than `history_keep_days`, the inputs of
    cycles after `bundle_inputs_keep_days`, and the files of aggregation runs that were interrupted. Return
    the numbers of cycles and inputs, the days of reports, and the directories of runs. A dry run only returns
    the times before which it would delete. Raises OSError if the storage does not answer; cycles and inputs
    are deleted all the same.
    """
    with _cluster(dsn, extras, statement_seconds=BULK_STATEMENT_SECONDS) as bundles:
        settings = bundles.settings
        with bundles.store.transaction() as tx:
            now = database_now(tx)
            oldest_cycle = now - timedelta(days=settings.history_keep_days)
            oldest_inputs = now - timedelta(days=settings.bundle_inputs_keep_days)
            oldest_report = now.date() - timedelta(days=settings.landing_keep_days)
            if dry_run:
                oldest = {"cycles": oldest_cycle, "inputs": oldest_inputs, "reports": oldest_report}
                return {"would_delete_before": _plain(oldest)}
            cycles = bundle_cycles.expire(tx, oldest_cycle)
            forgotten = bundle_cycles.forget_inputs(tx, oldest_inputs)
        swept = sweep(bundles.area.location, to_ms(now))
        reports = bundles.area.expire(oldest_report)
    return {
        "expired_cycles": cycles,
        "forgotten_inputs": forgotten,
        "expired_reports": reports,
        "swept": swept,
    }


def _of_cluster(bundles: Bundles, key: str) -> str:
    """Return the key of a request or run, with the cluster. Airflow names a scheduled run after its time, so the runs of
    two Airflows, each with a cluster of its own, have the same name.
    """
    return f"{key} of {bundles.cluster}"


def _plain(value: Any) -> Any:
    """Return plain values for an XCom: the database's decimals become floats, and all other objects become
    text.
    """
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return float(value) if hasattr(value, "as_tuple") else str(value)
