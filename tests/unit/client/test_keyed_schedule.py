"""Cases of the schedule of keyed work that are easier to read than its laws."""

from __future__ import annotations

from controller.client.keyed_schedule import KeyedSchedule, WorkItem
from controller.dataplane.log_client import LogMessage


def schedule(*keys: str | None, limit: int = 100, busy: set[bytes] | None = None) -> KeyedSchedule:
    """Messages of these keys, at positions 0, 1, ..."""
    found = KeyedSchedule(set() if busy is None else busy, limit)
    for place, key in enumerate(keys):
        found.offer(item(place, key))
    return found


def item(place: int, key: str | None) -> WorkItem:
    return WorkItem(LogMessage((place,), 0, None if key is None else key.encode(), b""))


def begun(of: KeyedSchedule, now: float = 0.0) -> list[int]:
    """All that may begin."""
    return [one.position[0] for one in iter(lambda: of.next(now), None)]


def test_one_of_each_key_begins_and_what_has_no_key_is_each_for_itself() -> None:
    assert begun(schedule("a", "a", None, "b", None, "b")) == [0, 2, 3, 4]


def test_a_failed_message_holds_its_key_and_nothing_is_settled_beyond_it() -> None:
    found = schedule("a", "b", "a", "b")
    assert begun(found) == [0, 1]
    found.failed((0,), due_at=5.0)
    assert not found.done((1,))
    assert begun(found) == [3]
    assert not found.done((3,))
    assert (found.settled, found.in_hand) == (None, 4)
    assert found.next_due_at == 5.0

    assert begun(found, now=5.0) == [0]
    assert [one.position for one in found.done((0,))] == [(0,), (1,)]
    assert (found.settled, found.in_hand) == ((1,), 2)
    assert begun(found, now=5.0) == [2]
    assert [one.position for one in found.done((2,))] == [(2,), (3,)]
    assert found.in_hand == 0


def test_it_is_full_while_so_many_are_not_settled() -> None:
    found = schedule("a", "b", "c", limit=3)
    assert begun(found) == [0, 1, 2]
    found.done((1,))
    assert found.is_full
    found.done((0,))
    assert not found.is_full


def test_a_key_that_another_bucket_s_work_has_is_waited_for() -> None:
    """A bucket that was lost and came back meets what it had begun before."""
    busy: set[bytes] = set()
    before, after = schedule("a", busy=busy), schedule("a", "b", busy=busy)
    assert begun(before) == [0]
    assert begun(after) == [1]
    before.done((0,))
    assert begun(after) == [0]


def test_a_message_that_is_withdrawn_is_returned_again_and_its_key_is_free_until_then() -> None:
    found = schedule("a", "a", "b")
    assert begun(found) == [0, 2]
    found.withdraw((0,))
    assert (found.running, found.has_untried) == (1, True)
    assert begun(found) == [0]


def test_a_retry_that_is_withdrawn_does_not_count_as_never_begun() -> None:
    found = schedule("a")
    assert begun(found) == [0]
    found.failed((0,), due_at=1.0)
    assert begun(found, now=1.0) == [0]
    found.withdraw((0,))
    assert not found.has_untried


def test_what_waits_behind_a_failing_message_is_nothing_left_to_begin() -> None:
    found = schedule("a", "a", "b")
    assert found.has_untried
    assert begun(found) == [0, 2]
    assert not found.has_untried
    found.failed((0,), due_at=1.0)
    found.done((2,))
    assert not found.has_untried
    assert begun(found, now=1.0) == [0]
    found.done((0,))
    assert found.has_untried
