"""Answers of questions for programs: filters, order and columns, and how many statements they take."""

from __future__ import annotations

import pytest

from controller.actions.fields import fill_in
from controller.domain.errors import InvalidInput, NotFound
from controller.domain.policy import PolicyOverride
from controller.questions.decisions import LIST_DECISIONS
from controller.questions.history import LIST_LOAD, LIST_SEGMENTS
from controller.questions.operations import LIST_OPERATIONS, SHOW_OPERATION
from controller.questions.overviews import ShowFleet, ShowOverview, fleet_topics, read_fleet, read_overview
from controller.questions.policies import LIST_CANDIDATES
from controller.questions.question import read_answers, read_page
from controller.questions.topics import LIST_NAMESPACES
from controller.services import policy_candidates, segment_admin, topic_admin
from controller.store.topics import inspector_reads
from tests.support.bench import TOPIC, Bench
from tests.support.statements import statements_sent

pytestmark = pytest.mark.integration
OTHER = f"{TOPIC}-other"


def create_other(bench: Bench) -> None:
    """Create a second topic."""
    intent = topic_admin.create_topic(
        bench.store, bench.planes, OTHER, bench.request(), data_plane="embedded", segments=1
    )
    bench.finish(intent)


def test_presented_answers_take_one_reading_of_the_clock_however_many_they_are(bench: Bench) -> None:
    bench.create(1)
    create_other(bench)
    for topic in (TOPIC, OTHER):
        policy_candidates.propose(bench.store, topic, PolicyOverride(max_segments=4), actor="ann", reason="r")

    with bench.store.transaction() as tx, statements_sent() as sent:
        found = read_page(tx, LIST_CANDIDATES, fill_in(LIST_CANDIDATES.request, {}), limit=10)

    assert [row["parameters"] for row in found.rows] == ["max_segments=4"] * 2
    assert len(sent) == 2


def test_filters_order_and_columns_narrow_what_is_read(bench: Bench) -> None:
    bench.create(2)
    bench.finish(bench.intend(segment_admin.splitting(0)))
    with bench.store.transaction() as tx:
        key = inspector_reads.find_topic(tx, TOPIC).key
        newest = read_answers(tx, LIST_SEGMENTS, 2, order="segment_id DESC", columns="segment_id", **key)
        some = read_answers(tx, LIST_SEGMENTS, segment_id=[0, 3, 99], **key)
        none = read_answers(tx, LIST_SEGMENTS, segment_id=[], **key)
        splits = read_answers(tx, LIST_OPERATIONS, kind="split", state=None, actor="", segment_id=2, **key)
        others = read_answers(tx, LIST_OPERATIONS, kind="split", segment_id=1, **key)

    assert newest == [{"segment_id": 3}, {"segment_id": 2}]
    assert [(one["segment_id"], one["state"]) for one in some] == [(0, "SEALED"), (3, "ACTIVE")]
    assert [(one["kind"], one["children"]) for one in splits] == [("split", [2, 3])]
    assert (none, others) == ([], [])


def test_zero_is_a_filter_and_an_id_like_any_other_number(bench: Bench) -> None:
    bench.create(2)
    with bench.store.transaction() as tx:
        key = inspector_reads.find_topic(tx, TOPIC).key
        first = read_answers(tx, LIST_LOAD, segment_id=0, **key)
        page = read_page(
            tx, LIST_LOAD, fill_in(LIST_LOAD.request, {"topic": TOPIC, "segment_id": 0}), limit=10
        )
        with pytest.raises(NotFound, match="operation 0 is not in the journal"):
            read_page(tx, SHOW_OPERATION, fill_in(SHOW_OPERATION.request, {"operation_id": 0}), limit=1)

    assert [row["segment_id"] for row in first] == [0]
    assert [row["segment_id"] for row in page.rows] == [0]


def test_namespaces_are_narrowed_to_a_data_plane(bench: Bench) -> None:
    bench.create(1)
    create_other(bench)
    with bench.store.transaction() as tx:
        here = read_answers(tx, LIST_NAMESPACES, data_plane="embedded")
        elsewhere = read_answers(tx, LIST_NAMESPACES, data_plane="pulsar")

    assert here == [{"namespace": "acme/shop", "data_planes": ["embedded"]}]
    assert elsewhere == []


def test_a_span_in_which_nothing_lies_is_refused(bench: Bench) -> None:
    request = fill_in(LIST_DECISIONS.request, {"from": "1h", "to": "2h"})
    with bench.store.transaction() as tx, pytest.raises(InvalidInput, match="is empty"):
        read_answers(tx, LIST_DECISIONS, **request.model_dump())


def test_sums_are_over_the_fleet_and_topics_over_what_is_looked_for(bench: Bench) -> None:
    bench.create(3)
    create_other(bench)
    request = ShowFleet(find="-other")
    with bench.store.transaction() as tx:
        sums, found = fleet_topics(tx, request, sums=True)
        _, last = fleet_topics(tx, ShowFleet(after=1, limit=1))
        answer = read_fleet(tx, request)

    assert (sums["topics"], sums["segments"]) == (2, 4)
    assert [topic["topic"] for topic in found] == [OTHER]
    assert len(last) == 1
    assert [topic["topic"] for topic in answer.topics] == [OTHER]


def test_an_overview_has_no_operations_of_a_deleted_topic_of_the_name(bench: Bench) -> None:
    bench.create(1)
    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))
    bench.create(1)

    with bench.store.transaction() as tx:
        overview = read_overview(tx, ShowOverview(topic=TOPIC))
        of_the_name = read_answers(tx, LIST_OPERATIONS, topic=TOPIC)

    assert [operation["kind"] for operation in overview.operations] == ["create"]
    assert [operation["kind"] for operation in of_the_name] == ["create", "delete", "create"]
