"""Backtests: runs backtests of policies on recorded load, and lists past runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from sqlalchemy import Connection

from controller.actions import backtest_rows
from controller.actions.action import Action, report
from controller.actions.context import Context
from controller.actions.fields import ActionRequest, ParameterValues, PolicyLevel, TopicName
from controller.actions.responses import Document, Response, Row, WithExample
from controller.actions.rights import Right
from controller.backtest.summary import summary_by_policy
from controller.bootstrap import build_backtest
from controller.domain.errors import InvalidInput, NotFound
from controller.domain.names import CLUSTER
from controller.domain.policy import PolicyLevel as Level
from controller.domain.whole_numbers import MOST
from controller.questions import backtest_requests
from controller.questions.backtest_requests import BacktestRequest
from controller.questions.question import (
    ASKED_BY_RUN,
    Filter,
    Question,
    QuestionRequest,
    read_answers,
    read_view,
    run_filter,
)
from controller.services import policy_admin
from controller.services.policy_backtest import HERE, Loads
from controller.store.backtests import BacktestAnswer, BacktestResult
from controller.store.postgres.snapshots import snapshot

ANSWER_SECONDS = 240.0
"""Maximum time in seconds of the server's answer. The server keeps a request for longer."""
RunId = Annotated[int, Field(ge=0, le=MOST, description="Id of the backtest.", examples=[5])]


class RunBacktest(ActionRequest):
    """Compute the cost of policies, or of the policy in force with other parameters, on recorded load, and compare it with the least
    possible cost. Changes nothing except the list of backtests.
    """

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
                    "parameters": {"max_segments": 16},
                },
            ]
        }
    )

    level: PolicyLevel
    topics: Annotated[list[TopicName], Field(min_length=1, max_length=1000)] | None = Field(
        None,
        description="At the level of the cluster, only these topics. None: all topics of the level.",
        examples=[["topic://acme/shop/orders"]],
    )
    since: str | None = Field(
        None,
        max_length=100,
        description="Start, as a time or an age. With neither `since` nor `until`: the last seven days.",
        examples=["7d", "2026-11-14T00:00:00Z"],
    )
    until: str | None = Field(None, max_length=100, description="None: now.")
    policies: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=50)] = Field(
        [],
        description=f"Policies to compare. Default: {', '.join(backtest_requests.DEFAULT_POLICIES)}.",
        examples=[["in-force", "adaptive:target_use=0.8"]],
    )
    parameters: Annotated[ParameterValues, Field(max_length=100)] | None = Field(
        None,
        description="Instead of policies: compare the policy in force with the same policy and these parameters.",
        examples=[{"max_segments": 16}],
    )
    weights: str = Field(
        "", max_length=1000, description="Weights of the cost.", examples=["excess=20,change_seconds=60"]
    )
    seeds: int = Field(1, description="Number of draws of each load; the first draw is the recorded load.")
    actuation_seconds: float = Field(0.0, description="Duration of a reshape in seconds.")

    def to_backtest_request(self, now: datetime) -> BacktestRequest:
        """Return the backtest that the request describes; `now` is the time from which ages count. Policies,
        parameters, weights and seeds are not checked here. Raises InvalidInput for both policies and parameters, for
        topics below the level of the cluster, and for a span that is empty or cannot be read.
        """
        if self.parameters is not None and self.policies:
            raise InvalidInput("policies and parameters: give one of the two")
        if self.topics is not None and self.level != CLUSTER:
            raise InvalidInput(f"topics: name them at the level cluster, not at {self.level}")
        kind = policy_admin.kind_of(self.level)
        topics = [self.level] if kind is Level.TOPIC else self.topics
        return BacktestRequest(
            Loads(
                *backtest_requests.past(self.since, self.until, now),
                topics=None if topics is None else tuple(topics),
                namespace=self.level if kind is Level.NAMESPACE else None,
            ),
            tuple(self.policies),
            self.parameters,
            self.weights,
            self.seeds,
            self.actuation_seconds,
        )


_RESULT = {
    "load": "topic://acme/shop/orders",
    "policy": "adaptive:target_use=0.8",
    "seed": 0,
    "topic_id": 5,
    "cost": 196.0,
    "least_cost": 175.0,
    "figures": {"reshapes": 4},
}


class BacktestResponse(Response):
    """The results of a backtest."""

    run_id: int = Field(description="In a dry run, the id of a run that is not kept.", examples=[5])
    engine: str = Field(examples=["here"])
    results: list[Annotated[BacktestResult, WithExample(_RESULT)]]
    left_out: dict[str, str] = Field(
        description="Reason for which a topic has no results, by topic.",
        examples=[{"topic://acme/shop/returns": "no load was recorded"}],
    )

    @property
    def answer(self) -> BacktestAnswer:
        """The run and its results, as returned by the service."""
        return BacktestAnswer(self.run_id, self.engine, tuple(self.results), self.left_out)

    def sentence(self) -> str:
        """Return a sentence with the id of the backtest, and the number of topics that have results."""
        return f"backtest {self.run_id} of {len({result.load for result in self.results})} topics"

    def rows(self) -> Sequence[Row]:
        """Return one summary row for each policy, least regret first."""
        return backtest_rows.cells(summary_by_policy(backtest_rows.result_rows(self.results)))


class ShowBacktest(QuestionRequest):
    """Show a backtest, and the cost of each policy over all loads."""

    run_id: RunId


class BacktestDocument(Document):
    """A row of `inspect.backtest_runs`, with one summary row per policy, least regret first."""

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
    summary: list[dict[str, Any]] = Field(examples=[[{"policy": "adaptive:target_use=0.8", "regret": 1.12}]])

    def sentence(self) -> str:
        """Return a sentence about the backtest, and its error, if any."""
        state = f"backtest {self.run_id}, requested by {self.asked_by} at {self.asked_at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}: {self.state}"
        return f"{state}\n{self.error}" if self.error else state


def run_backtest(context: Context, request: RunBacktest) -> BacktestResponse:
    """Run the backtest without Spark, by the context's `computation` or in this process, store its results, and
    return them; a dry run computes, but stores nothing. A backtest that raises an error is stored as failed. If a
    backtest with the request key is done, its stored results are returned, whatever it was about, and `left_out` is empty;
    any other backtest with the key is run again.

    Raises InvalidInput for fields that contradict each other or cannot be read, if no load can be simulated, and for
    more than `MOST_DAYS_OVER_HTTP` simulated days; NotFound for a topic that is not live, and if there is no topic or
    no recorded load; Unsupported if NumPy or another library is not installed; and the errors of `Computation.run`.
    """
    backtest = request.to_backtest_request(datetime.now(UTC))
    answer = build_backtest(replace(context.app, store=context.store), context.computation).run(
        backtest.question(),
        backtest.loads,
        asked_by=context.caller.actor,
        request_key=context.caller.request_key,
        engine=HERE,
        most_days=backtest_requests.MOST_DAYS_OVER_HTTP,
    )
    return BacktestResponse(
        dry_run=context.dry_run,
        run_id=answer.run_id,
        engine=answer.engine,
        results=list(answer.results),
        left_out=dict(answer.left_out),
    )


def show_backtest(context: Context, request: ShowBacktest) -> BacktestDocument:
    """Return the backtest, in any state, and its summary, which is empty unless the backtest is done. Both are read from
    one snapshot. Raises NotFound.
    """
    with snapshot(context.store) as tx:
        row, results = read_backtest(tx, request.run_id)
    summary = summary_by_policy(backtest_rows.result_rows(results))
    return BacktestDocument(**row, summary=summary)


def read_backtest(tx: Connection, run_id: int) -> tuple[Row, list[BacktestResult]]:
    """Return the row of `inspect.backtest_runs` of a backtest in any state, and its results, ordered by load, policy and
    seed; no results unless the backtest is done. Raises NotFound.
    """
    rows = read_view(tx, LIST_BACKTESTS.view, "run_id = :run_id", run_id=run_id)
    if not rows:
        raise NotFound(f"backtest {run_id} does not exist; `cleave backtests list` lists them")
    columns = ", ".join(field.name for field in fields(BacktestResult))
    results = read_answers(tx, LIST_BACKTEST_RESULTS, columns=columns, run_id=run_id)
    return rows[0], [BacktestResult(**row) for row in results]


RUN_BACKTEST = Action(
    "backtests run",
    "/backtests/{level}",
    Right.OPERATE,
    RunBacktest,
    BacktestResponse,
    run_backtest,
    cluster_right=Right.ADMINISTER,
    answer_seconds=ANSWER_SECONDS,
    computes=True,
    is_command=False,
)
SHOW_BACKTEST = report(
    "backtests show",
    "/backtests/{run_id}",
    ShowBacktest,
    BacktestDocument,
    show_backtest,
    is_command=False,
)
LIST_BACKTESTS = Question(
    "backtests list",
    "/backtests",
    "inspect.backtest_runs",
    "List backtests, newest first.",
    {"run_id": int},
    {"run": run_filter(ASKED_BY_RUN)},
    descending=True,
    table=("run_id", "state", "asked_at", "asked_by", "policies", "loads", "since", "until", "seconds"),
)
LIST_BACKTEST_RESULTS = Question(
    "backtests results",
    "/backtests/{run_id}/results",
    "inspect.backtest_results",
    "List the cost of each policy on each load.",
    {"load": str, "policy": str, "seed": int},
    {"run_id": Filter("run_id = :run_id", RunId)},
    missing="backtest {run_id} does not exist or has no results; `cleave backtests list` lists them",
    table=("load", "policy", "seed", "regret", "cost", "least_cost", "is_ideal"),
)
ACTIONS = (RUN_BACKTEST, SHOW_BACKTEST)
QUESTIONS = (LIST_BACKTESTS, LIST_BACKTEST_RESULTS)
