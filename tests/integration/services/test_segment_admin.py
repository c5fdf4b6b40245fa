"""Manual reshapes: plans shown and submitted, and what a data plane cannot do refused in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.dataplane.base import DataPlane
from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.domain.errors import InvalidInput, InvalidLayoutChange, TopicNotFound, Unsupported
from controller.domain.evaluation_input import Capabilities
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import Reshape
from controller.services import segment_admin
from controller.services.segment_admin import (
    UNLOCKED_ATTEMPTS,
    Planner,
    merging,
    rebucketing,
    recutting,
    splitting,
)
from controller.store.journal.request_keys import Intent
from tests.support.bench import TOPIC, Bench


class HalvingPlane(EmbeddedDataPlane):
    """Halves segments, and that is all."""

    capabilities = Capabilities(midpoint_only=True, max_children=2)


def test_manual_operations_stamp_the_cooldown(bench: Bench) -> None:
    bench.topic_with(segments=2)
    bench.reshape(merging(0, 1))

    assert bench.topic.last_merge_at is not None
    assert bench.topic.last_split_at is None


@pytest.mark.parametrize(
    ("planner", "message"),
    [
        (splitting(0, parts=3), "at most 2"),
        (splitting(0, at=[7]), "midpoint"),
        (recutting([0, 1], [7]), "recut"),
    ],
    ids=["three parts", "a cut point", "a recut"],
)
def test_what_the_data_plane_cannot_do_is_refused(bench: Bench, planner: Planner, message: str) -> None:
    bench.topic_with(segments=2)
    modest = HalvingPlane(bench.url)
    planes: dict[str, DataPlane] = {"embedded": modest}

    with pytest.raises(Unsupported, match=message):
        segment_admin.submit(bench.store, planes, TOPIC, planner, bench.request())
    segment_admin.submit(bench.store, planes, TOPIC, splitting(0), bench.request())
    modest.close()


def test_a_topic_of_an_unknown_data_plane_is_refused(bench: Bench) -> None:
    bench.topic_with()

    with pytest.raises(Unsupported, match="embedded"):
        segment_admin.submit(bench.store, {}, TOPIC, splitting(0), bench.request())


def test_nonsense_is_refused_before_anything_is_written(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="not both"):
        splitting(0, at=[5], parts=2)
    with pytest.raises(TopicNotFound):
        bench.intend(splitting(0))
    bench.topic_with(segments=3)
    for planner in (merging(0, 2), rebucketing(0, 10**6), splitting(0, at=[60_000]), splitting(0, parts=1)):
        with pytest.raises(InvalidLayoutChange):
            bench.intend(planner)
    assert bench.live_operations() == []


@pytest.mark.parametrize(
    "changes", [1, UNLOCKED_ATTEMPTS], ids=["once", "each time, until the topic is locked"]
)
def test_a_topic_that_changes_under_the_plan_is_planned_again(bench: Bench, changes: int) -> None:
    topic_id, planned = bench.topic_with(segments=2), list[int]()

    def planner(layout: SegmentLayout, max_buckets: int) -> Reshape:
        planned.append(layout.next_segment_id)
        if len(planned) <= changes:  # ids are reserved, as by another intent
            bench.execute(
                "UPDATE cleave.topic SET next_segment_id = next_segment_id + 10, row_version = row_version + 1"
                " WHERE topic_id = :topic_id",
                topic_id=topic_id,
            )
        return splitting(0)(layout, max_buckets)

    operation = bench.intend(planner).operation

    assert planned == [2 + 10 * n for n in range(changes + 1)]
    assert [child.plan.segment_id for child in operation.children] == [planned[-1], planned[-1] + 1]
    assert operation == replace(bench.operation(operation.operation_id), parameters={})


def test_a_key_used_by_two_at_once_is_one_operation(bench: Bench) -> None:
    bench.topic_with(segments=2)
    request, first = bench.request("asked"), list[Intent]()

    def planner(layout: SegmentLayout, max_buckets: int) -> Reshape:
        if not first:
            first.append(bench.intend(splitting(0), request))
        return splitting(0)(layout, max_buckets)

    intent = bench.intend(planner, request)

    assert (intent.operation.operation_id, intent.repeated) == (first[0].operation.operation_id, True)
