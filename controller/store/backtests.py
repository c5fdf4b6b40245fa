"""Backtests: what was asked, and what each policy would have cost.

A request is a row before it is computed, so a run that died is seen. Its results come in the transaction that ends it, all
or none. They follow from the inputs, so a repeat that was faster has written the very same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
       SET state = 'done', finished_at = clock_timestamp(), engine = :engine, code_version = :code_version,
           inputs = CAST(:inputs AS jsonb)
     WHERE run_id = :run_id AND state = 'running'
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

_SUBJECTS = text("""
    SELECT t.topic_id, t.name, CAST(c.policy AS text) AS cluster, CAST(n.policy AS text) AS namespace,
           CAST(t.policy AS text) AS topic, s.segment_ids, s.ranges, s.at_start, s.at_creation
      FROM cleave.topic t
      LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
     CROSS JOIN cleave.cluster_policy c
     CROSS JOIN LATERAL (
           SELECT array_agg(g.segment_id ORDER BY g.segment_id) AS segment_ids,
                  array_agg(inspect.hash_range_text(g.range_start, g.range_end) ORDER BY g.segment_id) AS ranges,
                  count(*) FILTER (WHERE g.created_at <= :since AND (g.sealed_at IS NULL OR g.sealed_at > :since)) AS at_start,
                  count(*) FILTER (WHERE g.created_epoch = 0) AS at_creation
             FROM cleave.segment g
            WHERE g.topic_id = t.topic_id AND g.created_at < :until AND (g.sealed_at IS NULL OR g.sealed_at > :since)) s
     WHERE t.state = 'live' AND (CAST(:names AS text[]) IS NULL OR t.name = ANY (:names))
       AND (CAST(:namespace AS text) IS NULL OR t.namespace = :namespace)
     ORDER BY t.name
""")


@dataclass(frozen=True, slots=True)
class BacktestRequest:
    """Who asks for what. `inputs` holds `policies`, `loads` and `prices`; a request key that is there is the same run."""

    request_key: str
    asked_by: str
    code_version: str
    inputs: Document


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """One policy on one load. Costs are in segment-hours; `topic_id` None where the load is a trace."""

    load: str
    policy: str
    seed: int
    topic_id: int | None
    cost: float
    least_cost: float
    figures: Document


@dataclass(frozen=True, slots=True)
class BegunRun:
    """A run; `is_done`: an earlier request with the same key has its results already."""

    run_id: int
    is_done: bool


def begin(tx: Connection, request: BacktestRequest) -> BegunRun:
    """Writes down what is asked. A key that is there is that run: what ended without results is begun again."""
    begun = tx.execute(_BEGIN, _asked(request)).scalar_one_or_none()
    if begun is not None:
        return BegunRun(begun, is_done=False)
    return BegunRun(tx.execute(_DONE, {"request_key": request.request_key}).scalar_one(), is_done=True)


def finish(
    tx: Connection, run_id: int, request: BacktestRequest, engine: str, results: Sequence[BacktestResult]
) -> None:
    """Ends the run with its results and what they were computed from; does nothing where somebody else has ended it."""
    done = tx.execute(_FINISH, {**_asked(request), "run_id": run_id, "engine": engine})
    if done.rowcount == 1 and results:
        columns = ("load", "policy", "seed", "topic_id", "cost", "least_cost")
        rows: dict[str, Any] = {name: [getattr(one, name) for one in results] for name in columns}
        rows["figures"] = [json.dumps(one.figures, sort_keys=True, allow_nan=False) for one in results]
        tx.execute(_RESULTS, {"run_id": run_id, **rows})


def fail(tx: Connection, run_id: int, error: str) -> None:
    """Ends the run with what went wrong; does nothing where it has ended."""
    tx.execute(_FAIL, {"run_id": run_id, "error": error})


def forget_before(tx: Connection, older_than: datetime) -> int:
    """Deletes runs that were asked for before that instant, with their results; returns how many runs.

    What a candidate rests on stays: its run, and the results of its topic.
    """
    tx.execute(_FORGET_RESULTS, {"older_than": older_than})
    return tx.execute(_FORGET_RUNS, {"older_than": older_than}).rowcount


def _asked(request: BacktestRequest) -> dict[str, str]:
    return {
        "request_key": request.request_key,
        "asked_by": request.asked_by,
        "code_version": request.code_version,
        "inputs": json.dumps(request.inputs, sort_keys=True, allow_nan=False),
    }


@dataclass(frozen=True, slots=True)
class Subject:
    """A live topic to ask about: its policy in force, and its segments of the span.

    `segments`: how many were active at the start; of a younger topic, how many it was created with.
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
    """The live topics of these names, of the namespace, or all of them, by name."""
    asked = {
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
            row.at_start or row.at_creation or 1,
            dict(zip(row.segment_ids or (), row.ranges or (), strict=True)),
        )
        for row in tx.execute(_SUBJECTS, asked)
    ]


_RESULTS_OF = text("""
    SELECT load, policy, seed, topic_id, cost, least_cost, figures FROM cleave.backtest_result
     WHERE run_id = :run_id ORDER BY load, policy, seed
""")
_ENGINE = text("SELECT engine FROM cleave.backtest_run WHERE run_id = :run_id")


def results_of(tx: Connection, run_id: int) -> tuple[list[BacktestResult], str]:
    """The results of a run that is done, and what computed them."""
    rows = tx.execute(_RESULTS_OF, {"run_id": run_id})
    found = [BacktestResult(**row._mapping) for row in rows]
    return found, str(tx.execute(_ENGINE, {"run_id": run_id}).scalar_one())


_INPUTS = text("SELECT inputs FROM cleave.backtest_run WHERE run_id = :run_id AND state = 'done'")


def inputs_of(tx: Connection, run_id: int) -> Document:
    """What the results of a run that is done were computed from. Raises NotFound."""
    found: Document | None = tx.execute(_INPUTS, {"run_id": run_id}).scalar_one_or_none()
    if found is None:
        raise NotFound(f"there is no backtest {run_id} that is done; `cleave backtests list` has them")
    return found
