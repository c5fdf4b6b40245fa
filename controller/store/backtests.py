"""Backtests: their requests, and the cost of each policy.

The row of a request is written before the computation, so that a run that died can be seen. The transaction that ends the
run writes all results or none. The results follow from the inputs, so a repeated request that was faster has written the
same results.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.errors import NotFound
from controller.domain.policy import AutoScalePolicy
from controller.store.topics.policies import read_policy

Document = Mapping[str, Any]

_BEGIN = text("""
    INSERT INTO cleave.backtest_run AS r (request_key, asked_by, code_version, inputs)
    VALUES (:request_key, :asked_by, :code_version, CAST(:inputs AS jsonb))
    ON CONFLICT (request_key) DO UPDATE
       SET state = 'running', error = NULL, finished_at = NULL WHERE r.state <> 'done'
    RETURNING run_id
""")
_DONE = text("SELECT run_id FROM cleave.backtest_run WHERE request_key = :request_key")
_FINISH = text("""
    UPDATE cleave.backtest_run
       SET state = 'done', error = NULL, finished_at = clock_timestamp(), engine = :engine, code_version = :code_version,
           inputs = CAST(:inputs AS jsonb)
     WHERE run_id = :run_id AND state <> 'done'
""")
_FAIL = text("""
    UPDATE cleave.backtest_run SET state = 'failed', finished_at = clock_timestamp(), error = :error
     WHERE run_id = :run_id AND state = 'running'
""")
_RESULTS = text("""
    INSERT INTO cleave.backtest_result (run_id, load, policy, seed, topic_id, cost, least_cost, figures)
    SELECT :run_id, load, policy, seed, topic_id, cost, least_cost, figures
      FROM unnest(CAST(:load AS text[]), CAST(:policy AS text[]), CAST(:seed AS integer[]), CAST(:topic_id AS bigint[]),
                  CAST(:cost AS float8[]), CAST(:least_cost AS float8[]), CAST(:figures AS jsonb[]))
           AS given (load, policy, seed, topic_id, cost, least_cost, figures)
""")
_FORGET_RESULTS = text("""
    DELETE FROM cleave.backtest_result b
     USING cleave.backtest_run r
     WHERE r.run_id = b.run_id AND r.asked_at < :older_than
       AND NOT EXISTS (SELECT FROM cleave.policy_candidate c WHERE c.run_id = b.run_id AND c.topic_id = b.topic_id)
""")
_FORGET_RUNS = text("""
    DELETE FROM cleave.backtest_run r
     WHERE r.asked_at < :older_than AND NOT EXISTS (SELECT FROM cleave.policy_candidate c WHERE c.run_id = r.run_id)
""")

# Epoch 0 of an adoption has only the old logs, which are sealed.
_SUBJECTS = text("""
    SELECT t.topic_id, t.name, CAST(c.policy AS text) AS cluster, CAST(n.policy AS text) AS namespace,
           CAST(t.policy AS text) AS topic, s.segment_ids, s.ranges, s.at_start
      FROM cleave.topic t
      LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
     CROSS JOIN cleave.cluster_policy c
     CROSS JOIN LATERAL (
           SELECT greatest(CAST(:since AS timestamptz), min(c.committed_at)) AS start FROM cleave.layout_change c
            WHERE c.topic_id = t.topic_id AND (c.kind <> 'adopt' OR c.epoch > 0)) b
     CROSS JOIN LATERAL (
           SELECT array_agg(g.segment_id ORDER BY g.segment_id) AS segment_ids,
                  array_agg(inspect.hash_range_text(g.range_start, g.range_end) ORDER BY g.segment_id) AS ranges,
                  count(*) FILTER (WHERE g.created_at <= b.start AND (g.sealed_at IS NULL OR g.sealed_at > b.start)) AS at_start
             FROM cleave.segment g
            WHERE g.topic_id = t.topic_id AND g.created_at < :until AND (g.sealed_at IS NULL OR g.sealed_at > :since)) s
     WHERE t.state = 'live' AND (CAST(:names AS text[]) IS NULL OR t.name = ANY (:names))
       AND (CAST(:namespace AS text) IS NULL OR t.namespace = :namespace)
     ORDER BY t.name
""")


@dataclass(frozen=True, slots=True)
class BacktestRequest:
    """A request for a backtest. `inputs` holds `policies`, `loads` and `prices`. A later request with the key gets the run of the first."""

    request_key: str
    asked_by: str
    code_version: str
    inputs: Document


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """Result of one policy on one load. Costs are in segment-hours; `least_cost` is the least possible cost of this load. `seed` is the
    number of the draw of the load. `topic_id` is None if the load is a trace.
    """

    load: str
    policy: str
    seed: int
    topic_id: int | None
    cost: float
    least_cost: float
    figures: Document


@dataclass(frozen=True, slots=True)
class BacktestAnswer:
    """A backtest run with its results. `pictures`, the data of charts, is keyed by load and policy. `left_out` maps
    the name of each load that was not simulated to the reason; a load of which Spark simulated only a part has
    results as well. `was_done` is True if an earlier call with the same key, perhaps with other policies, computed the
    results; `pictures` and `left_out` are then empty.
    """

    run_id: int
    engine: str
    results: tuple[BacktestResult, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    pictures: Mapping[tuple[str, str], Document] = field(default_factory=dict)
    was_done: bool = False

    def of(self, load: str) -> dict[str, BacktestResult]:
        """Return the results of one load by policy; empty for a load that was left out. Of several draws of the load, the
        last counts.
        """
        return {result.policy: result for result in self.results if result.load == load}


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run of a request. `is_done` is True if an earlier request with the same key has the results already."""

    run_id: int
    is_done: bool


def begin(tx: Connection, request: BacktestRequest) -> StartedRun:
    """Store the request with a run in state running, and return the run. A used request key returns the run of the
    earlier request, whose stored contents do not change.

    If that run is done, the run stays done, and `is_done` is True. If that run is running or failed, the run is set
    to running, its error is deleted, and the caller computes the results.
    """
    run_id = tx.execute(_BEGIN, _parameters(request)).scalar_one_or_none()
    if run_id is not None:
        return StartedRun(run_id, is_done=False)
    return StartedRun(tx.execute(_DONE, {"request_key": request.request_key}).scalar_one(), is_done=True)


def finish(
    tx: Connection, run_id: int, request: BacktestRequest, engine: str, results: Sequence[BacktestResult]
) -> None:
    """Store the results, and set the run to done, with the present time, the engine, and the inputs and code version
    of `request`.

    A failed run is set to done too, because another attempt at the same run, such as one that Airflow ended, may have
    failed meanwhile. Nothing is stored, and no error is raised, if the run is done or does not exist. Raises
    ValueError if a number in the inputs or figures is not finite.
    """
    updated = tx.execute(_FINISH, {**_parameters(request), "run_id": run_id, "engine": engine})
    if updated.rowcount == 1 and results:
        columns = ("load", "policy", "seed", "topic_id", "cost", "least_cost")
        rows: dict[str, Any] = {name: [getattr(result, name) for result in results] for name in columns}
        rows["figures"] = [json.dumps(result.figures, sort_keys=True, allow_nan=False) for result in results]
        tx.execute(_RESULTS, {"run_id": run_id, **rows})


def fail(tx: Connection, run_id: int, error: str) -> None:
    """Set the run to failed, with the error. Does nothing unless the run is running."""
    tx.execute(_FAIL, {"run_id": run_id, "error": error})


def forget_before(tx: Connection, older_than: datetime) -> int:
    """Delete runs that were requested before `older_than`, with their results. Return the number of deleted runs.

    The evidence of a candidate is kept: its run, and the results of its topic.
    """
    tx.execute(_FORGET_RESULTS, {"older_than": older_than})
    return tx.execute(_FORGET_RUNS, {"older_than": older_than}).rowcount


def _parameters(request: BacktestRequest) -> dict[str, str]:
    return {
        "request_key": request.request_key,
        "asked_by": request.asked_by,
        "code_version": request.code_version,
        "inputs": json.dumps(request.inputs, sort_keys=True, allow_nan=False),
    }


@dataclass(frozen=True, slots=True)
class Subject:
    """A live topic of a backtest: its policy in force, and its segments in the time span.

    `segments` is the number of ACTIVE segments at the start; for a topic that was created, adopted or attached later, the number at that
    time, without the old logs of an adoption; at least 1.
    `ranges` holds the hash range of each segment id.
    """

    topic_id: int
    name: str
    policy: AutoScalePolicy
    segments: int
    ranges: Mapping[int, str]


def subjects(
    tx: Connection,
    since: datetime,
    until: datetime,
    *,
    names: Collection[str] | None = None,
    namespace: str | None = None,
) -> list[Subject]:
    """Return live topics by name, each with its present policy in force and its segments that were ACTIVE at some time between `since` and
    `until`, possibly none.

    `names` and `namespace` each restrict the topics; None does not. A name without a live topic is ignored. A policy that cannot be read
    is an `UnreadablePolicy`.
    """
    parameters = {
        "since": since,
        "until": until,
        "names": None if names is None else list(names),
        "namespace": namespace,
    }
    return [
        Subject(
            row.topic_id,
            row.name,
            read_policy(row.cluster, row.namespace, row.topic),
            row.at_start or 1,
            dict(zip(row.segment_ids or (), row.ranges or (), strict=True)),
        )
        for row in tx.execute(_SUBJECTS, parameters)
    ]


_RESULTS_OF = text("""
    SELECT load, policy, seed, topic_id, cost, least_cost, figures FROM cleave.backtest_result
     WHERE run_id = :run_id ORDER BY load, policy, seed
""")
_ENGINE = text("SELECT engine FROM cleave.backtest_run WHERE run_id = :run_id")


def results_of(tx: Connection, run_id: int) -> tuple[list[BacktestResult], str]:
    """Return the results of a run that is done, sorted by load, policy and seed, and the name of the engine that
    computed the results. Results that `forget_before` has deleted are absent.

    The caller has checked that the run exists and is done. For a run that is not done, the list is empty and the name
    has no meaning.
    """
    results = [BacktestResult(**row._mapping) for row in tx.execute(_RESULTS_OF, {"run_id": run_id})]
    return results, str(tx.execute(_ENGINE, {"run_id": run_id}).scalar_one())


_INPUTS = text("SELECT inputs FROM cleave.backtest_run WHERE run_id = :run_id AND state = 'done'")


def inputs_of(tx: Connection, run_id: int) -> Document:
    """Return the inputs (`policies`, `loads` and `prices`) of a run that is done. Raises NotFound if the run does not
    exist or is not done.
    """
    inputs: Document | None = tx.execute(_INPUTS, {"run_id": run_id}).scalar_one_or_none()
    if inputs is None:
        raise NotFound(f"backtest {run_id} does not exist or is not done; `cleave backtests list` lists them")
    return inputs
