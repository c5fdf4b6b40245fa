"""`cleave hot-keys`: where the load of a topic's segments lies, and what no split takes away."""

from __future__ import annotations

from sqlalchemy import Connection, text

from controller.dataplane.registry import PlaneSettings, build_planes
from controller.domain.evaluator import ALL_LANES
from controller.domain.key_sketch import MOST_BINS
from controller.domain.policy import PolicyOverride
from controller.services import autoscaler
from controller.store.load import sketches
from controller.store.load.sketches import Sketch
from controller.store.topics import inspected, policies
from tests.support.command_line import CommandLine
from tests.support.reports import report_load

HOTTEST = 7


def sketch(tx: Connection, topic_id: int, segment_id: int, *, on_hottest: int, elsewhere: int) -> None:
    """A segment with so many messages in its bin `HOTTEST`, and as many over all others together."""
    bins = [elsewhere / (MOST_BINS - 1)] * MOST_BINS
    bins[HOTTEST] = on_hottest
    sketches.write(tx, [Sketch(topic_id, segment_id, bins)], fresh_seconds=600)


def hot_topic(cleave: CommandLine, topic: str) -> int:
    """Segment 1 has three times its capacity, all but 1 % of it in one bin; segment 0 a half of it, spread."""
    with cleave.store.transaction() as tx:
        topic_id = inspected.find_topic(tx, f"topic://{topic}").topic_id
        policies.set_topic(tx, topic_id, PolicyOverride(profile="adaptive"))
        sketch(tx, topic_id, 0, on_hottest=50, elsewhere=950)
        sketch(tx, topic_id, 1, on_hottest=990, elsewhere=10)
        report_load(tx, topic_id, {0: 5_000.0, 1: 30_000.0})
    return topic_id


def decided(cleave: CommandLine) -> None:
    """One pass over the topic."""
    url = cleave.store.url.render_as_string(hide_password=False)
    planes = build_planes(PlaneSettings(embedded_url=url))
    autoscaler.run_pass(cleave.store, planes, ALL_LANES, decided_by="tests", limit=10)
    for plane in planes.values():
        plane.close()


def test_it_says_what_part_has_the_most_load_hottest_first(cleave: CommandLine, orders: str) -> None:
    hot_topic(cleave, orders)

    found = cleave.json("hot-keys", orders)

    assert found["topic"] == f"topic://{orders}"
    shown = [
        (one["segment_id"], one["hottest"], one["share"], one["load_on_hottest"]) for one in found["segments"]
    ]
    first, last = 0x8000 + HOTTEST * 32, 0x8000 + HOTTEST * 32 + 31
    assert shown == [(1, f"{first:04x}-{last:04x}", 0.99, 2.97), (0, "00e0-00ff", 0.05, 0.025)]
    assert [one["unsplittable_load"] for one in found["segments"]] == [None, None]
    assert "salt" not in cleave.ok("hot-keys", orders)


def test_it_tells_the_load_that_stays_and_what_to_do(cleave: CommandLine, orders: str) -> None:
    hot_topic(cleave, orders)
    assert cleave.json("decide", orders)["decisions"] == []
    decided(cleave)

    [one, _] = cleave.json("hot-keys", orders)["segments"]
    assert (one["segment_id"], one["unsplittable_load"]) == (1, 3)
    shown = cleave.ok("hot-keys", orders)
    assert "99.0%" in shown
    assert "more keys (a salt)" in " ".join(shown.split())


def test_what_is_no_wider_than_a_hash_needs_no_sketch_to_be_named(cleave: CommandLine, orders: str) -> None:
    topic_id = hot_topic(cleave, orders)
    decided(cleave)
    with cleave.store.transaction() as tx:
        tx.execute(text("DELETE FROM cleave.segment_sketch WHERE topic_id = :t"), {"t": topic_id})

    [one] = cleave.json("hot-keys", orders)["segments"]

    assert (one["segment_id"], one["hottest"], one["unsplittable_load"]) == (1, None, 3)


def test_readers_may_ask_and_a_topic_that_is_not_there_is_named(
    cleave: CommandLine, orders: str, reader: str
) -> None:
    assert reader
    assert "nothing found" in cleave.ok("hot-keys", orders)
    assert "does not exist" in cleave.refused("hot-keys", "acme/shop/absent")
