"""A Connect server that is away, and a Spark that fails in the middle of a run, are noticed and worth another try."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc import StatusCode  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException, SparkException

from controller.devstack.ports import free_port, release_port
from controller.domain.errors import Retryable
from controller.domain.load_window import LoadWindow
from controller.landing.area import LandingArea
from controller.landing.history import RateHistory
from controller.services.load_aggregation import Landed, SparkEngine
from spark_jobs import session
from spark_jobs.session import with_session

FAILED_TASK = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 1.0 (TID 3) (10.0.0.7 executor 3): "
)
LOST = FAILED_TASK + "ExecutorLostFailure (executor 3 exited caused by one of the running tasks)"
BROKEN_PAGE = (
    FAILED_TASK
    + "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file"
)


def test_a_connect_server_that_is_away_is_retryable_and_its_token_stays_secret(tmp_path: Path) -> None:
    port = free_port()
    engine = SparkEngine(f"sc://localhost:{port}/;token=secret")
    scratch = RateHistory(str(tmp_path / "history")).scratch("run")

    with pytest.raises(Retryable) as caught:
        engine.compute(Landed(LandingArea(str(tmp_path / "landing")), ()), scratch, LoadWindow(60_000))

    assert "secret" not in str(caught.value)
    release_port(port)


@pytest.mark.parametrize(
    "error",
    [
        SparkConnectGrpcException("<_InactiveRpcError>", grpc_status_code=StatusCode.UNAVAILABLE),
        SparkConnectGrpcException("deadline exceeded", grpc_status_code=StatusCode.DEADLINE_EXCEEDED),
        SparkConnectGrpcException(
            "<_InactiveRpcError of RPC that terminated with: status = StatusCode.UNAVAILABLE>"
        ),
        PySparkException("[RETRIES_EXCEEDED] The maximum number of retries has been exceeded."),
        SparkException(LOST, grpc_status_code=StatusCode.INTERNAL),
        PySparkException(LOST),
        PySparkException("Job 3 cancelled because SparkContext was shut down"),
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o52.collectToPython"),
        ConnectionRefusedError(111, "Connection refused"),
    ],
)
@pytest.mark.parametrize("master", ["sc://localhost:1/;token=secret", "local[1]"])
def test_a_spark_that_fails_in_the_middle_of_a_run_is_retryable(
    monkeypatch: pytest.MonkeyPatch, master: str, error: Exception
) -> None:
    """The task was not tried again, although a later run may succeed."""
    with pytest.raises(Retryable) as caught:
        raise_in_session(monkeypatch, master, error)

    assert caught.value.__cause__ is error
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "error",
    [
        SparkConnectGrpcException("a wrong token", grpc_status_code=StatusCode.UNAUTHENTICATED),
        SparkException(BROKEN_PAGE, grpc_status_code=StatusCode.INTERNAL),
        PySparkException(BROKEN_PAGE),
        AnalysisException("[UNRESOLVED_COLUMN] no column x"),
        Py4JError("Method range does not exist"),
        Py4JError(
            "An error occurred while calling o52.range. Trace:\npy4j.Py4JException: Method range does not exist\n"
        ),
    ],
)
def test_an_error_of_the_data_or_the_program_is_final(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The aggregation looks for broken files after errors of the data."""
    with pytest.raises((PySparkException, Py4JError)) as caught:
        raise_in_session(monkeypatch, "local[1]", error)

    assert caught.value is error


def raise_in_session(monkeypatch: pytest.MonkeyPatch, master: str, error: Exception) -> None:
    """Raise the error in the middle of a run in a session."""

    def run(_: object) -> None:
        raise error

    monkeypatch.setattr(session, "get_session", lambda *_: None)
    with_session(master, run)
