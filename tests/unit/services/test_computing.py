"""A child computes and answers; it is bounded in time and memory, and gone once nobody waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.domain.errors import CleaveError, InvalidInput, NotFound, Retryable
from controller.services.computing.child_process import IDLE_EXIT_CODE
from controller.services.computing.computers import Computation, Computers
from controller.settings import PROJECT_ROOT
from tests.support import computed
from tests.support.waiting import wait_until


@pytest.fixture
def computers() -> Iterator[Computers]:
    computers = Computers()
    yield computers
    computers.close()


def is_there(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_computes_in_another_process_which_is_used_again(computers: Computers) -> None:
    first = Computation(computers).run(computed.process_id)
    second = Computation(computers).run(computed.process_id)
    assert first == second != os.getpid()


def test_a_child_has_no_secret(computers: Computers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", "postgresql://cleave:secret@db/cleave")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:secret@db/airflow")
    command, environment = Computation(computers).run(computed.environment)
    assert "secret" not in " ".join(command)
    assert not [name for name in environment if name.startswith(("CLEAVE_", "AIRFLOW_"))]


def test_its_errors_are_raised_here_and_it_goes_on(computers: Computers) -> None:
    before = Computation(computers).run(computed.process_id)
    with pytest.raises(NotFound, match="no load was recorded"):
        Computation(computers).run(computed.refuse)
    with pytest.raises(RuntimeError, match="Unreadable"):
        Computation(computers).run(computed.raise_unreadable)
    assert Computation(computers).run(computed.process_id) == before


def test_memory_is_bounded() -> None:
    computers = Computers(most_memory_bytes=256 * 2**20)
    try:
        assert Computation(computers).run(computed.allocate, 2**20) == 2**20
        with pytest.raises(InvalidInput, match="256 MB"):
            Computation(computers).run(computed.allocate, 2**30)
    finally:
        computers.close()


def test_time_is_bounded_and_the_process_ends(tmp_path: Path) -> None:
    computers = Computers(longest_seconds=3.0)
    started = tmp_path / "started"
    with pytest.raises(InvalidInput, match="longer than 3 s"):
        Computation(computers).run(computed.for_ever, str(started))
    assert not is_there(int(started.read_text()))


def test_what_is_cancelled_ends(computers: Computers, tmp_path: Path) -> None:
    started, computation, ended = tmp_path / "started", Computation(computers), []

    def compute() -> None:
        try:
            computation.run(computed.for_ever, str(started))
        except CleaveError as error:
            ended.append(error)

    thread = threading.Thread(target=compute)
    thread.start()
    wait_until(lambda: started.exists() and started.read_text() != "")
    computation.cancel()
    thread.join()

    assert isinstance(ended[0], Retryable)
    assert not is_there(int(started.read_text()))
    with pytest.raises(Retryable):
        computation.run(computed.process_id)
    assert Computation(computers).run(computed.process_id) != int(started.read_text())


def test_a_process_that_dies_is_said_so(computers: Computers) -> None:
    with pytest.raises(Retryable, match="exit code 3"):
        Computation(computers).run(computed.leave, 3)


def test_a_process_that_gave_up_waiting_as_it_was_taken_is_replaced_once(computers: Computers) -> None:
    first = Computation(computers).run(computed.process_id)
    with pytest.raises(Retryable, match=f"exit code {IDLE_EXIT_CODE}"):
        Computation(computers).run(computed.leave, IDLE_EXIT_CODE)
    assert Computation(computers).run(computed.process_id) != first


PARENT = """
import sys
from controller.services.computing.computers import Computation, Computers
from tests.support import computed

Computation(Computers()).run(computed.for_ever, sys.argv[1])
"""


def test_a_process_ends_with_its_parent_even_while_it_computes(tmp_path: Path) -> None:
    started = tmp_path / "started"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(started)], cwd=PROJECT_ROOT)
    wait_until(lambda: started.exists() and started.read_text() != "")
    assert is_there(int(started.read_text()))
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_there(int(started.read_text())))


def test_a_warm_process_saves_its_start(computers: Computers) -> None:
    """Starting Python costs more than a round trip by far."""
    begun = time.monotonic()
    Computation(computers).run(computed.process_id)
    first = time.monotonic() - begun
    warm = []
    for _ in range(5):
        begun = time.monotonic()
        Computation(computers).run(computed.process_id)
        warm.append(time.monotonic() - begun)
    assert min(warm) < first
