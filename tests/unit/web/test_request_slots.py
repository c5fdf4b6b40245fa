"""Slots of requests and streams: the fuller a worker is, the less it takes, of everybody and of each subject."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from controller.domain.errors import StoreUnavailable
from controller.web.paths import CONSUMER_PATH, TOPIC_PATH
from controller.web.request_slots import SMALL_BODY_BYTES, Slots, Use, use_of


def taken(slots: Slots, subject: str, use: Use) -> int:
    """How many there are of that use until the next one is refused."""
    for count in range(1_000):
        try:
            slots.take(subject, use)
        except StoreUnavailable:
            return count
    raise AssertionError("every one is taken")


def test_each_use_leaves_room_for_the_more_important_ones() -> None:
    slots = Slots(80, 80)

    assert [taken(slots, "app", use) for use in (Use.WATCH, Use.CALL, Use.SESSION, Use.HEARTBEAT)] == [
        40,
        20,
        10,
        10,
    ]


def test_a_subject_holds_a_quarter_and_leaves_room_for_its_own_heartbeats() -> None:
    slots = Slots(160)

    assert [taken(slots, "app", use) for use in (Use.WATCH, Use.CALL, Use.SESSION, Use.HEARTBEAT)] == [
        20,
        10,
        5,
        5,
    ]
    assert taken(slots, "other", Use.WATCH) == 20
    with pytest.raises(StoreUnavailable, match=r"'app' and accepts.*CLEAVE_SERVE_CONNECTIONS_OF_SUBJECT"):
        slots.take("app", Use.HEARTBEAT)


def test_large_bodies_of_a_subject_leave_room_for_those_of_others_and_for_small_ones() -> None:
    slots, large = Slots(1), 4 * 1024 * 1024
    with ExitStack() as held:
        for subject in ("a", "b", "c", "d"):
            for _ in range(4):
                held.enter_context(slots.body(subject, large))
            with pytest.raises(StoreUnavailable, match=f"of '{subject}'"), slots.body(subject, large):
                pass
        with pytest.raises(StoreUnavailable, match="receives large bodies and"), slots.body("e", large):
            pass
        with slots.body("a", SMALL_BODY_BYTES):
            pass

    with slots.body("e", large):
        pass


def test_the_operator_says_how_many_a_subject_holds() -> None:
    assert taken(Slots(100, 10), "app", Use.HEARTBEAT) == 10
    assert taken(Slots(10, 100), "app", Use.HEARTBEAT) == 10


def test_a_slot_that_is_given_back_is_there_for_anybody() -> None:
    slots = Slots(4, 4)
    assert taken(slots, "app", Use.HEARTBEAT) == 4

    slots.give_back("app")

    assert taken(slots, "other", Use.HEARTBEAT) == 1


def test_a_worker_of_one_slot_takes_every_use() -> None:
    for use in Use:
        Slots(1).take("app", use)


def test_the_use_is_the_routes() -> None:
    assert use_of(f"{CONSUMER_PATH}/assignment") is Use.SESSION
    assert use_of(f"{CONSUMER_PATH}/pulse") is Use.HEARTBEAT
    assert use_of(CONSUMER_PATH) is Use.HEARTBEAT
    assert use_of(f"{TOPIC_PATH}/layout/watch") is Use.WATCH
    assert use_of(f"{TOPIC_PATH}/layout") is Use.CALL
