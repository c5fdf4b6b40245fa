"""Creating and deleting topics: intents, refusals, and what is there when they are done."""

from __future__ import annotations

import re

import pytest

from controller.dataplane.base import LogState
from controller.domain.errors import (
    Conflict,
    InvalidInput,
    InvalidPolicy,
    TopicExists,
    TopicNotFound,
    Unsupported,
)
from controller.domain.operation import OperationState
from controller.domain.policy import AutoScalePolicy, PolicyOverride
from controller.services import topic_admin
from controller.services.segment_admin import splitting
from controller.store.journal.request_keys import Intent
from controller.store.topics import policies
from tests.support.bench import TOPIC, Bench


def test_a_created_topic_has_an_open_log_for_each_segment(bench: Bench) -> None:
    bench.create(segments=3)

    logs = [bench.log_of(segment.segment_id) for segment in bench.layout.active]
    assert [bench.plane.segment_state(log) for log in logs] == [LogState.OPEN] * 3
    bench.check_laws()


def test_the_same_request_key_creates_once(bench: Bench) -> None:
    request = bench.request("only-once")
    first = topic_admin.create_topic(bench.store, bench.planes, TOPIC, request)
    again = topic_admin.create_topic(bench.store, bench.planes, TOPIC, request)

    assert (first.repeated, again.repeated) == (False, True)
    assert again.operation.operation_id == first.operation.operation_id


def test_a_name_in_use_is_refused(bench: Bench) -> None:
    bench.create()

    with pytest.raises((TopicExists, Conflict), match="exists"):
        topic_admin.create_topic(bench.store, bench.planes, TOPIC, bench.request())


@pytest.mark.parametrize(
    "minutes",
    [
        *("a week", "nan", "inf", "", "1e3", "+60", " 60", "60 ", "60\n", "60.", ".5", "1_000", "0.0000001"),
        *("9999999999", "\u0666\u0660"),
    ],
)
def test_a_retention_of_another_form_than_collection_reads_is_refused(bench: Bench, minutes: str) -> None:
    said = f"topic property retention_minutes={minutes!r} is not a number of minutes; write up to 9 digits"
    with pytest.raises(InvalidInput, match=re.escape(said)):
        topic_admin.create_topic(
            bench.store, bench.planes, TOPIC, bench.request(), properties={"retention_minutes": minutes}
        )


@pytest.mark.parametrize("properties", [{"owner": "\ud800"}, {"own\udfffer": "ada"}])
def test_a_property_without_a_utf8_form_is_refused_by_name(bench: Bench, properties: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=r"topic property 'own.*surrogate"):
        topic_admin.create_topic(bench.store, bench.planes, TOPIC, bench.request(), properties=properties)


def test_an_override_given_at_creation_is_validated_with_the_levels_above(bench: Bench) -> None:
    """Alone it is fine."""
    bench.store.in_transaction(policies.set_cluster, AutoScalePolicy(min_segments=10), actor="ann")
    first = bench.request("first")

    with pytest.raises(InvalidPolicy, match=r"max_segments = 8 must be >= min_segments = 10"):
        bench.create(policy=PolicyOverride(max_segments=8))
    assert bench.scalar("SELECT count(*) FROM cleave.topic") == 0

    def create() -> Intent:
        fits = PolicyOverride(max_segments=12)
        return topic_admin.create_topic(bench.store, bench.planes, TOPIC, first, policy=fits)

    created = create()
    bench.store.in_transaction(policies.set_cluster, AutoScalePolicy(min_segments=20), actor="ann")
    assert create().operation.operation_id == created.operation.operation_id


def test_a_data_plane_that_is_not_configured_is_refused_by_name(bench: Bench) -> None:
    with pytest.raises(Unsupported, match=r"'kafka'.*embedded"):
        topic_admin.create_topic(bench.store, bench.planes, TOPIC, bench.request(), data_plane="kafka")


def test_a_creation_past_its_deadline_gives_the_name_back(bench: Bench) -> None:
    late = topic_admin.create_topic(bench.store, bench.planes, TOPIC, bench.request(deadline_seconds=0.0))

    assert bench.finish(late).state is OperationState.ABORTED
    assert bench.create().state is OperationState.DONE
    bench.settle()
    bench.check_laws()


def test_a_deleted_topic_leaves_no_log_and_its_name_goes_on_with_new_ids(bench: Bench) -> None:
    bench.topic_with(segments=2)
    bench.reshape(splitting(0))
    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))
    bench.settle()
    assert bench.plane.list_segments(TOPIC) == []

    bench.create(segments=2)

    assert sorted(bench.layout.segments) == [4, 5]
    bench.check_laws()


def test_a_repeated_deletion_returns_its_first_result_when_the_topic_is_gone(bench: Bench) -> None:
    bench.create()
    request = bench.request("only-once")
    first = topic_admin.delete_topic(bench.store, TOPIC, request)
    bench.finish(first)

    again = topic_admin.delete_topic(bench.store, TOPIC, request)
    assert (again.repeated, again.operation.state) == (True, OperationState.DONE)
    assert again.operation.operation_id == first.operation.operation_id

    bench.create()
    assert topic_admin.delete_topic(bench.store, TOPIC, request).operation == again.operation
    with pytest.raises(Conflict, match="request key only-once was used for delete"):
        topic_admin.delete_topic(bench.store, "topic://acme/shop/another", request)
    with pytest.raises(Conflict, match="request key only-once was used for delete"):
        topic_admin.detach_topic(bench.store, TOPIC, request)


def test_a_topic_that_does_not_exist_is_not_found(bench: Bench) -> None:
    with pytest.raises(TopicNotFound):
        topic_admin.delete_topic(bench.store, TOPIC, bench.request())
