"""A sealed segment's topic that its broker has loaded anew, as after a restart: 4.2.4 can neither count its messages nor find an instant
in it any more, since it looks beyond the last entry.

Whatever asks for that would fail for ever: seeks would not end, nothing would be collected, no lag told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import requests

from controller.dataplane.log_client import LogMessage, OutgoingMessage, Position
from controller.dataplane.pulsar import stored_entries
from controller.dataplane.pulsar.admin import Ask
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.plane import PulsarDataPlane
from tests.support.bench_planes import PulsarTopic
from tests.support.brokers import SharedBroker
from tests.support.waiting import wait_until

BATCHES, IN_A_BATCH = 5, 2


@pytest.fixture
def here(pulsar_broker: SharedBroker) -> PulsarTopic:
    return PulsarTopic.fresh(pulsar_broker.admin_url, pulsar_broker.service_url, "loaded-anew")


@pytest.fixture
def plane(here: PulsarTopic) -> Iterator[PulsarDataPlane]:
    with closing(PulsarDataPlane(here.access, call_timeout_seconds=20.0)) as plane:
        yield plane


@pytest.fixture
def logs(here: PulsarTopic) -> Iterator[PulsarLogClient]:
    with closing(PulsarLogClient(here.access, call_timeout_seconds=20.0)) as logs:
        yield logs


def filled(here: PulsarTopic, plane: PulsarDataPlane, logs: PulsarLogClient) -> str:
    """A log with some batches, each some milliseconds younger than the one before, and a subscription."""
    log = plane.backing_topic(here.topic, "0000-ffff-0")
    plane.create_segment(log, ["billing"])
    for number in range(BATCHES):
        payload = b"%d" % number
        logs.append(log, [OutgoingMessage(payload)] * IN_A_BATCH, producer="p", sequence=number + 1)
        stored_at = time.time()
        wait_until(lambda at=stored_at: time.time() > at + 0.005)
    return log


@pytest.fixture
def log(here: PulsarTopic, plane: PulsarDataPlane, logs: PulsarLogClient) -> str:
    """A filled log; terminated, and loaded anew."""
    log = filled(here, plane, logs)
    plane.terminate_segment(log)
    assert plane.backlog(log, "billing") == BATCHES * IN_A_BATCH
    load_anew(here, log)
    return log


def load_anew(here: PulsarTopic, log: str) -> None:
    answer = requests.put(f"{here.admin_url}/admin/v2/{log.replace('://', '/')}/unload", timeout=30.0)
    assert answer.status_code == 204


def read(logs: PulsarLogClient, log: str, count: int) -> list[LogMessage]:
    """So many messages, none of them acknowledged."""
    found: list[LogMessage] = []
    with closing(
        logs.open_reader(log, "billing", owner="c", live_owners=(), on_arrival=lambda: None)
    ) as reader:
        wait_until(lambda: found.extend(reader.read(count)) or len(found) >= count, message="its messages")
    return found


def read_after(logs: PulsarLogClient, log: str, position: Position | None, count: int) -> list[LogMessage]:
    """The messages behind the position, so many, up to the end of the terminated log."""
    found: list[LogMessage] = []
    with closing(logs.open_reader_at(log, position, on_arrival=lambda: None)) as reader:
        assert reader.is_at_end() is (count == 0)
        wait_until(lambda: found.extend(reader.read(100)) or len(found) >= count, message="the rest")
        assert reader.is_at_end()
    return found


def test_its_backlog_is_told_in_messages(plane: PulsarDataPlane, log: str) -> None:
    assert plane.backlog(log, "billing") == BATCHES * IN_A_BATCH


SIZES = (3, 1, 4, 2, 6)


@pytest.mark.parametrize(
    ("acknowledged", "most_counted", "told"),
    [
        ((), 64, 16),
        ((0,), 64, 13),
        ((2,), 64, 12),
        ((0, 1, 3), 64, 10),
        ((1, 3, 4), 64, 7),
        ((), 2, 10),
        ((2, 3), 2, 6),
    ],
)
def test_what_is_acknowledged_in_any_order_is_not_in_it(
    here: PulsarTopic,
    plane: PulsarDataPlane,
    logs: PulsarLogClient,
    monkeypatch: pytest.MonkeyPatch,
    acknowledged: tuple[int, ...],
    most_counted: int,
    told: int,
) -> None:
    """Batches of several sizes; where not all are counted, the mean of the first ones stands for the others."""
    monkeypatch.setattr(stored_entries, "MOST_COUNTED", most_counted)
    log = plane.backing_topic(here.topic, "0000-ffff-0")
    plane.create_segment(log, ["billing"])
    for batch, size in enumerate(SIZES):
        logs.append(log, [OutgoingMessage(b"%d" % batch)] * size, producer="p", sequence=batch + 1)
    plane.terminate_segment(log)
    reader = logs.open_queue_reader(log, "billing", owner="c", on_arrival=lambda: None)
    with closing(reader):
        found: list[LogMessage] = []
        wait_until(lambda: found.extend(reader.read(100)) or len(found) == sum(SIZES), message="messages")
        reader.acknowledge([one.position for one in found if int(one.payload) in acknowledged])
        left = sum(SIZES) - sum(SIZES[batch] for batch in acknowledged)
        wait_until(lambda: plane.backlog(log, "billing") == left, message="acknowledgements arrive")

    load_anew(here, log)

    wait_until(lambda: cannot_count(here, log), message="the broker does not count any more")
    assert plane.backlog(log, "billing") == told


def cannot_count(here: PulsarTopic, log: str) -> bool:
    """Whether the broker refuses; if one does not any more, `PulsarDataPlane.backlog` need not count itself."""
    url = f"{here.admin_url}/admin/v2/{log.replace('://', '/')}/subscription/billing/analyzeBacklog"
    return requests.post(url, timeout=30.0).status_code == 500


def test_it_is_skipped_and_begun_again(plane: PulsarDataPlane, logs: PulsarLogClient, log: str) -> None:
    plane.skip_all(log, "billing")
    assert plane.backlog(log, "billing") == 0

    plane.seek(log, "billing", 0)

    assert len(read(logs, log, BATCHES * IN_A_BATCH)) == BATCHES * IN_A_BATCH


@pytest.mark.parametrize("first", range(BATCHES + 1))
def test_it_is_sought_to_an_instant(
    plane: PulsarDataPlane, logs: PulsarLogClient, log: str, first: int
) -> None:
    """To where each batch begins, and behind the last one."""
    times = [one.published_at_ms for one in read(logs, log, BATCHES * IN_A_BATCH)[::IN_A_BATCH]]
    assert len(set(times)) == BATCHES
    instant_ms = [*times, times[-1] + 1][first]

    plane.seek(log, "billing", instant_ms)

    assert plane.backlog(log, "billing") == (BATCHES - first) * IN_A_BATCH
    if first < BATCHES:
        assert read(logs, log, 1)[0].payload == b"%d" % first
    rest = read_after(logs, log, logs.locate(log, instant_ms), (BATCHES - first) * IN_A_BATCH)
    assert [int(one.payload) for one in rest[::IN_A_BATCH]] == list(range(first, BATCHES))


def test_entries_that_cannot_be_looked_at_count_as_one_each(
    plane: PulsarDataPlane, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is too small is better than a seek or a collection that never ends."""

    def away(*_: object) -> Ask:
        return Ask("GET", "nowhere/to/be/found", "look at an entry")

    monkeypatch.setattr(stored_entries, "entry_ask", away)
    assert plane.backlog(log, "billing") == BATCHES


def test_one_in_which_nothing_was_ever_stored_is_sought_again_and_again(
    here: PulsarTopic, plane: PulsarDataPlane
) -> None:
    """4.2.4 fails at an instant in it, and from then on refuses every move of the cursor: whoever asks must not ask that."""
    log = plane.backing_topic(here.topic, "0000-ffff-0")
    plane.create_segment(log, ["billing"])
    plane.terminate_segment(log)
    load_anew(here, log)
    assert plane.backlog(log, "billing") == 0

    for instant_ms in (0, 10**13, 0):
        plane.seek(log, "billing", instant_ms)
    plane.skip_all(log, "billing")

    assert plane.backlog(log, "billing") == 0


COUNT = BATCHES * IN_A_BATCH


@pytest.fixture(params=[False, True], ids=["sealed", "sealed and loaded again"])
def empty_at_its_end(
    request: pytest.FixtureRequest, here: PulsarTopic, plane: PulsarDataPlane, logs: PulsarLogClient
) -> str:
    """A filled log that was loaded before it was terminated: the broker names the end of its last ledger, which is empty."""
    log = filled(here, plane, logs)
    load_anew(here, log)
    assert plane.terminate_segment(log).endswith(":-1")
    if request.param:
        load_anew(here, log)
    return log


def test_one_with_an_empty_last_ledger_is_read_from_any_position(
    logs: PulsarLogClient, empty_at_its_end: str
) -> None:
    found = read_after(logs, empty_at_its_end, None, COUNT)

    for read_before in (1, IN_A_BATCH, COUNT - 1, COUNT):
        rest = read_after(logs, empty_at_its_end, found[read_before - 1].position, COUNT - read_before)
        assert [one.payload for one in rest] == [one.payload for one in found[read_before:]]
    assert read_after(logs, empty_at_its_end, logs.locate(empty_at_its_end, None), 0) == []


def test_one_with_an_empty_last_ledger_is_sought_to_an_instant(
    plane: PulsarDataPlane, logs: PulsarLogClient, empty_at_its_end: str
) -> None:
    """4.2.4 itself takes the second entry for the first of any later instant, once it has loaded the log again."""
    log, found = empty_at_its_end, read(logs, empty_at_its_end, COUNT)
    plane.skip_all(log, "billing")
    assert plane.persist_cursor_at_end(log, "billing")

    for first, message in enumerate(found[::IN_A_BATCH]):
        plane.seek(log, "billing", message.published_at_ms)
        assert plane.backlog(log, "billing") == COUNT - first * IN_A_BATCH
    plane.create_subscription(log, "later")
    assert plane.backlog(log, "later") == COUNT
