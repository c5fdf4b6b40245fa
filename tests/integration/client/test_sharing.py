"""The uses of entry buckets that PIP-486 names: nobody who may have a share goes without one, and no segment is split for it.

What the benchmark of sharing measures, with a worker process that decides and reshapes. How fast a sealed backlog is drained side by
side is measured there; that it is, and in order, is in `test_judged_runs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import text

from benchmarks.bench_operations import application
from benchmarks.bench_sessions import workers
from benchmarks.bench_sharing import low_rate, many_consumers
from controller.bootstrap import Application
from controller.client.servers import Servers
from controller.devstack.serving import client_of

KINDS = "SELECT DISTINCT kind FROM cleave.operation WHERE kind NOT LIKE '%create'"


@pytest.fixture
def stage(database: str, tmp_path: Path) -> Iterator[tuple[Application, Servers]]:
    """The store, and a client of a worker."""
    with ExitStack() as running:
        app = running.enter_context(application(database))
        [(_, _, address)] = running.enter_context(workers(database, tmp_path, 1))
        yield app, running.enter_context(closing(client_of(address)))


def kinds(app: Application) -> set[str]:
    """Of the operations, without what made the topic."""
    with app.store.transaction() as tx:
        return set(tx.execute(text(KINDS)).scalars())


@pytest.mark.timeout(300)
def test_eight_consumers_share_a_quiet_topic_of_one_segment_without_a_split(
    stage: tuple[Application, Servers],
) -> None:
    found = low_rate(*stage)

    assert found["buckets_of_the_active_segments"] == [8]
    assert kinds(stage[0]) == {"rebucket"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [72, pytest.param(200, marks=pytest.mark.chaos)])
def test_more_consumers_than_there_may_be_segments_all_have_a_share(
    stage: tuple[Application, Servers], count: int
) -> None:
    found = many_consumers(*stage, count)

    assert (found["active_segments"], found["without_a_share"]) == (64, 0)
    assert "split" not in kinds(stage[0])
