"""The log trimmer, on embedded logs: how often, for how long, and that one plane that is away stops no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from controller import tasks
from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient
from controller.services.log_trimmer import LogTrimmer, trim
from tests.integration.dataplane.test_embedded import messages_left
from tests.support.planes import Planes
from tests.support.waiting import wait_until


@pytest.fixture
def planes(database: str) -> Iterator[Planes]:
    """The embedded plane, with a log of three messages that nobody subscribes to."""
    planes = Planes(EmbeddedDataPlane(database), EmbeddedLogClient(database))
    planes.send(planes.log(), b"1", b"2", b"3")
    yield planes
    planes.close()


def test_a_negative_retention_keeps_all_for_ever(database: str, planes: Planes) -> None:
    found = {"embedded": planes.plane}

    assert trim(found, retention_seconds=-1.0, budget_seconds=10.0) == 0
    assert not LogTrimmer(found, retention_seconds=-1.0).is_needed
    assert not LogTrimmer({}, retention_seconds=0.0).is_needed
    assert LogTrimmer(found, retention_seconds=0.0).is_needed
    assert messages_left(database) == 3


def test_a_plane_that_is_away_keeps_no_other_from_being_trimmed(database: str, planes: Planes) -> None:
    away = EmbeddedDataPlane("postgresql://nobody@127.0.0.1:1/nowhere")

    assert trim({"away": away, "embedded": planes.plane}, retention_seconds=0.0, budget_seconds=10.0) == 3
    assert messages_left(database) == 0
    away.close()


def test_it_stops_when_it_is_told_to(database: str, planes: Planes) -> None:
    trimmed = trim(
        {"embedded": planes.plane}, retention_seconds=0.0, budget_seconds=10.0, should_stop=lambda: True
    )

    assert trimmed == 0
    assert messages_left(database) == 3


def test_it_trims_again_and_again_until_it_is_stopped(database: str, planes: Planes) -> None:
    trimmer = LogTrimmer({"embedded": planes.plane}, retention_seconds=0.0, interval_seconds=0.01)
    thread = threading.Thread(target=trimmer.run)
    thread.start()
    wait_until(lambda: messages_left(database) == 0, message="the first round")
    planes.send(planes.log(), b"4")
    wait_until(lambda: messages_left(database) == 0, message="another round")

    trimmer.stop()
    thread.join(timeout=30)

    assert not thread.is_alive()


def test_maintenance_trims_where_no_worker_runs(database: str, planes: Planes) -> None:
    assert tasks.sweep_deletion_entries(dsn=database, extras={})["trimmed_messages"] == 0
    swept = tasks.sweep_deletion_entries(dsn=database, extras={"embedded_retention_seconds": 0})

    assert swept["trimmed_messages"] == 3
    assert messages_left(database) == 0
