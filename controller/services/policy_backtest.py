"""Backtests policies on recorded load: collects the load, has the costs computed, and stores the results.

The load is the history of rates that the aggregation keeps, or traces that are read from files.
`spark_jobs.policy_backtest` computes the costs: on Spark where Spark can run and is worth its start, else in
this process or in a child process of a server. All engines return the same figures. NumPy and the job are
imported for the first backtest, so that all other functions work without them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller import telemetry
from controller.clock import to_ms
from controller.domain.errors import InvalidInput, InvalidPolicy, NotFound, Unsupported
from controller.domain.evaluator import PROFILES_BY_NAME
from controller.domain.formatting import shown
from controller.domain.policy import UnreadablePolicy
from controller.landing.file_names import day_directories
from controller.spark_requirements import can_run_spark
from controller.store import backtests
from controller.store.backtests import BacktestAnswer, BacktestRequest, BacktestResult
from controller.store.postgres.engine import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from controller.landing.history import RateHistory
    from spark_jobs.policy_backtest import Question
    from spark_jobs.recorded_load import Recording

log = telemetry.get_logger(__name__)

SPARK, HERE = "spark", "here"
"""Engines: Spark, and this process or its child process."""
SPARK_FROM_DAYS = 500.0
"""Simulated days from which Spark is used: Spark takes as long to start as the simulation of some hundred
days.
"""

Progress = Callable[[int, int], None]
"""Is called with the number of completed simulations and the total number."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A load from files of `timestamp,value` lines: `days` days from day `first_day`, where day 0 begins with
    the first reading that all files have. The values are summed and scaled so that their mean over these days
    is `mean_load` times the capacity of a segment (`split_msg_rate_in` of the default policy).
    """

    name: str
    paths: tuple[Path, ...]
    mean_load: float
    first_day: int = 0
    days: int = 7


@dataclass(frozen=True, slots=True)
class Loads:
    """Selects loads: topics by name, the topics of a namespace, all topics (both None), or traces instead of
    topics. `since` and `until` limit the recorded load of topics; a trace has days of its own. Raises InvalidInput
    for two traces of one name, because the results are stored by the names of the loads.
    """

    since: datetime
    until: datetime
    topics: tuple[str, ...] | None = None
    namespace: str | None = None
    traces: tuple[Trace, ...] = ()

    def __post_init__(self) -> None:
        for name, count in Counter(trace.name for trace in self.traces).items():
            if count > 1:
                raise InvalidInput(f"{count} traces are named {name}; rename the files of all but one")


Compute = Callable[[str, int, int, Sequence[str], str, Callable[[int], None]], "pa.Table"]
"""Computes costs from the history at a URL between two instants, in milliseconds since the Unix epoch. Takes
recordings and question as JSON, and a progress callback for the number of simulations completed since its last call.
"""


@dataclass(frozen=True)
class PolicyBacktest:
    """Runs the backtests of one installation, and stores their results. `compute` runs simulations without
    Spark. `parallel` is the number of parallel tasks on Spark.
    """

    store: Store
    history: RateHistory
    compute: Compute
    spark_master: str
    spark_conf: Mapping[str, str]
    parallel: int = 2

    def run(
        self,
        question: Question,
        loads: Loads,
        *,
        asked_by: str,
        request_key: str,
        engine: str | None = None,
        progress: Progress = lambda _done, _of: None,
        most_days: float = math.inf,
    ) -> BacktestAnswer:
        """Run a backtest of the question's policies on the loads, and return the results, which are also stored.
        `engine` is `spark` or `here`; None chooses by the amount of work. `most_days` is the maximum number of
        simulated days, for callers that wait for the result. `progress` is called after simulations on `here`, with
        the completed and the total number. A load without a result is in `left_out` with the reason.

        If a run with the same key has finished, its stored results are returned, whatever the question of this call,
        and `was_done` is True. A run that failed or did not finish is computed again. If the backtest fails, the run
        is stored as failed with the error, and the error is raised.

        Raises InvalidInput if a trace cannot be read, if more than `most_days` days would be simulated, or if no load
        has a result and the simulation of at least one load failed. Raises InvalidPolicy if no load remains because a
        candidate is not valid together with the loads' policies. Raises NotFound if a requested topic is not live, if
        no topic is selected, or if no load has a result for another reason, such as no recorded rates. Raises
        Unsupported without NumPy or PyArrow, the errors of the engine, and the errors of `Store.transaction`.
        """
        _demand_numpy()
        request = BacktestRequest(request_key, asked_by, code_versions(), _inputs(question, loads, ()))
        with self.store.transaction() as tx:
            started = backtests.begin(tx, request)
            if started.is_done:
                results, computed_by = backtests.results_of(tx, started.run_id)
                return BacktestAnswer(started.run_id, computed_by, tuple(results), was_done=True)
        try:
            return self._compute(started.run_id, request, question, loads, engine, progress, most_days)
        except BaseException as error:
            self.store.in_transaction(backtests.fail, started.run_id, str(error) or type(error).__name__)
            raise

    def _compute(
        self,
        run_id: int,
        request: BacktestRequest,
        question: Question,
        loads: Loads,
        engine: str | None,
        progress: Progress,
        most_days: float,
    ) -> BacktestAnswer:
        """Collect the loads, compute the costs with the engine (None: the engine that fits the amount of work), store
        the results, set the run to done, and return the results. The engine is logged. A load without a result is in
        `left_out` with the reason.

        Raises InvalidInput if a trace cannot be read, if more than `most_days` days would be simulated, or if no load
        has a result and the simulation of at least one load failed. Raises InvalidPolicy if no load remains because a
        candidate is not valid together with the loads' policies. Raises NotFound if a requested topic is not live, if
        no topic is selected, or if no load has a result for another reason. Also raises the errors of the engine and
        of `Store.transaction`. After an error nothing is stored, and the run is still running.
        """
        recordings, left_out, rates = self._collect(question, loads)
        days = _days_of(question, recordings)
        if days > most_days:
            raise InvalidInput(
                f"the backtest simulates {days:,.0f} days ({len(recordings)} loads, {len(question.cases)} times each), but at most {most_days:,.0f} "
                "are allowed while a caller waits; choose fewer topics, policies or days, or trigger the DAG policy_backtest"
            )
        engine = engine or (SPARK if days >= SPARK_FROM_DAYS and can_run_spark(self.spark_master) else HERE)
        log.info("backtest", run=run_id, loads=len(recordings), cases=len(question.cases), engine=engine)
        if engine == SPARK:
            table = self._compute_on_spark(question, recordings, loads, rates)
        else:
            table = self._compute_here(question, recordings, loads, rates, progress)
        results, pictures, errors = _read_table(table)
        left_out |= errors
        loads_with_answer = {result.load for result in results} | errors.keys()
        left_out |= {
            recording.name: "no load was recorded"
            for recording in recordings
            if recording.name not in loads_with_answer
        }
        if not results and errors:
            raise InvalidInput(
                "no load can be simulated: " + "; ".join(f"{name}: {error}" for name, error in errors.items())
            )
        if not results:
            raise NotFound(
                f"no load was recorded for {_describe_loads(loads)} between {loads.since.isoformat()} and "
                f"{loads.until.isoformat()} at {self.history.location.url()}; is the aggregation running, and is this the "
                "history it keeps (CLEAVE_HISTORY_URL)?"
            )
        request = replace(request, inputs=_inputs(question, loads, recordings))
        self.store.in_transaction(backtests.finish, run_id, request, engine, results)
        return BacktestAnswer(run_id, engine, tuple(results), left_out, pictures)

    def _collect(
        self, question: Question, loads: Loads
    ) -> tuple[list[Recording], dict[str, str], pa.Table | None]:
        """Return three values: the recordings to simulate, the reasons of the loads that are left out, by name, and
        the rates of the traces with the columns of `RATE_COLUMNS` (None if the loads are topics). A topic whose
        policy cannot be read is left out. A recording is also left out if a candidate of the question is not valid
        together with the recording's policy.

        Raises the first InvalidPolicy if such candidates leave no recording, InvalidInput for a trace that cannot be
        read, NotFound if a requested topic is not live or no topic is selected, and the errors of
        `Store.transaction`.
        """
        if loads.traces:
            recordings, rates = _recordings_of_traces(loads.traces)
            left_out: dict[str, str] = {}
        else:
            recordings, left_out = self._recordings_of_topics(loads)
            rates = None
        valid_recordings, errors = [], []
        for recording in recordings:
            try:
                for candidate in question.candidates:
                    candidate.check(recording.base_policy)
            except InvalidPolicy as error:
                errors.append(error)
                left_out[recording.name] = error.message
            else:
                valid_recordings.append(recording)
        if errors and not valid_recordings:
            raise errors[0]
        return valid_recordings, left_out, rates

    def _recordings_of_topics(self, loads: Loads) -> tuple[list[Recording], dict[str, str]]:
        """Return the recordings of the selected live topics, with the topic id as key, and the reasons, by name, of
        topics that are left out because their policy cannot be read. If no topic is selected by name or namespace,
        all live topics are selected. A recording covers the time from `loads.since` to `loads.until`, under the
        topic's policy in force. Raises NotFound if a requested topic is not live, or if the selection has no live
        topic, and the errors of `Store.transaction`.
        """
        from spark_jobs.recorded_load import Recording

        subjects = self.store.in_transaction(
            backtests.subjects, loads.since, loads.until, names=loads.topics, namespace=loads.namespace
        )
        missing = set(loads.topics or ()) - {subject.name for subject in subjects}
        if missing or not subjects:
            raise NotFound(
                f"there is no live topic {', '.join(sorted(missing)) or 'of ' + _describe_loads(loads)}; "
                "list the names with `cleave topics list`"
            )
        unreadable = {
            subject.name: subject.policy.why
            for subject in subjects
            if isinstance(subject.policy, UnreadablePolicy)
        }
        recordings = [
            Recording(
                key=subject.topic_id,
                name=subject.name,
                start_ms=to_ms(loads.since),
                end_ms=to_ms(loads.until),
                policy=subject.policy.to_document(),
                segments=subject.segments,
                ranges=subject.ranges,
            )
            for subject in subjects
            if subject.name not in unreadable
        ]
        return recordings, unreadable

    def _compute_here(
        self,
        question: Question,
        recordings: Sequence[Recording],
        loads: Loads,
        rates: pa.Table | None,
        progress: Progress,
    ) -> pa.Table:
        """Compute the costs without Spark, and return them with the columns of `spark_jobs.policy_backtest.RESULTS`.
        If `rates` are given, the recordings are traces, and are simulated in this process. If `rates` is None, the
        recordings are topics, and `self.compute` simulates them on the history between `loads.since` and
        `loads.until`. `progress` is called with the completed and the total number of simulations. Raises the errors
        of the engine.
        """
        from spark_jobs.policy_backtest import compute_here

        total, total_completed = len(recordings) * len(question.cases), 0

        def count(completed: int) -> None:
            nonlocal total_completed
            total_completed += completed
            progress(total_completed, total)

        if rates is not None:
            return compute_here(rates, recordings, question, count)
        recorded = [recording.to_json() for recording in recordings]
        return self.compute(
            self.history.location.url(),
            to_ms(loads.since),
            to_ms(loads.until),
            recorded,
            question.to_json(),
            count,
        )

    def _compute_on_spark(
        self,
        question: Question,
        recordings: Sequence[Recording],
        loads: Loads,
        rates: pa.Table | None,
    ) -> pa.Table:
        """Compute the costs on Spark, and return them with the columns of `spark_jobs.policy_backtest.RESULTS`. If
        `rates` are given, the recordings are traces. If `rates` is None, the recordings are topics, and their rates
        are read from the history between `loads.since` and `loads.until`. If the history has no files for any day of
        this period, the costs of topics are computed without Spark, and without calls of a progress function. Raises
        the errors of Spark.
        """
        from spark_jobs.policy_backtest import compute, rates_of_history
        from spark_jobs.session import frame_of, with_session

        since, until = to_ms(loads.since), to_ms(loads.until)
        location = self.history.location
        recorded_days = set(location.directories())
        days = [location.url(day) for day in day_directories(since, until) if day in recorded_days]

        def compute_on(spark: SparkSession) -> pa.Table:
            load_rates: DataFrame
            if rates is not None:
                load_rates = frame_of(spark, rates)
            else:
                load_rates = rates_of_history(spark, location.url(), days, since, until)
            return compute(spark, load_rates, recordings, question, self.parallel)

        if rates is None and not days:
            return self._compute_here(question, recordings, loads, None, lambda _done, _of: None)
        return with_session(self.spark_master, compute_on, self.spark_conf)


def _days_of(question: Question, recordings: Sequence[Recording]) -> float:
    """Return the number of simulated days: the days of all recordings, times the number of simulations of
    each recording (`question.cases`).
    """
    return (
        sum(recording.steps * recording.step_seconds for recording in recordings)
        / 86_400
        * len(question.cases)
    )


def code_versions() -> str:
    """Return the code versions of all policy profiles, comma-separated."""
    return ", ".join(sorted(profile.code_version for profile in PROFILES_BY_NAME.values()))


def _demand_numpy() -> None:
    """Raise Unsupported unless NumPy and PyArrow are installed."""
    try:
        import numpy as np
        import pyarrow as pa
    except ImportError:
        raise Unsupported(
            "a backtest needs NumPy; install it, or this package with the extra 'backtest'"
        ) from None
    del np, pa


def _recordings_of_traces(traces: Sequence[Trace]) -> tuple[list[Recording], pa.Table]:
    """Read the files of the traces, at least one trace. Return a recording of each trace under the default policy, in
    the same order, with the keys -1, -2 and so on, and the rates of all traces in one table with the columns of
    `RATE_COLUMNS`. Raises InvalidInput if a file does not exist, or cannot be read as a trace.
    """
    import pyarrow as pa

    from controller.backtest.load_series import read_csv
    from controller.domain.policy import AutoScalePolicy
    from spark_jobs.policy_backtest import rates_of_trace
    from spark_jobs.recorded_load import Recording

    policy = AutoScalePolicy()
    recordings, tables = [], []
    for number, trace in enumerate(traces, start=1):
        try:
            series = read_csv(
                trace.name,
                trace.paths,
                capacity=policy.split_msg_rate_in,
                mean_load=trace.mean_load,
                first_day=trace.first_day,
                days=trace.days,
            )
        except OSError as error:
            raise InvalidInput(
                f"trace {trace.name}: {error}; give a file that this process can read"
            ) from error
        end_ms = series.start_ms + series.steps * series.step_seconds * 1000
        recordings.append(
            Recording(
                -number,
                series.name,
                series.start_ms,
                end_ms,
                policy.to_document(),
                step_seconds=series.step_seconds,
            )
        )
        tables.append(rates_of_trace(recordings[-1], series))
    return recordings, pa.concat_tables(tables)


def _inputs(question: Question, loads: Loads, recordings: Collection[Recording]) -> dict[str, Any]:
    """Return all inputs of the results except the recorded rates, as a JSON document: the fields of the question
    (`candidates` as `policies`, without `pictures`), the selection of loads (`asked`), and one entry for each recording
    (`loads`). Before the recordings are known, pass no recordings; `loads` is then empty.
    """
    request = json.loads(question.to_json())
    request["policies"] = request.pop("candidates")
    del request["pictures"]
    return {
        **request,
        "asked": {
            "since": loads.since.isoformat(),
            "until": loads.until.isoformat(),
            "topics": loads.topics and list(loads.topics),
            "namespace": loads.namespace,
            "traces": [_trace_document(trace) for trace in loads.traces],
        },
        "loads": [
            {
                "name": recording.name,
                "topic_id": recording.topic_id,
                "start_ms": recording.start_ms,
                "end_ms": recording.end_ms,
                "segments": recording.segments,
                "policy": dict(recording.policy),
            }
            for recording in recordings
        ],
    }


def _trace_document(trace: Trace) -> dict[str, Any]:
    return {
        "name": trace.name,
        "files": [path.name for path in trace.paths],
        "mean_load": trace.mean_load,
        "first_day": trace.first_day,
        "days": trace.days,
    }


def _read_table(
    table: pa.Table,
) -> tuple[list[BacktestResult], dict[tuple[str, str], Mapping[str, Any]], dict[str, str]]:
    """Return the content of `table`, which has the columns of `spark_jobs.policy_backtest.RESULTS`, as three values.
    The first is the list of results, one for each row without an error, in the order of the rows; a trace, whose key
    is negative, has no topic id. The second is the data of the charts by load and policy; of several rows of a pair
    with data, the first counts. The third is the error of each load with an error row, by load (the last error of
    several).
    """
    results: list[BacktestResult] = []
    errors: dict[str, str] = {}
    pictures: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in table.to_pylist():
        if row["error"] is not None:
            errors[row["load"]] = row["error"]
            continue
        topic_id = row["key"] if row["key"] >= 0 else None
        results.append(
            BacktestResult(
                row["load"],
                row["policy"],
                row["seed"],
                topic_id,
                row["cost"],
                row["least_cost"],
                json.loads(row["figures"]),
            )
        )
        if row["picture"] is not None:
            pictures.setdefault((row["load"], row["policy"]), json.loads(row["picture"]))
    return results, pictures, errors


def _describe_loads(loads: Loads) -> str:
    """Return the selected loads as text for an error message."""
    if loads.traces:
        return ", ".join(trace.name for trace in loads.traces)
    if loads.topics:
        return ", ".join(loads.topics)
    return f"namespace {shown(loads.namespace)}" if loads.namespace else "any topic"
