"""Backtests that were run: what was asked, and what each policy would have cost."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from controller.domain.errors import NotFound
from controller.entrypoints import backtest_rows
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.demands import READ
from controller.entrypoints.web.paths import PREFIX
from controller.entrypoints.web.refusals import REFUSALS
from controller.store import backtests
from controller.store.postgres import inspection

router = APIRouter(responses=REFUSALS, tags=["backtests"])
_COLUMNS = "run_id, state, asked_at, asked_by, policies, loads, since, until, engine, seconds, results, error, code_version, inputs"
_LIST = Listing(
    f"""
    SELECT {_COLUMNS} FROM inspect.backtest_runs
     WHERE CAST(:after_run_id AS bigint) IS NULL OR run_id < :after_run_id ORDER BY run_id DESC LIMIT :limit
    """,
    {"run_id": int},
)
_ONE = f"SELECT {_COLUMNS} FROM inspect.backtest_runs WHERE run_id = :run_id"
_RESULTS = Listing(
    """
    SELECT load, policy, seed, topic_id, cost, least_cost, regret, is_ideal, figures FROM inspect.backtest_results
     WHERE run_id = :run_id
       AND (CAST(:after_load AS text) IS NULL OR (load, policy, seed) > (:after_load, :after_policy, :after_seed))
     ORDER BY load, policy, seed LIMIT :limit
    """,
    {"load": str, "policy": str, "seed": int},
)


class Backtest(BaseModel):
    """What was asked, and whether it is done; as `inspect.backtest_runs`."""

    run_id: int
    state: str = Field(examples=["done"])
    asked_at: datetime
    asked_by: str
    policies: list[str]
    loads: list[str]
    since: datetime | None
    until: datetime | None
    engine: str | None
    seconds: float | None
    results: int
    error: str | None
    code_version: str
    inputs: dict[str, Any]


class WholeBacktest(Backtest):
    """With one row a policy over all loads: the one with the least regret first."""

    summary: list[dict[str, Any]]


class BacktestResult(BaseModel):
    """One policy on one load, costs in segment-hours; as `inspect.backtest_results`."""

    load: str
    policy: str
    seed: int
    topic_id: int | None
    cost: float
    least_cost: float
    regret: float | None
    is_ideal: bool
    figures: dict[str, Any]


RunId = Annotated[int, Path(ge=0, lt=2**63)]


@router.get(f"{PREFIX}/backtests", dependencies=[READ], response_model=Page[Backtest])
def list_backtests(acting: AtDesk, paging: Asked) -> dict[str, Any]:
    """Backtests, newest first."""
    with acting.app.store.transaction() as tx:
        return _LIST.page(tx, paging)


@router.get(f"{PREFIX}/backtests/{{run_id}}", dependencies=[READ], response_model=WholeBacktest)
def show_backtest(acting: AtDesk, run_id: RunId) -> dict[str, Any]:
    """One backtest, and what came out over all loads."""
    with acting.app.store.transaction() as tx:
        row = _run(tx, run_id)
        found, _ = backtests.results_of(tx, run_id)
    return {**row, "summary": backtest_rows.summary(backtest_rows.result_rows(found))}


@router.get(
    f"{PREFIX}/backtests/{{run_id}}/results", dependencies=[READ], response_model=Page[BacktestResult]
)
def list_results(acting: AtDesk, paging: Asked, run_id: RunId) -> dict[str, Any]:
    """What each policy would have cost on each load."""
    with acting.app.store.transaction() as tx:
        _run(tx, run_id)
        return _RESULTS.page(tx, paging, run_id=run_id)


def _run(tx: Connection, run_id: int) -> dict[str, Any]:
    found = inspection.rows(tx, _ONE, run_id=run_id)
    if not found:
        raise NotFound(f"there is no backtest {run_id}; `cleave backtests list` has them")
    return found[0]
