"""The run's shared brokers: they answer, the versions are what they say, and users come and go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import requests

from tests.support.brokers import STANDALONE, SharedBroker
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]
USER = """
import sys, time
from pathlib import Path
from tests.support.brokers import STANDALONE, shared_broker
with shared_broker(STANDALONE, Path(sys.argv[1])) as broker:
    print(broker.admin_url, flush=True)
    sys.stdin.readline()
"""


def get(url: str) -> requests.Response:
    answer = requests.get(url, timeout=30)
    answer.raise_for_status()
    return answer


def test_the_shared_broker_is_a_pulsar_4(pulsar_broker: SharedBroker) -> None:
    assert get(f"{pulsar_broker.admin_url}/admin/v2/brokers/version").text == "4.2.4"


def test_the_other_one_knows_scalable_topics(pulsar5_broker: SharedBroker) -> None:
    topics = f"{pulsar5_broker.admin_url}/admin/v2/scalable/public/default"
    requests.put(f"{topics}/devstack?numInitialSegments=2", timeout=30).raise_for_status()

    assert get(f"{pulsar5_broker.admin_url}/admin/v2/brokers/version").text == "5.0.0-M1"
    assert len(get(f"{topics}/devstack").json()["segments"]) == 2


def test_the_cluster_lists_two_brokers_and_each_answers(pulsar_cluster: SharedBroker) -> None:
    listed = get(f"{pulsar_cluster.admin_url}/admin/v2/brokers/cleave").json()

    assert sorted(listed) == sorted(pulsar_cluster.brokers)
    assert len(listed) == 2
    for admin_url in pulsar_cluster.brokers.values():
        assert get(f"{admin_url}/admin/v2/brokers/health").text == "ok"


@pytest.mark.pulsar
@pytest.mark.chaos  # a broker of its own, started and killed
def test_one_server_serves_all_processes_and_ends_with_the_last_even_when_that_is_killed(
    tmp_path: Path,
) -> None:
    first, second = (start_user(tmp_path) for _ in range(2))
    try:
        assert read_line(first) == read_line(second)
        keepers = keepers_of(tmp_path)
        assert len(keepers) == 1
        family = [*keepers, *keepers[0].children(recursive=True)]

        finish(first)
        assert all(process.is_running() for process in family)

        second.kill()
        wait_until(lambda: not any(map(is_alive, family)), message="the keeper and its broker are gone")
    finally:
        for user in (first, second):
            user.kill()
            user.wait()


def start_user(room: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(room)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def read_line(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    line = user.stdout.readline()
    assert line.startswith("http://127.0.0.1:")
    return line


def finish(user: subprocess.Popen[str]) -> None:
    user.communicate("\n", timeout=30)
    assert user.returncode == 0


def keepers_of(room: Path) -> list[psutil.Process]:
    home = str(room / f"pulsar-{STANDALONE}")
    return [p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [])[-1:] == [home]]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
