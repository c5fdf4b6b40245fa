"""The note that finished work leaves at its DAG run."""

from __future__ import annotations

from pydantic import SecretStr
from structlog.testing import capture_logs

from controller.settings import Settings
from controller.tasks import dag_runs


def test_a_malformed_token_is_logged_because_the_work_is_done() -> None:
    settings = Settings(
        database_url="postgresql://x/y", airflow_url="http://127.0.0.1:1", airflow_token=SecretStr("to ken")
    )

    with capture_logs() as lines:
        dag_runs.note(settings, "airflow/split/manual/decide/0", "decided 1 action")

    [line] = lines
    assert (line["log_level"], line["run"]) == ("warning", "manual")
    assert "CLEAVE_AIRFLOW_TOKEN contains spaces" in line["why"]


def test_who_is_no_run_of_airflow_needs_no_token() -> None:
    settings = Settings(
        database_url="postgresql://x/y", airflow_url="http://127.0.0.1:1", airflow_token=SecretStr("to ken")
    )

    with capture_logs() as lines:
        dag_runs.note(settings, "ada", "decided 1 action")

    assert lines == []
