"""Groups of checkpoint consumers against real logs: each key in order, and nothing given away that was not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointBatch
from controller.client.checkpoint_group import CheckpointGroupConsumer
from controller.client.history import read_history
from controller.client.history_check import check
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.log_client import LogClient, LogMessage
from controller.devstack.serving import serving_leader
from controller.domain.errors import CleaveError, Conflict, DataPlaneUnavailable, InvalidInput
from controller.domain.seek_target import EARLIEST, KEPT
from controller.postgres_source import PostgresSource
from controller.services import subscription_admin
from controller.services.segment_admin import merging, splitting
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_logs import FaultyLogs
from tests.support.joined import send_numbers
from tests.support.rounds import rounds_of
from tests.support.traffic import TrafficProcess, advance
from tests.support.waiting import wait_until

GROUP = "indexers"
KEYS = [f"key-{i}" for i in range(20)]
DRAINED = "SELECT coalesce(array_agg(segment_id ORDER BY segment_id), '{}') FROM cleave.segment_drain"


class ApplicationState:
    """What the members' application keeps: the newest value of each member, as bytes."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.found: dict[str, list[int]] = {}
        self.is_away = False

    def kept_values(self) -> Iterable[bytes]:
        """Of all of them, those that are gone as well."""
        if self.is_away:
            raise ConnectionError("the application's database is away")
        return list(self.values.values())

    def work(self, batch: CheckpointBatch) -> None:
        """Note which numbers came of each key."""
        for message in batch.messages:
            assert message.key is not None
            self.found.setdefault(message.key.decode(), []).append(int(message.payload))

    def keep(self, member: CheckpointGroupConsumer) -> None:
        """Of this member, where it is now."""
        point = member.checkpoint()
        self.values[member.name] = point.to_bytes()
        member.kept(point)

    @property
    def count(self) -> int:
        """Messages that were worked on."""
        return sum(map(len, self.found.values()))


Join = Callable[..., CheckpointGroupConsumer]


@pytest.fixture
def state() -> ApplicationState:
    return ApplicationState()


@pytest.fixture
def topic(bench: Bench) -> None:
    """A topic with two segments that a group reads."""
    bench.topic_with(segments=2, subscriptions=(GROUP,), kind=SubscriptionKind.CHECKPOINT)


@pytest.fixture
def join(bench: Bench, servers: Servers, producer: Producer, state: ApplicationState) -> Iterator[Join]:
    """Members, closed at the end."""
    with ExitStack() as joined:

        def join(name: str, *, logs: LogClient | None = None, **options: Any) -> CheckpointGroupConsumer:
            return joined.enter_context(
                CheckpointGroupConsumer(
                    servers, logs or bench.logs, TOPIC, GROUP, name, state.kept_values, **options
                )
            )

        yield join


send = partial(send_numbers, keys=KEYS)


def everything(*numbers: int) -> dict[str, list[int]]:
    """These numbers of every key, in that order."""
    return {key: list(numbers) for key in KEYS}


def turn(state: ApplicationState, *members: CheckpointGroupConsumer, keeping: bool = True) -> None:
    """Each receives and works once, and keeps where it is."""
    for member in members:
        batch = member.receive(0.02)
        if batch is not None:
            state.work(batch)
        if keeping:
            state.keep(member)


def work_until(
    predicate: Callable[[], object],
    state: ApplicationState,
    *members: CheckpointGroupConsumer,
    keeping: bool = True,
) -> None:
    """Turns of all of them, until it is so."""

    def turned() -> object:
        turn(state, *members, keeping=keeping)
        return predicate()

    wait_until(turned, message="the members get there")


def share(
    state: ApplicationState, *members: CheckpointGroupConsumer, of: tuple[tuple[int, ...], ...]
) -> None:
    """Turns until each has these segments."""
    work_until(
        lambda: tuple(sorted(one.segment_ids for one in members)) == tuple(sorted(of)), state, *members
    )


def test_members_share_a_topic_in_order_through_splits_and_merges(
    bench: Bench, producer: Producer, join: Join, state: ApplicationState
) -> None:
    a, b = join("a", batch_messages=7), join("b", batch_messages=7)
    share(state, a, b, of=((0,), (1,)))
    for number, planner in enumerate((splitting(0), splitting(1), merging(3, 4))):
        send(producer, 2 * number, 2 * number + 1)
        bench.reshape(planner)
    send(producer, 6)

    work_until(lambda: state.count >= 7 * len(KEYS), state, a, b)

    assert state.found == everything(*range(7))
    work_until(lambda: bench.scalar(DRAINED) == [0, 1, 3, 4], state, a, b)


def test_a_batch_says_which_position_it_follows(
    producer: Producer, join: Join, state: ApplicationState
) -> None:
    member = join("a", batch_messages=7)
    share(state, member, of=((0, 1),))
    send(producer, 0)
    for _ in range(3):
        known = member.checkpoint().positions
        batch = member.receive(10.0)
        assert batch is not None
        assert batch.before == known[batch.segment_id]


def two_members_of_one_segment(
    producer: Producer, join: Join, state: ApplicationState
) -> tuple[CheckpointGroupConsumer, CheckpointGroupConsumer, list[int]]:
    """A member that has read everything and stored nothing, another that waits for a segment, and a list that grows when the first is
    told to store.
    """
    wanted: list[int] = []
    first = join("a", on_wanted=lambda: wanted.append(1))
    send(producer, 0)
    work_until(lambda: state.count == len(KEYS), state, first, keeping=False)
    second = join("b")
    work_until(lambda: wanted and turn(state, second) is None, state, first, keeping=False)
    return first, second, wanted


def test_a_segment_goes_to_another_only_when_what_was_handed_out_is_kept(
    bench: Bench, producer: Producer, join: Join, state: ApplicationState
) -> None:
    a, b, wanted = two_members_of_one_segment(producer, join, state)
    for _ in range(5):
        turn(state, a, keeping=False)
        turn(state, b)
    assert (len(wanted), b.segment_ids) == (1, ())

    state.keep(a)
    share(state, a, b, of=((0,), (1,)))
    send(producer, 1)
    work_until(lambda: state.count >= 2 * len(KEYS), state, a, b)

    assert state.found == everything(0, 1)


def test_a_request_to_store_that_failed_is_raised_once_and_repeated_by_the_next_call(
    producer: Producer, join: Join, state: ApplicationState
) -> None:
    errors = [ConnectionError("first"), ConnectionError("second")]
    raised: list[str] = []

    def store() -> None:
        if errors:
            raise errors.pop(0)
        state.keep(a)

    a = join("a", on_wanted=store)
    early = a.checkpoint()
    send(producer, 0)
    work_until(lambda: state.count == len(KEYS), state, a, keeping=False)
    b = join("b")

    def turned() -> list[str]:
        try:
            turn(state, a, keeping=False)
        except ConnectionError as error:
            raised.append(str(error))
        turn(state, b)
        return raised

    wait_until(turned, message="a segment of the first is wanted")
    with pytest.raises(ConnectionError, match="second"):
        a.kept(early)  # which says nothing of what was delivered since
    wait_until(lambda: turned() and b.segment_ids, message="the second gets a segment")

    assert raised == ["first"]


def failures_of(
    error: type[Exception], state: ApplicationState, *members: CheckpointGroupConsumer
) -> Callable[[], int]:
    """A function that has the members work once, without storing, and returns how often that has failed with the error so far."""
    failures = 0

    def turned() -> int:
        nonlocal failures
        for member in members:
            try:
                turn(state, member, keeping=False)
            except error:
                failures += 1
        return failures

    return turned


def test_a_request_to_store_that_always_fails_is_raised_and_withholds_no_other_segment(
    producer: Producer, join: Join, state: ApplicationState
) -> None:
    def store() -> None:
        raise ConnectionError("the application's database is away")

    a = join("a", on_wanted=store)
    send(producer, 0)
    work_until(lambda: state.count == len(KEYS), state, a, keeping=False)
    turned = failures_of(ConnectionError, state, a, join("b"))
    wait_until(turned, message="a segment of the first is wanted")

    send(producer, 1)
    wait_until(lambda: turned() and state.count > len(KEYS), message="the other segment is read")
    before = turned()
    wait_until(lambda: turned() > before, message="the error is raised again")


def test_values_that_cannot_be_told_withhold_no_segment_that_has_its_position(
    producer: Producer, join: Join, state: ApplicationState
) -> None:
    a, b = join("a"), join("b")
    share(state, a, b, of=((0,), (1,)))
    state.is_away = True
    b.close()
    turned = failures_of(ConnectionError, state, a)
    wait_until(turned, message="the first is assigned the segment of the second")

    send(producer, 0)
    wait_until(lambda: turned() and state.count, message="the first reads its own segment")
    state.is_away = False
    work_until(lambda: state.count == len(KEYS), state, a)

    assert state.found == everything(0)


def test_a_request_to_store_that_stores_too_little_is_not_repeated(
    producer: Producer, join: Join, state: ApplicationState
) -> None:
    wanted: list[int] = []

    def store() -> None:
        wanted.append(1)
        a.kept(early)  # which says nothing of what was delivered since

    a = join("a", on_wanted=store)
    early = a.checkpoint()
    send(producer, 0)
    work_until(lambda: state.count == len(KEYS), state, a, keeping=False)
    b = join("b")
    work_until(lambda: wanted and turn(state, b) is None, state, a, keeping=False)
    for _ in range(5):
        turn(state, a, keeping=False)
        turn(state, b)

    assert (len(wanted), b.segment_ids) == (1, ())


def test_a_checkpoint_of_another_topic_gives_nothing_away(
    bench: Bench, producer: Producer, join: Join, state: ApplicationState
) -> None:
    a, b, _ = two_members_of_one_segment(producer, join, state)

    with pytest.raises(Conflict, match="return the checkpoints of this group"):
        a.kept(replace(a.checkpoint(), topic_id=999))
    for _ in range(20):
        turn(state, a, keeping=False)
        turn(state, b)

    assert b.segment_ids == ()
    state.keep(a)
    share(state, a, b, of=((0,), (1,)))


def test_who_dies_is_followed_by_one_that_begins_at_what_was_kept_last(
    producer: Producer, join: Join, state: ApplicationState
) -> None:
    a = join("a")
    send(producer, 0)
    work_until(lambda: state.count == len(KEYS), state, a)
    send(producer, 1)
    work_until(lambda: state.count == 2 * len(KEYS), state, a, keeping=False)
    a.close()

    work_until(lambda: state.count == 3 * len(KEYS), state, join("b"))

    assert state.found == everything(0, 1, 1)


def test_children_wait_until_it_is_kept_that_their_parent_is_read_to_its_end(
    bench: Bench, producer: Producer, join: Join, state: ApplicationState
) -> None:
    """Or one who dies then leaves messages behind that nobody reads again."""
    a = join("a")
    early = a.checkpoint()
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    unkept = "read to its end, once that is kept"
    work_until(
        lambda: {one.segment_id: one.reason for one in a.why()}.get(0) == unkept, state, a, keeping=False
    )
    a.kept(early)  # which says nothing of what was delivered since
    for _ in range(20):
        turn(state, a, keeping=False)
    assert bench.scalar(DRAINED) == []
    assert any(numbers == [0] for numbers in state.found.values())
    a.close()

    b = join("b")
    state.found.clear()
    work_until(lambda: state.count >= 2 * len(KEYS), state, b)

    assert state.found == everything(0, 1)
    work_until(lambda: bench.scalar(DRAINED) == [0], state, b)


def test_an_empty_segment_that_a_stored_value_names_is_reported_only_once_its_end_is_stored(
    bench: Bench, producer: Producer, join: Join, state: ApplicationState
) -> None:
    """Or the stored value names a segment that the group has left, and no member can begin."""
    a = join("a")
    share(state, a, of=((0, 1),))
    assert Checkpoint.from_bytes(state.values["a"]).positions == {0: None, 1: None}
    bench.reshape(splitting(0))
    unkept = "read to its end, once that is kept"
    work_until(
        lambda: {one.segment_id: one.reason for one in a.why()}.get(0) == unkept, state, a, keeping=False
    )
    a.close()

    b = join("b")
    share(state, b, of=((1, 2, 3),))
    send(producer, 0)
    work_until(lambda: state.count >= len(KEYS), state, b)

    assert state.found == everything(0)
    assert bench.scalar(DRAINED) == [0]


def test_an_empty_segment_that_another_member_has_stored_waits_for_its_end_to_be_stored(
    bench: Bench, join: Join, state: ApplicationState
) -> None:
    a = join("a")
    share(state, a, of=((0, 1),))
    a.close()
    bench.reshape(splitting(0))
    b = join("b")

    work_until(lambda: 0 in b._segments and b._segments[0].is_done, state, b, keeping=False)

    assert not b._segments[0].is_kept


def test_an_empty_segment_that_a_checkpoint_has_named_waits_for_its_end_to_be_stored(
    bench: Bench, join: Join, state: ApplicationState
) -> None:
    """The application may store the checkpoint after the segment was read to its end."""
    a = join("a")
    work_until(lambda: a.checkpoint().positions == {0: None, 1: None}, state, a, keeping=False)
    bench.reshape(splitting(0))
    unkept = "read to its end, once that is kept"
    work_until(
        lambda: {one.segment_id: one.reason for one in a.why()}.get(0) == unkept, state, a, keeping=False
    )
    assert not a._segments[0].is_kept

    a.kept(a.checkpoint())

    work_until(lambda: bench.scalar(DRAINED) == [0], state, a, keeping=False)


def test_an_empty_segment_that_no_stored_value_names_is_reported_at_once(
    bench: Bench, producer: Producer, join: Join, state: ApplicationState
) -> None:
    bench.reshape(splitting(0))
    a = join("a")

    work_until(lambda: bench.scalar(DRAINED) == [0], state, a, keeping=False)

    assert state.values == {}


def test_members_are_told_that_another_one_is_not_connected(
    producer: Producer, join: Join, state: ApplicationState
) -> None:
    a, b = join("a"), join("b")
    work_until(lambda: len(a.segment_ids) == len(b.segment_ids) == 1, state, a, b)
    [of_a] = a.segment_ids
    assert [(one.segment_id, one.reason, one.holder) for one in b.why() if one.holder] == [
        (of_a, "owned by a", "a")
    ]
    a.close(leave=False)

    def told() -> list[tuple[int, str, str]]:
        return [(one.segment_id, one.reason, one.holder) for one in b.why() if one.holder and one.since]

    away = "owner is not connected: it may come back until its grace period is over"
    work_until(lambda: told() == [(of_a, away, "a")], state, b)


def test_what_was_read_while_the_leader_was_not_heard_is_not_handed_out(
    producer: Producer, join: Join, state: ApplicationState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 6: a process that was stopped in the middle of a read wakes up when others have what it reads."""
    a = join("a")
    work_until(lambda: len(a.segment_ids) == 2, state, a)
    [reader, *_] = wait_until(
        lambda: [one.reader for one in a._readers.all if one.reader is not None] or None, message="readers"
    )
    is_current = type(a._session).is_current
    reading = reader.read
    late: list[int] = []

    def read_late(limit: int) -> Sequence[LogMessage]:
        found = reading(limit)
        if found:
            late.append(len(found))
            monkeypatch.setattr(type(a._session), "is_current", False)
        return found

    monkeypatch.setattr(reader, "read", read_late)
    send(producer, 0)
    wait_until(lambda: a.receive(0.02) is None and late, message="a late read")
    monkeypatch.setattr(type(a._session), "is_current", is_current)
    state.found.clear()

    work_until(lambda: state.count >= late[0], state, a)

    assert all(numbers == [0] for numbers in state.found.values())


def test_what_the_application_cannot_tell_is_no_beginning(
    producer: Producer, join: Join, state: ApplicationState
) -> None:
    a = join("a")
    send(producer, 0)
    work_until(lambda: state.count == len(KEYS), state, a)
    a.close()
    state.is_away = True
    b = join("b")
    failures = 0

    def fails() -> bool:
        nonlocal failures
        try:
            assert b.receive(0.05) is None
        except ConnectionError:
            failures += 1
        return failures > 2

    wait_until(fails)
    state.is_away = False
    send(producer, 1)
    work_until(lambda: state.count == 2 * len(KEYS), state, b)

    assert state.found == everything(0, 1)


def test_the_values_of_all_say_where_the_group_is_at_every_moment(
    bench: Bench, producer: Producer, join: Join, state: ApplicationState
) -> None:
    """Trap 12: whoever gave a segment away names it until its next owner has kept a place in it."""
    a = join("a")
    send(producer, 0)
    work_until(lambda: state.count == len(KEYS), state, a)
    b = join("b")
    work_until(lambda: len(a.segment_ids) == 1, state, a)
    while b.receive(0.05) is None and not b.segment_ids:
        state.keep(a)
    a.close()
    b.close()  # it has kept nothing

    send(producer, 1)
    c = join("c")
    work_until(lambda: state.count >= 2 * len(KEYS), state, c)

    assert state.found == everything(0, 1)


def test_a_group_begins_at_an_instant_and_its_children_at_their_first_message(
    bench: Bench, producer: Producer, join: Join, state: ApplicationState
) -> None:
    send(producer, 0)
    wait_until(lambda: bench.scalar("SELECT pg_sleep(0.01) IS NOT NULL"))
    start = datetime.now(UTC)
    send(producer, 1)
    bench.reshape(splitting(0))
    send(producer, 2)
    with pytest.raises(InvalidInput, match="no time zone"):
        join("x", start=start.replace(tzinfo=None))

    a = join("a", start=start)
    work_until(lambda: state.count >= 2 * len(KEYS), state, a)

    assert state.found == everything(1, 2)


def test_a_group_goes_back_to_older_values_parents_before_children(
    bench: Bench, producer: Producer, join: Join, state: ApplicationState
) -> None:
    a = join("a")
    send(producer, 0)
    work_until(lambda: state.count == len(KEYS), state, a)
    older = dict(state.values)
    send(producer, 1)
    bench.reshape(splitting(0))
    send(producer, 2)
    work_until(lambda: bench.scalar(DRAINED) == [0] and state.count == 3 * len(KEYS), state, a)
    a.close()
    state.values = older

    b = join("b")
    with pytest.raises(Conflict, match=r"seek .* kept"):
        wait_until(lambda: b.receive(0.05))
    intent = subscription_admin.seek_subscription(
        bench.store, TOPIC, GROUP, KEPT, bench.request(), release_seconds=60.0
    )

    def is_sought() -> bool:
        with suppress(Conflict):
            b.receive(0.02)
        bench.run_once(intent.operation.operation_id)
        return not bench.operation(intent.operation.operation_id).state.is_live

    wait_until(is_sought)
    state.found.clear()
    work_until(lambda: state.count >= 2 * len(KEYS), state, b)

    assert state.found == everything(1, 2)
    work_until(lambda: bench.scalar(DRAINED) == [0], state, b)


def test_each_kind_of_subscription_has_its_own_consumers(
    bench: Bench, servers: Servers, join: Join, state: ApplicationState
) -> None:
    with pytest.raises(Conflict, match="recorded as CHECKPOINT"):
        StreamConsumer(servers, bench.logs, TOPIC, GROUP, "a")
    bench.subscribe("billing")
    with pytest.raises(Conflict, match="recorded as STREAM"):
        CheckpointGroupConsumer(servers, bench.logs, TOPIC, "billing", "a", state.kept_values)
    for name, target in (("billing", KEPT), (GROUP, EARLIEST)):
        with pytest.raises(Conflict):
            subscription_admin.seek_subscription(
                bench.store, TOPIC, name, target, bench.request(), release_seconds=1.0
            )


def test_values_of_another_topic_are_refused(join: Join, state: ApplicationState) -> None:
    state.values["x"] = Checkpoint(999, "topic://acme/shop/others", 0, {0: (1,)}, frozenset()).to_bytes()
    a = join("a")

    with pytest.raises(CleaveError, match="others"):
        wait_until(lambda: a.receive(0.05))


@pytest.mark.timeout(180)
def test_processes_that_are_killed_lose_nothing_and_keep_each_key_in_order(
    bench: Bench, source: PostgresSource, tmp_path: Path
) -> None:
    bench.topic_with(segments=2, subscriptions=(GROUP,), kind=SubscriptionKind.CHECKPOINT)
    with ExitStack() as running:
        address = running.enter_context(serving_leader(bench.url, consumer_grace_seconds=2.0))

        def start(role: str, name: str, life: int = 1) -> TrafficProcess:
            directory = tmp_path / f"{name}-{life}"
            directory.mkdir()
            return running.enter_context(
                TrafficProcess(
                    role,
                    name,
                    url=bench.url,
                    topic=TOPIC,
                    directory=directory,
                    subscription=GROUP,
                    rate=500,
                    address=address,
                    results=str(tmp_path),
                )
            )

        producer, members = start("produce", "p"), [start("index", "a")]
        advance(*members)  # before the others come: of three members one has nothing of two segments
        members += [start("index", name) for name in "bc"]
        bench.reshape(splitting(0))
        members[1].kill()
        advance(members[0])
        members.append(start("index", "b", 2))
        bench.reshape(splitting(1))
        members[0].kill()  # and it does not come back
        advance(members[3])
        bench.reshape(merging(3, 4))
        advance(members[3])
        producer.stop()
        histories = [one.history for one in (producer, *members)]
        wait_until(
            lambda: check(read_history(*histories)).in_order_and_complete,
            timeout_seconds=60,
            message="everything is read",
        )
        for one in members[2:]:
            one.stop()
        verdict = check(read_history(*histories))

    assert verdict.in_order_and_complete, verdict
    assert verdict.sent > 0


def test_who_is_paused_waits_and_goes_round_no_more_often_than_needed(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given segments meanwhile, which it does not open yet."""
    member = join("a")
    member.pause()
    wait_until(lambda: (member.receive(0.0), member._readers.all)[1], message="it has segments to read")

    assert rounds_of(member, 0.3, monkeypatch) < 10


def test_a_pause_is_no_outage(bench: Bench, join: Join) -> None:
    """No log is opened meanwhile, so none can be reached again."""
    logs = FaultyLogs(bench.logs)
    logs.out_of_reach = {bench.log_of(0), bench.log_of(1)}
    member = join("a", logs=logs, patience_seconds=0.05)
    wait_until(
        lambda: member.receive(0.0) is None and "out of reach" in "".join(one.reason for one in member.why())
    )

    member.pause()
    assert [member.receive(0.02) for _ in range(5)] == [None] * 5

    member.resume()
    with pytest.raises(DataPlaneUnavailable, match="out of reach"):
        wait_until(lambda: member.receive(0.1))


def test_more_members_than_segments_leave_some_idle_and_none_shares_one(
    producer: Producer, join: Join, state: ApplicationState
) -> None:
    """A place in a segment is of the whole of it."""
    members = [join(name) for name in "abc"]

    share(state, *members, of=((), (0,), (1,)))
