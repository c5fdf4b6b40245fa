"""Taking messages from the library: nothing is left behind, and who waits is told. The rest is seen on real brokers."""

from __future__ import annotations

from typing import Any, cast

import pulsar
import pytest

from controller.dataplane.pulsar.message_intake import Intake
from tests.support.scripted_leader import BackgroundCall
from tests.support.scripted_library import ScriptedLibrary


@pytest.fixture
def library() -> ScriptedLibrary[int]:
    return ScriptedLibrary()


@pytest.fixture
def rings() -> list[bool]:
    return []


@pytest.fixture
def intake(library: ScriptedLibrary[int], rings: list[bool]) -> Intake:
    intake = Intake(cast(Any, library), lambda: rings.append(True))
    intake.begin()
    return intake


def test_messages_are_taken_in_the_order_of_their_arrival(
    library: ScriptedLibrary[int], intake: Intake
) -> None:
    library.arrive(1, 2, 3)
    assert intake.take(2) == [1, 2]
    library.arrive(4, 5)

    assert intake.take(10) == [3, 4, 5]
    assert intake.take(10) == []


def test_one_is_told_of_the_next_arrival_once_all_is_taken(
    library: ScriptedLibrary[int], intake: Intake, rings: list[bool]
) -> None:
    library.arrive(1, 2)
    assert len(rings) == 1
    assert intake.take(10) == [1, 2]

    library.arrive(3)
    library.arrive(4)

    assert len(rings) == 2
    assert intake.take(10) == [3, 4]


def test_a_consumer_that_is_closed_gives_nothing_and_rings_for_nothing(
    library: ScriptedLibrary[int], intake: Intake, rings: list[bool]
) -> None:
    library.awaiting.popleft()(pulsar.Result.AlreadyClosed, None)

    assert intake.take(10) == []
    assert rings == []


def test_a_close_waits_for_the_call_that_the_library_still_has(
    library: ScriptedLibrary[int], intake: Intake
) -> None:
    """A client that is closed before that keeps its thread and its descriptors."""
    closing = BackgroundCall(intake.close)
    with pytest.raises(AssertionError, match="does not end"):
        closing.result(0.2)

    library.awaiting.popleft()(pulsar.Result.AlreadyClosed, None)

    closing.result()


def test_after_its_close_it_has_nothing_of_the_library(library: ScriptedLibrary[int], intake: Intake) -> None:
    library.arrive(1)
    intake.close()
    library.arrive(2)

    assert intake.take(10) == [1]
    assert intake.take(10) == []
