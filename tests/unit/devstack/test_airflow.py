"""Airflow's end: tasks run in sessions of their own, so a killed scheduler leaves them to whoever stops the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from controller.devstack.airflow import AirflowStandalone

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_tasks_of_this_airflow_end_with_it_and_those_of_another_do_not(tmp_path: Path) -> None:
    airflow = AirflowStandalone(
        tmp_path / "own", dags_folder=tmp_path, metadata_url="postgresql://nobody@localhost/none"
    )
    own, other = (
        subprocess.Popen(SLEEPS, env={**os.environ, "AIRFLOW_HOME": str(home)}, start_new_session=True)
        for home in (tmp_path / "own" / "home", tmp_path / "other" / "home")
    )
    try:
        airflow.stop()

        assert own.wait(timeout=30) < 0
        assert other.poll() is None
    finally:
        for one in (own, other):
            one.kill()
            one.wait()
