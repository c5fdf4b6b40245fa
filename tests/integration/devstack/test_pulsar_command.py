"""`python -m controller.devstack.pulsar`: a broker for people, there until it is told to end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import requests

from controller.devstack.pulsar.jars import PULSAR_4
from controller.devstack.pulsar.java_server import START_TIMEOUT_SECONDS
from tests.support.brokers import demand_jars
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.pulsar
def test_it_serves_until_a_signal_and_says_where(tmp_path: Path) -> None:
    demand_jars(PULSAR_4)
    env = tmp_path / "env"
    command = [sys.executable, "-m", "controller.devstack.pulsar", str(tmp_path), "--quick"]
    serving = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(
            lambda: env.exists() or serving.poll() is not None, timeout_seconds=2 * START_TIMEOUT_SECONDS
        )
        written = dict(re.findall(r"export (\w+)='(.*)'", env.read_text()))
        assert written["PULSAR_SERVICE_URL"].startswith("pulsar://127.0.0.1:")
        version = requests.get(f"{written['PULSAR_ADMIN_URL']}/admin/v2/brokers/version", timeout=30).text
        assert version == PULSAR_4
        family = psutil.Process(serving.pid).children(recursive=True)

        serving.send_signal(signal.SIGTERM)
        said = serving.communicate(timeout=120)[1]

        assert serving.returncode == 0, said
        assert f"Pulsar {PULSAR_4} runs at {written['PULSAR_ADMIN_URL']}" in said
        assert not any(process.is_running() for process in family)
        assert not env.exists()
    finally:
        serving.kill()
        serving.wait()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--version", "3.0.0"], "invalid choice: '3.0.0'"), (["--brokers", "0"], "give at least 1")],
)
def test_what_cannot_be_served_is_said_in_a_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "controller.devstack.pulsar", str(tmp_path), *arguments]

    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode in (1, 2)
    assert said in done.stderr
