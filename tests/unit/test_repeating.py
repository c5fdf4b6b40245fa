"""The loop of a long-lived thread: it goes on after every error but those that are to end it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controller import repeating, telemetry
from controller.domain.errors import CleaveError, InvalidInput, LostRace, StoreUnavailable, WorkerNameInUse
from controller.repeating import Repeating, contained, repeat_every

log = telemetry.get_logger(__name__)


class Stopping(threading.Event):
    """Waits for nothing, and notes for how long it was to wait. It is set when the script is over."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return self.is_set()

    @property
    def pauses(self) -> list[float]:
        """Waits that were more than a look."""
        return [one for one in self.waited if one > 0]


def scripted(stopping: Stopping, *rounds: Exception | float) -> Callable[[], float]:
    """An act that does this, one round after the other, and stops."""
    left = list(rounds)

    def act() -> float:
        now = left.pop(0)
        if not left:
            stopping.set()
        if isinstance(now, Exception):
            raise now
        return now

    return act


@pytest.fixture
def stopping() -> Stopping:
    return Stopping()


def errors_counted() -> float:
    return REGISTRY.get_sample_value("cleave_loop_errors_total", {"loop": "it failed"}) or 0.0


UNKNOWN = (
    ValueError("²"),
    KeyError("x"),
    RuntimeError("loop is closed"),
    MemoryError(),
    AssertionError(),
    OSError(24, "files"),
)


@pytest.mark.parametrize("error", UNKNOWN, ids=repr)
def test_an_unknown_error_is_logged_with_its_traceback_and_the_loop_goes_on(
    stopping: Stopping, error: Exception
) -> None:
    before = errors_counted()
    with capture_logs() as lines:
        Repeating(scripted(stopping, error, 0.0, 0.0), stopping, log, "it failed").run()

    assert [(one["event"], one["log_level"], one["exc_info"]) for one in lines] == [
        ("it failed", "error", error)
    ]
    assert errors_counted() == before + 1
    assert stopping.pauses == [repeating.FIRST_PAUSE_SECONDS]


def test_the_pauses_after_unknown_errors_double_up_to_the_longest_and_begin_anew_when_a_round_went_well(
    stopping: Stopping,
) -> None:
    script = [*[ValueError("x")] * 7, 0.0, ValueError("x"), 0.0]
    with capture_logs():
        Repeating(scripted(stopping, *script), stopping, log, "it failed").run()

    assert stopping.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 0.5]


def test_an_expected_error_is_one_line_and_the_loop_waits_as_long_as_it_asks_within_bounds(
    stopping: Stopping,
) -> None:
    script = [LostRace("x", 0.0), StoreUnavailable("away", 0.7), StoreUnavailable("away", 60.0), 0.0]
    with capture_logs() as lines:
        Repeating(scripted(stopping, *script), stopping, log, "it failed", retry_seconds=(0.1, 1.0)).run()

    assert stopping.pauses == [0.1, 0.7, 1.0]
    assert [(one["log_level"], one["error"]) for one in lines] == [
        ("warning", "x"),
        ("warning", "away"),
        ("warning", "away"),
    ]


def test_what_is_said_once_is_said_again_after_a_round_that_went_well(stopping: Stopping) -> None:
    away = StoreUnavailable("away", 0.0)
    with capture_logs() as lines:
        Repeating(
            scripted(stopping, away, away, 0.0, away, 0.0), stopping, log, "it failed", says_once=True
        ).run()

    assert len(lines) == 2


def test_other_kinds_may_be_expected(stopping: Stopping) -> None:
    expected = (CleaveError, OSError)
    script = [OSError("storage"), InvalidInput("x"), 0.0]
    with capture_logs() as lines:
        Repeating(scripted(stopping, *script), stopping, log, "it failed", expected=expected).run()

    assert [one["log_level"] for one in lines] == ["warning", "warning"]


def test_an_error_that_is_to_end_the_loop_ends_it(stopping: Stopping) -> None:
    rounds = Repeating(
        scripted(stopping, WorkerNameInUse("twice"), 0.0),
        stopping,
        log,
        "it failed",
        ends_with=(WorkerNameInUse,),
    )
    with pytest.raises(WorkerNameInUse, match="twice"):
        rounds.run()


def test_what_puts_things_right_comes_after_the_pause_and_may_fail_itself(stopping: Stopping) -> None:
    seen: list[tuple[Exception, list[float]]] = []

    def on_error(error: Exception) -> None:
        seen.append((error, stopping.pauses))
        raise RuntimeError("neither")

    error = ValueError("x")
    with capture_logs() as lines:
        Repeating(scripted(stopping, error, 0.0), stopping, log, "it failed", on_error=on_error).run()

    assert seen == [(error, [0.5])]
    assert len(lines) == 2


def test_what_is_done_every_so_often_begins_with_a_pause_and_keeps_to_it(stopping: Stopping) -> None:
    act = scripted(stopping, 0.0, StoreUnavailable("away", 1.0), ValueError("x"), 0.0)
    with capture_logs():
        repeat_every(60.0, act, stopping, log, "it failed")

    assert stopping.pauses == [60.0, 60.0, 60.0, 60.0, 60.0]


def test_a_loop_that_is_stopped_does_nothing_more(stopping: Stopping) -> None:
    stopping.set()

    Repeating(lambda: pytest.fail("done after the end"), stopping, log, "it failed").run()


@pytest.mark.parametrize("error", UNKNOWN, ids=repr)
def test_an_unknown_error_of_a_part_is_kept_from_the_others_with_its_traceback_and_counted(
    error: Exception,
) -> None:
    before = errors_counted()
    with (
        capture_logs() as lines,
        contained(log, "it failed", raised=(StoreUnavailable,), data_plane="paper"),
    ):
        raise error

    [line] = lines
    assert (line["event"], line["log_level"], line["data_plane"]) == ("it failed", "error", "paper")
    assert line["exc_info"] is True
    assert errors_counted() == before + 1


def test_a_known_error_of_a_part_is_one_line_and_not_counted() -> None:
    before = errors_counted()
    with capture_logs() as lines:
        with contained(log, "it failed", topic_id=7):
            raise StoreUnavailable("away", 1.0)
        with contained(log, "it failed"):
            pass

    [line] = lines
    assert (line["event"], line["log_level"], line["topic_id"]) == ("it failed", "warning", 7)
    assert line["error"] == "away"
    assert "exc_info" not in line
    assert errors_counted() == before


@pytest.mark.parametrize("error", [StoreUnavailable("away", 1.0), ValueError("²")], ids=repr)
def test_an_error_of_a_part_that_is_to_end_the_round_ends_it_without_a_line(error: Exception) -> None:
    before = errors_counted()
    with (
        capture_logs() as lines,
        pytest.raises(type(error)) as raised,
        contained(log, "it failed", raised=(StoreUnavailable, ValueError)),
    ):
        raise error

    assert raised.value is error
    assert lines == []
    assert errors_counted() == before
