"""A bucket goes, comes back and goes again, with an acknowledgement and a close at every step of it.

Another consumer joins, leaves and joins (apache/pulsar#26208): this one is asked for its bucket, lets go of it, is given it anew and
asked once more. Its logs and its leader are the test's, so each step lasts as long as the test wants. `demand_laws` says what holds
whatever the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from controller.client import session
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.domain.errors import InvalidInput
from controller.domain.hash_range import HashRange
from tests.support.held_logs import EventRecord, HeldLogs
from tests.support.scripted_leader import PATIENCE_SECONDS, BackgroundCall, Call, ScriptedLeader
from tests.support.waiting import wait_until


class ConsumerScene:
    """One consumer, its logs and its leader."""

    def __init__(self, *, is_told: bool, **messages: int) -> None:
        """`is_told`: the application wants to be called before a bucket goes."""
        self.is_told, self.record = is_told, EventRecord()
        self.logs = HeldLogs(self.record, **messages)
        self.leader = ScriptedLeader(self._note)
        self.generations: list[int] = []
        """At which the bucket of segment 0 came, reader by reader."""
        self.in_callback: Callable[[], None] = lambda: None
        self._version = 0
        self.consumer = StreamConsumer(
            self.leader,
            self.logs,
            "topic://a/b/c",
            "s",
            "me",
            batch_messages=2,
            on_release=self._told if is_told else None,
        )

    def _note(self, call: Call) -> None:
        if call.what == "released":
            for one in call.document["buckets"]:
                self.record.note("released", one["segment_id"], one["generation"])
        elif call.what == "goodbye":
            self.record.note("goodbye")

    def _told(self, segment_id: int, _bucket: HashRange) -> None:
        self.record.note("told", f"log_{segment_id}")
        self.in_callback()
        self.record.pass_by("told")

    def tell(self, *buckets: dict[str, Any]) -> None:
        """What the consumer owns from now on."""
        self._version += 1
        self.leader.feed().say(
            "assignment",
            {
                "term": 1,
                "generation": self._version,
                "epoch": 0,
                "origin": 1,
                "data_plane": "embedded",
                "buckets": buckets,
            },
        )

    def ask_for(self, segment_id: int, generation: int, *others: dict[str, Any]) -> None:
        """Have it asked for a bucket; returns when it knows."""
        self.tell(bucket(segment_id, generation, release=True), *others)
        wait_until(lambda: segment_id not in {mine for mine, _ in self.consumer.buckets})

    def receive(self) -> Batch:
        """The next batch, which there is."""
        batch = self.consumer.receive(PATIENCE_SECONDS)
        assert batch is not None
        self.record.note("handed", int(batch.messages[0].payload))
        return batch

    def let_all_go_on(self) -> None:
        """Nothing waits for the test any more."""
        self.record.let_go()
        held = [*self.leader.held]
        self.leader.held.clear()
        for what in held:
            for call in self.leader.of(what):
                call.answer()


def bucket(segment_id: int, generation: int, *, release: bool = False) -> dict[str, Any]:
    """A whole segment, as a leader tells of it."""
    return {
        "segment_id": segment_id,
        "bucket_start": 0,
        "bucket_end": 65535,
        "buckets": 1,
        "sealed": False,
        "backing_topic": f"log_{segment_id}",
        "generation": generation,
        "release": release,
    }


def demand_laws(world: ConsumerScene, accepted: dict[int, int], *, closes_in_a_call: bool = False) -> None:
    """What holds of every run that has ended. `accepted`: how many acknowledgements of each reader's messages were said to be taken.
    `closes_in_a_call`: the application closed the consumer while another call of its own was closing a reader.
    """
    entries = world.record.entries
    numbers = range(1, world.logs.opened + 1)

    def places(*entry: object) -> list[int]:
        return [i for i, one in enumerate(entries) if one == entry]

    for n in numbers:
        world.record.wait_for("closed", n)
    for n in numbers:
        assert len(places("closed", n)) == 1, f"reader {n} is closed once: {entries}"
        [closing] = places("closing", n)
        later = {entry[0] for entry in entries[closing:] if entry[-1] == n and entry[0] != "released"}
        assert later <= {"closing", "closed"}, f"of reader {n} nothing is used once its closing has begun"
        assert len(places("acked", n)) == accepted.get(n, 0), f"each reader is told of its own: {entries}"
    for number, generation in enumerate(world.generations, start=1):
        for word in places("released", 0, generation):
            assert word > places("closed", number)[0], f"the leader is told when it is closed: {entries}"
    [goodbye] = places("goodbye")
    assert all(i < goodbye for n in numbers for i in places("opening", n)), f"nothing is opened: {entries}"
    if not closes_in_a_call:
        assert all(i < goodbye for n in numbers for i in places("closed", n)), f"goodbye is last: {entries}"


STEPS = ("owned", "asked", "told", "closing", "saying", "gone", "opening", "owned_again", "asked_again")
"""Read and in hand; asked for; the application is told of it; the reader is closing; the word to the leader is under way; another has
the bucket; it is given back and its reader is being opened; in hand again; asked for again.
"""
ALL_STEPS = (*STEPS, "the_end")
Step = str


class ConsumerClosed(Exception):
    """The consumer was closed at this step."""


class StepOrder:
    """All steps, with one acknowledgement of the first batch and one close at these of them. A batch that is not acknowledged before it
    has to go is let go of, and its acknowledgement comes late.
    """

    def __init__(self, *, is_told: bool, ack_at: Step, close_at: Step) -> None:
        self.world = ConsumerScene(is_told=is_told, log_0=4)
        self.world.generations = [1, 2]
        self.is_told, self.ack_at, self.close_at = is_told, ack_at, close_at
        self.calls: list[BackgroundCall[Any]] = []
        self.ack: BackgroundCall[bool] | None = None
        self.accepted: dict[int, int] = {}

    @property
    def is_settled_late(self) -> bool:
        return STEPS.index(self.ack_at) > STEPS.index("asked")

    @property
    def closes_in_a_call(self) -> bool:
        """What the stand-in closes, a close of the consumer waits for."""
        is_stand_in = self.ack_at == "owned" and not self.is_told
        return self.close_at in ("told", "closing", "asked") and not is_stand_in

    def acknowledge_first(self) -> bool:
        return self.world.consumer.acknowledge(self.first)

    def act(self, step: Step) -> None:
        """What is to be done at this step."""
        if step == self.ack_at != "told":  # there the callback does it
            self.ack = BackgroundCall(self.acknowledge_first)
            if step not in ("asked", "closing"):  # there it may wait until the reader is closed
                self.ack.result()
        if step == self.close_at:
            self.close(step)
            raise ConsumerClosed

    def close(self, step: Step) -> None:
        world = self.world
        held = world.consumer._readers.all
        if step not in ("asked", "closing", "opening"):
            world.record.let_go("close")
        closing = BackgroundCall(world.consumer.close)
        if step == "opening":  # its closing is to begin before its opening ends
            wait_until(lambda: all(one.is_closed for one in held))
        elif step not in ("asked", "closing"):
            closing.result()
        world.let_all_go_on()
        closing.result()

    def run(self) -> None:
        """As far as the close."""
        self.world.record.hold("told", "close")
        self.world.leader.held = {"released"}
        self.own()
        self.let_go()
        self.own_again()
        self.let_go_again()

    def own(self) -> None:
        self.world.tell(bucket(0, 1))
        self.first = self.world.receive()
        self.act("owned")
        self.world.ask_for(0, 1)
        self.act("asked")

    def let_go(self) -> None:
        world, record = self.world, self.world.record
        self.begin_release()
        if self.is_told:
            record.wait_for("told", "log_0")
            self.act("told")
            record.let_go("told")
        record.wait_for("closing", 1)
        self.act("closing")
        record.let_go("close")
        word = world.leader.call("released")
        self.act("saying")
        world.leader.held.clear()
        word.answer()
        for call in self.calls:
            call.result()

    def own_again(self) -> None:
        world, record = self.world, self.world.record
        world.tell()
        self.act("gone")
        record.hold("open")
        world.tell(bucket(0, 2))
        record.wait_for("opening", 2)
        self.act("opening")
        record.let_go("open")
        self.second = world.receive()
        assert [one.position for one in self.second.messages] == [(1,), (2,)]
        assert self.second.after is None, "no old watermark"
        self.act("owned_again")

    def let_go_again(self) -> None:
        """No old watermark keeps it."""
        world = self.world
        world.ask_for(0, 2)
        self.act("asked_again")
        assert world.consumer.acknowledge(self.second)
        self.accepted[2] = 1
        world.record.wait_for("released", 0, 2)
        self.close("the_end")

    def begin_release(self) -> None:
        """What is in hand is settled now, or let go of."""
        consumer = self.world.consumer
        if self.ack_at == "told":
            self.world.in_callback = self.acknowledge_in_callback
        if self.is_settled_late:
            self.calls.append(BackgroundCall(lambda: consumer.let_go(self.first)))
        elif self.ack_at == "owned" and self.is_told:
            self.calls.append(BackgroundCall(lambda: consumer.receive(0.0)))

    def acknowledge_in_callback(self) -> None:
        self.world.in_callback = lambda: None
        if self.acknowledge_first():
            self.accepted[1] = 1

    def demand(self) -> None:
        """What holds when all has ended."""
        consumer = self.world.consumer
        for call in self.calls:
            call.result()
        if self.ack is not None and self.ack.result():
            self.accepted[1] = 1
        assert not consumer.acknowledge(self.first), "closed"
        with pytest.raises(InvalidInput, match="was closed"):
            consumer.receive(0.0)
        is_in_time = not self.is_settled_late or self.ack_at == "told"
        if ALL_STEPS.index(self.close_at) > STEPS.index(self.ack_at):
            assert self.accepted.get(1, 0) == is_in_time
        demand_laws(self.world, self.accepted, closes_in_a_call=self.closes_in_a_call)


CASES = [
    (is_told, ack_at, close_at)
    for is_told, ack_at, close_at in product((False, True), STEPS, ALL_STEPS)
    if is_told or "told" not in (ack_at, close_at)
]


@pytest.mark.parametrize(("is_told", "ack_at", "close_at"), CASES)
def test_at_every_step_each_reader_has_its_own_acknowledgements_and_is_closed_once(
    is_told: bool, ack_at: Step, close_at: Step
) -> None:
    play = StepOrder(is_told=is_told, ack_at=ack_at, close_at=close_at)
    try:
        with suppress(ConsumerClosed):
            play.run()
    finally:
        play.world.let_all_go_on()
        play.world.consumer.close()
    play.demand()


@pytest.fixture
def worlds() -> Iterator[Callable[..., ConsumerScene]]:
    """Makes them; they are closed at the end."""
    made: list[ConsumerScene] = []

    def make(**options: Any) -> ConsumerScene:
        made.append(ConsumerScene(**options))
        return made[-1]

    yield make
    for world in made:
        world.let_all_go_on()
        world.consumer.close()


Worlds = Callable[..., ConsumerScene]
both = pytest.mark.parametrize("is_told", [False, True])


@both
def test_an_acknowledgement_in_flight_is_waited_for(worlds: Worlds, is_told: bool) -> None:
    """Also one that is said again of what is settled already: nothing but itself keeps the bucket."""
    world = worlds(is_told=is_told, log_0=2)
    world.tell(bucket(0, 1))
    batch = world.receive()
    assert world.consumer.acknowledge(batch)
    world.record.hold("ack")
    in_flight = BackgroundCall(lambda: world.consumer.acknowledge(batch))
    wait_until(lambda: world.record.entries.count(("ack", 1)) == 2)

    world.tell(bucket(0, 1, release=True))
    wait_until(lambda: knows_release(world))
    world.record.let_go()
    assert in_flight.result()
    world.consumer.receive(0.0)
    world.record.wait_for("released", 0, 1)

    world.consumer.close()
    world.generations = [1]
    demand_laws(world, {1: 2})


def knows_release(world: ConsumerScene) -> bool:
    """Whether the session does."""
    found = world.consumer._session.assignment
    return found is not None and any(one.release for one in found.buckets)


@both
def test_of_a_read_in_flight_when_the_bucket_is_asked_for_nothing_else_is_handed_out(
    worlds: Worlds, is_told: bool
) -> None:
    """What it finds is in hand, and is waited for; nothing behind it is delivered."""
    world = worlds(is_told=is_told, log_0=4)
    world.record.hold("read")
    world.tell(bucket(0, 1))
    receiving = BackgroundCall(world.receive)
    world.record.wait_for("read", 1)

    world.tell(bucket(0, 1, release=True))
    wait_until(lambda: knows_release(world))
    world.record.let_go()
    batch = receiving.result()
    assert world.consumer.receive(0.0) is None
    assert ("closing", 1) not in world.record.entries, "it is in hand"
    assert world.consumer.acknowledge(batch)
    world.record.wait_for("released", 0, 1)

    world.consumer.close()
    world.generations = [1]
    demand_laws(world, {1: 1})


@both
def test_a_bucket_that_comes_back_from_further_back_goes_again(worlds: Worlds, is_told: bool) -> None:
    """How far an earlier ownership had come says nothing: its acknowledgements may be forgotten, or the cursor was moved."""
    world = worlds(is_told=is_told, log_0=4)
    world.generations = [1, 2]
    world.tell(bucket(0, 1))
    for _ in range(2):
        assert world.consumer.acknowledge(world.receive())
    world.ask_for(0, 1)
    world.consumer.receive(0.0)
    world.record.wait_for("released", 0, 1)

    world.tell(bucket(0, 2))
    first = world.receive()
    world.ask_for(0, 2)
    assert world.consumer.acknowledge(first)

    world.record.wait_for("released", 0, 2)
    world.consumer.close()
    demand_laws(world, {1: 2, 2: 1})


@both
def test_an_armed_receive_hands_out_nothing_of_what_is_let_go_of(worlds: Worlds, is_told: bool) -> None:
    """Its messages come when the release has begun; those of another bucket end the wait."""
    world = worlds(is_told=is_told)
    world.tell(bucket(0, 1), bucket(1, 1))
    receiving = BackgroundCall(lambda: world.consumer.receive(PATIENCE_SECONDS))
    for number in (1, 2):
        world.record.wait_for("read", number)
    world.record.hold("close")

    world.tell(bucket(0, 1, release=True), bucket(1, 1))
    world.record.wait_for("closing", number_of(world, 0))
    world.logs.arrive("log_0", 2)
    world.record.let_go()
    world.record.wait_for("released", 0, 1)
    world.logs.arrive("log_1", 2)

    batch = receiving.result()
    assert batch is not None
    assert batch.segment_id == 1
    world.consumer.close()
    demand_laws(world, {})


def number_of(world: ConsumerScene, segment_id: int) -> int:
    """Of the reader of that log."""
    return world.logs.numbers[f"log_{segment_id}"]


@both
def test_what_is_let_go_of_aside_when_the_consumer_is_closed_is_closed_once(
    worlds: Worlds, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader was not heard for the whole grace period: the session's thread lets go of all, and meanwhile the close comes."""
    world = worlds(is_told=is_told, log_0=2)
    world.tell(bucket(0, 1))
    batch = world.receive()
    world.record.hold("close")
    world.leader.held = {"register"}
    monkeypatch.setattr(session, "boot_seconds", lambda: 1e9)
    world.leader.feed().hang_up()
    world.record.wait_for("closing", 1)

    closing = BackgroundCall(world.consumer.close)
    late = BackgroundCall(lambda: world.consumer.acknowledge(batch))
    world.let_all_go_on()
    closing.result()

    assert not late.result()
    world.record.wait_for("closed", 1)
    demand_laws(world, {}, closes_in_a_call=True)


def test_what_the_application_is_told_of_may_be_acknowledged_once_more_then(worlds: Worlds) -> None:
    """As one does that settles all it knows of; it is told of the bucket once."""
    world = worlds(is_told=True, log_0=2)
    world.tell(bucket(0, 1))
    batch = world.receive()
    world.in_callback = lambda: accepted.append(world.consumer.acknowledge(batch))
    accepted = list[bool]()
    world.ask_for(0, 1)

    assert world.consumer.acknowledge(batch)

    world.record.wait_for("released", 0, 1)
    assert world.record.entries.count(("told", "log_0")) == 1
    world.consumer.close()
    demand_laws(world, {1: 2})
