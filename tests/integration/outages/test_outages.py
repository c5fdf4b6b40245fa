"""The database fails over, freezes or comes back older than its logs, under traffic on both data planes.

Nothing that was acknowledged is lost but what the server that is gone had alone; no unread message is deleted; each key
stays in order; producers, consumers and reshapes continue without manual work. Each scene prints its figures when it
fails. `tests/support/outage_scenarios.py` says what each does; the long ones run with `make chaos`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bench_planes import PulsarTopic
from tests.support.missing import skip_without
from tests.support.outage_scenarios import SCENARIOS, play
from tests.support.replicated_postgres import ReplicatedPostgres

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(600), pytest.mark.xdist_group("outages")]
SHORT = (
    "synchronous fail-over",
    "asynchronous fail-over",
    "restore",
    "restore, split intended",
    "frozen primary",
    "clock 300 s behind",
)
LONG = tuple(name for name in SCENARIOS if name not in SHORT)


def check(name: str, cluster: ReplicatedPostgres, directory: Path, topics: list[PulsarTopic | None]) -> None:
    """Play the scenario, and see every law hold on every plane."""
    scenario = SCENARIOS[name]
    if scenario.missing:
        skip_without(scenario.missing)
    outcomes = play(scenario, cluster, directory, topics)
    broken = scenario.broken_laws(outcomes)
    if broken:
        pytest.fail(broken, pytrace=False)


@pytest.mark.parametrize("name", SHORT)
def test_an_outage_of_the_database_costs_no_message(
    name: str, cluster: ReplicatedPostgres, tmp_path: Path, topics: list[PulsarTopic | None]
) -> None:
    check(name, cluster, tmp_path, topics)


@pytest.mark.chaos
@pytest.mark.parametrize("name", LONG)
def test_a_rarer_outage_of_the_database_costs_no_message(
    name: str, cluster: ReplicatedPostgres, tmp_path: Path, topics: list[PulsarTopic | None]
) -> None:
    check(name, cluster, tmp_path, topics)
