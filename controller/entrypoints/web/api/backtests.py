"""Backtests: asked for within bounds, so that one call answers; and those that were run, with what each policy would have cost."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from controller.actions import backtest_rows
from controller.bootstrap import build_backtest
from controller.domain.errors import InvalidInput, NotFound
from controller.entrypoints import backtest_requests
from controller.entrypoints.backtest_requests import AskedBacktest
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.changes import Change, Changing
from controller.entrypoints.web.api.paging import Asked, Listing, Page
from controller.entrypoints.web.asked import Namespace, Topic
from controller.entrypoints.web.computing import COMPUTE, Computing
from controller.entrypoints.web.demands import ADMINISTER, OPERATE, READ, DemandingRoute
from controller.entrypoints.web.paths import NAMESPACE_PATH, PREFIX, TOPIC_PATH
from controller.entrypoints.web.refusals import REFUSALS
from controller.services.computing.computers import Computation
from controller.services.policy_backtest import HERE, Loads
from controller.store import backtests
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["backtests"])
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

    run_id: int = Field(examples=[5])
    state: str = Field(examples=["done"])
    asked_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    asked_by: str
    policies: list[str] = Field(examples=[["in-force", "adaptive:target_use=0.8"]])
    loads: list[str] = Field(examples=[["topic://acme/shop/orders"]])
    since: datetime | None
    until: datetime | None
    engine: str | None = Field(examples=["here"])
    seconds: float | None
    results: int
    error: str | None
    code_version: str
    inputs: dict[str, Any]


class WholeBacktest(Backtest):
    """With one row a policy over all loads: the one with the least regret first."""

    summary: list[dict[str, Any]] = Field(examples=[[{"policy": "adaptive:target_use=0.8", "regret": 1.12}]])


class BacktestResult(BaseModel):
    """One policy on one load, costs in segment-hours; as `inspect.backtest_results`."""

    load: str = Field(examples=["topic://acme/shop/orders"])
    policy: str = Field(examples=["adaptive:target_use=0.8"])
    seed: int
    topic_id: int | None
    cost: float = Field(examples=[196.0])
    least_cost: float = Field(examples=[175.0])
    regret: float | None = Field(examples=[1.12])
    is_ideal: bool
    figures: dict[str, Any]


class Ask(BaseModel):
    """Policies, or knobs beside those in force, on what was recorded."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "since": "7d",
                    "policies": ["in-force", "adaptive:target_use=0.8"],
                    "weights": "excess=20,change_seconds=60",
                    "seeds": 3,
                },
                {
                    "since": "2026-11-14T00:00:00Z",
                    "until": "2026-11-15T00:00:00Z",
                    "knobs": {"max_segments": 16},
                },
            ]
        }
    )

    since: str | None = Field(
        None,
        max_length=100,
        description="An instant, or so long ago; with `until` null too the last seven days.",
        examples=["7d", "2026-11-14T00:00:00Z"],
    )
    until: str | None = Field(None, max_length=100, description="Now where null.")
    policies: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=50)] = Field(
        [],
        description=f"{', '.join(backtest_requests.USUAL)} where empty.",
        examples=[["in-force", "adaptive:target_use=0.8"]],
    )
    knobs: Annotated[dict[str, Any], Field(max_length=100)] | None = Field(
        None,
        description="Instead of policies: the one in force beside itself with these knobs.",
        examples=[{"max_segments": 16}],
    )
    weights: str = Field(
        "", max_length=1000, description="Of the cost.", examples=["excess=20,change_seconds=60"]
    )
    seeds: int = Field(1, description="Draws of each load; the first is the load as it was recorded.")
    actuation_seconds: float = Field(0.0, description="How long a reshape takes.")


class AskOfTopics(Ask):
    """And of which topics."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "since": "7d",
                    "policies": ["in-force", "adaptive:target_use=0.8"],
                    "topics": ["topic://acme/shop/orders"],
                }
            ]
        }
    )

    topics: (
        Annotated[list[Annotated[str, Field(max_length=2000)]], Field(min_length=1, max_length=1000)] | None
    ) = Field(None, description="All where null.", examples=[["topic://acme/shop/orders"]])


class Computed(BaseModel):
    """One policy on one load, costs in segment-hours."""

    load: str = Field(examples=["topic://acme/shop/orders"])
    policy: str = Field(examples=["adaptive:target_use=0.8"])
    seed: int
    topic_id: int | None
    cost: float = Field(examples=[196.0])
    least_cost: float = Field(examples=[175.0])
    figures: dict[str, Any]


class DoneBacktest(BaseModel):
    """What came out."""

    dry_run: bool
    run_id: int = Field(description="In a dry run, the id of a run that is not kept.", examples=[5])
    engine: str = Field(examples=["here"])
    results: list[Computed]
    left_out: dict[str, str] = Field(
        description="Why a topic has no results.",
        examples=[{"topic://acme/shop/returns": "no load was recorded"}],
    )


RunId = Annotated[int, Path(ge=0, lt=2**63, examples=[5])]


@router.post(TOPIC_PATH + "/backtests", dependencies=[OPERATE, COMPUTE])
def backtest_topic(
    change: Changing, computing: Computing, topic: Topic, said: Annotated[Ask | None, Body()] = None
) -> DoneBacktest:
    """What policies would have cost on a topic's own past, and how far that is from the best possible. Changes nothing else."""
    return _run_now(change, computing, said or Ask(), topics=(topic,))


@router.post(NAMESPACE_PATH + "/backtests", dependencies=[OPERATE, COMPUTE])
def backtest_namespace(
    change: Changing, computing: Computing, namespace: Namespace, said: Annotated[Ask | None, Body()] = None
) -> DoneBacktest:
    """The same for every topic of a namespace."""
    return _run_now(change, computing, said or Ask(), namespace=namespace)


@router.post(f"{PREFIX}/backtests", dependencies=[ADMINISTER, COMPUTE])
def backtest_topics(
    change: Changing, computing: Computing, said: Annotated[AskOfTopics | None, Body()] = None
) -> DoneBacktest:
    """The same for topics by name, or all."""
    asked = said or AskOfTopics()
    return _run_now(change, computing, asked, topics=None if asked.topics is None else tuple(asked.topics))


def _run_now(change: Change, computing: Computation, said: Ask, **whose: Any) -> DoneBacktest:
    if said.knobs is not None and said.policies:
        raise InvalidInput("policies and knobs: give one of the two")
    asked = AskedBacktest(
        Loads(*backtest_requests.past(said.since, said.until, datetime.now(UTC)), **whose),
        tuple(said.policies),
        said.knobs,
        said.weights,
        said.seeds,
        said.actuation_seconds,
    )
    question = asked.question()

    def done(store: Store) -> DoneBacktest:
        answer = build_backtest(replace(change.app, store=store), computing).run(
            question,
            asked.loads,
            asked_by=change.actor,
            request_key=change.request_key,
            engine=HERE,
            most_days=backtest_requests.MOST_DAYS_OVER_HTTP,
        )
        results = [Computed.model_validate(asdict(one)) for one in answer.results]
        return DoneBacktest(
            dry_run=change.dry_run,
            run_id=answer.run_id,
            engine=answer.engine,
            results=results,
            left_out=dict(answer.left_out),
        )

    return change.once(DoneBacktest, done)


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
