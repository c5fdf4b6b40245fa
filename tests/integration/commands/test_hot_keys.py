"""`cleave hot-keys`: where the load of a topic's segments lies, and what no split takes away."""

from __future__ import annotations

from sqlalchemy import Connection

from controller.dataplane.registry import PlaneSettings, build_planes
from controller.domain.evaluator import ALL_LANES
from controller.domain.policy import PolicyOverride
from controller.services import autoscaler
from controller.store.load import sketches
from controller.store.load.sketches import Sketch
from controller.store.topics import inspector_reads, policies
from tests.support.command_line import CommandLine
from tests.support.reports import report_load

HOTTEST = 7
WIDTH = 64


def sketch(tx: Connection, topic_id: int, segment_id: int, bins: int, *, on_hottest: int) -> None:
    """A segment with so many of 1,000 messages in its bin `HOTTEST`, and the others spread evenly."""
    counts = [(1_000 - on_hottest) / (bins - 1)] * bins
    counts[HOTTEST] = on_hottest
    sketches.write(tx, [Sketch(topic_id, segment_id, counts)], fresh_seconds=600)


def hot_topic(cleave: CommandLine, topic: str, *cuts: int) -> int:
    """Segment 2 has three times its capacity, all but 1 % of it on one hash; segment 0 a half of it, spread."""
    at = [option for cut in cuts or (0x8000 + WIDTH,) for option in ("--cut-points", hex(cut))]
    cleave.ok("segments", "split", topic, "1", *at)
    with cleave.store.transaction() as tx:
        topic_id = inspector_reads.find_topic(tx, f"topic://{topic}").topic_id
        policies.set_topic(tx, topic_id, PolicyOverride(profile="adaptive"))
        sketch(tx, topic_id, 0, 1_024, on_hottest=50)
        if not cuts:
            sketch(tx, topic_id, 2, WIDTH, on_hottest=990)
        report_load(tx, topic_id, {0: 5_000.0, 2: 30_000.0, 3: 5_000.0})
    return topic_id


def decided(cleave: CommandLine) -> None:
    """One pass over the topic."""
    url = cleave.store.address.uri
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
    assert shown == [(2, "8007-8007", 0.99, 2.97), (0, "00e0-00ff", 0.05, 0.025)]
    assert [one["unsplittable_load"] for one in found["segments"]] == [None, None]
    assert "salt" not in cleave.ok("hot-keys", orders)


def test_it_tells_the_load_that_stays_and_what_to_do(cleave: CommandLine, orders: str) -> None:
    hot_topic(cleave, orders)
    assert cleave.json("decide", orders)["decisions"] == []
    decided(cleave)

    [one, _] = cleave.json("hot-keys", orders)["segments"]
    assert (one["segment_id"], one["unsplittable_load"]) == (2, 3)
    shown = cleave.ok("hot-keys", orders)
    assert "99.0%" in shown
    assert "more keys (a salt)" in " ".join(shown.split())


def test_an_unsplittable_load_is_that_of_now(cleave: CommandLine, orders: str) -> None:
    """The same refusal at another load is not written again."""
    topic_id = hot_topic(cleave, orders)
    decided(cleave)
    with cleave.store.transaction() as tx:
        report_load(tx, topic_id, {2: 12_000.0})
    decided(cleave)

    [one, _] = cleave.json("hot-keys", orders)["segments"]

    assert (one["segment_id"], one["load"], one["unsplittable_load"]) == (2, 1.2, 1.2)


def test_a_segment_of_one_hash_needs_no_sample(cleave: CommandLine, orders: str) -> None:
    hot_topic(cleave, orders, 0x8001)
    decided(cleave)

    one, _ = cleave.json("hot-keys", orders)["segments"]

    assert (one["segment_id"], one["hottest"], one["share"], one["load_on_hottest"], one["messages"]) == (
        2, "8000-8000", 1, 3, None,
    )  # fmt: skip
    assert one["unsplittable_load"] == 3


def test_readers_may_ask_and_a_topic_that_is_not_there_is_named(
    cleave: CommandLine, orders: str, reader: str
) -> None:
    assert reader
    assert "nothing found" in cleave.ok("hot-keys", orders)
    assert "does not exist" in cleave.refused("hot-keys", "acme/shop/absent")
