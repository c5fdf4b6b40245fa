"""Repeated requests whose topic is gone: the same request gets its operation, another request with its key is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest

from controller.actions.action import find_action
from controller.actions.context import Caller, Options
from controller.actions.perform import perform_at
from controller.bootstrap import Application
from controller.dataplane.optional_abilities import TopicDescription
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.errors import Conflict, TopicNotFound
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Origin
from controller.domain.policy import PolicyOverride
from controller.services import topic_admin
from controller.store.topics import policies
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_data_plane import FaultyDataPlane

Perform = Callable[..., Any]
OLD = "persistent://acme/shop/old"


@pytest.fixture
def perform(cleave: Application) -> Perform:
    """Performs an action, by default with the request key `only-once`."""
    return partial(_perform, cleave)


def _perform(
    cleave: Application,
    name: str,
    request_key: str = "only-once",
    *,
    is_dry_run: bool = False,
    **fields: object,
) -> Any:
    action = find_action(name)
    caller = Caller("ada", Origin.API, "a test", request_key)
    return perform_at(
        cleave, caller, Options(dry_run=is_dry_run), action, action.request(**{"topic": TOPIC, **fields})
    )


@pytest.mark.parametrize(
    ("name", "fields", "other_name", "other_fields"),
    [
        ("segments split", {"segment_id": 0}, "segments merge", {"first_id": 0, "second_id": 1}),
        ("segments split", {"segment_id": 0}, "segments split", {"segment_id": 0, "topic": "another"}),
        ("subscriptions create", {"subscription": "a"}, "subscriptions delete", {"subscription": "a"}),
        ("subscriptions create", {"subscription": "a"}, "subscriptions create", {"subscription": "b"}),
        ("subscriptions create", {"subscription": "a"}, "segments split", {"segment_id": 0}),
    ],
)
def test_only_the_same_request_gets_the_operation_of_its_key(
    bench: Bench,
    perform: Perform,
    name: str,
    fields: dict[str, object],
    other_name: str,
    other_fields: dict[str, object],
) -> None:
    bench.create(segments=2)
    first = perform(name, **fields)
    bench.settle()
    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))

    again = perform(name, **fields)
    assert (again.operation_id, again.repeated) == (first.operation_id, True)
    with pytest.raises(Conflict, match=f"request key only-once was used for {first.kind} of {TOPIC}"):
        perform(other_name, **other_fields)
    with pytest.raises(TopicNotFound):
        perform(name, "a fresh key", **fields)


class OldTopics(FaultyDataPlane):
    """A data plane with the plain topic `OLD`, which is open at first."""

    terminated: tuple[str, ...] = ()

    def describe_topic(self, name: str) -> TopicDescription:
        """As `Adoptable.describe_topic`."""
        return TopicDescription(
            name=name,
            logs=(OLD,),
            missing=(),
            terminated=self.terminated,
            producers=(),
            consumers=(),
            subscriptions={},
        )


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_repeated_adoption_gets_its_operation_after_the_old_topic_is_terminated(
    bench: Bench, cleave: Application, is_dry_run: bool
) -> None:
    """The first request may have lost its answer."""
    plane = OldTopics(bench.plane)
    cleave.__dict__["planes"] = {"pulsar": plane}
    fields: dict[str, Any] = {"old": OLD, "topic": TOPIC}
    first = _perform(cleave, "topics adopt", **fields)
    plane.terminated = (OLD,)

    again = _perform(cleave, "topics adopt", is_dry_run=is_dry_run, **fields)

    assert again.repeated
    assert again.operation_id == (None if is_dry_run else first.operation_id)
    assert again.closes == [OLD]
    with pytest.raises(Conflict, match="request key only-once was used for adopt"):
        _perform(cleave, "topics adopt", **(fields | {"topic": "another"}))
    for others, did, wanted in (
        ({"segments": 4}, "segments 1", "segments 4"),
        ({"stock": ["billing"]}, "stock []", "stock ['billing']"),
        ({"data_plane": "embedded"}, "data plane pulsar", "data plane embedded"),
        ({"old": f"{OLD}er"}, f"adopted ['{OLD}']", f"adopted ['{OLD}er']"),
    ):
        with pytest.raises(Conflict, match="request key only-once was used for adopt") as refused:
            _perform(cleave, "topics adopt", is_dry_run=is_dry_run, **(fields | others))
        assert f"(operation {first.operation_id}: {did}), not for {wanted}; take a" in refused.value.message
    assert _perform(cleave, "topics adopt", **fields, segments=1, cut_off=True).repeated
    with pytest.raises(Conflict, match="already terminated"):
        _perform(cleave, "topics adopt", "a fresh key", **fields)


def test_a_dry_run_of_a_repeated_deletion_gets_its_operation_and_loses_nothing(
    bench: Bench, perform: Perform
) -> None:
    """Neither while the deletion is under way, nor when it has ended, nor when another topic has the name."""
    bench.create(segments=2)
    fresh = perform("topics delete", is_dry_run=True)
    assert (fresh.repeated, len(fresh.segments)) == (False, 2)
    first = perform("topics delete")

    def agree() -> None:
        again, dry = perform("topics delete"), perform("topics delete", is_dry_run=True)
        assert (again.operation_id, again.repeated, dry.repeated) == (first.operation_id, True, True)
        assert (dry.state, dry.segments) == (again.state, None)

    agree()
    bench.settle()
    agree()
    bench.create(segments=4)
    agree()


def test_a_dry_run_of_a_repeated_seek_moves_no_cursor(bench: Bench, perform: Perform) -> None:
    bench.topic_with()
    fields = {"subscription": "billing", "to": "earliest"}
    fresh = perform("subscriptions seek", is_dry_run=True, **fields)
    assert (fresh.repeated, len(fresh.cursors)) == (False, 1)
    perform("subscriptions seek", **fields)
    bench.settle()

    dry = perform("subscriptions seek", is_dry_run=True, **fields)

    assert (dry.repeated, dry.state, dry.cursors) == (True, "done", None)


OTHERS: list[tuple[str, dict[str, object], str, dict[str, object], str]] = [
    ("split", {"segment_id": 0}, "split", {"segment_id": 1}, "a reshape that does not fit segment 0"),
    (
        "split",
        {"segment_id": 0},
        "split",
        {"segment_id": 0, "parts": 4},
        "split of segment 0 into 0000-1fff, 2000-3fff, 4000-5fff, 6000-7fff",
    ),
    (
        "split",
        {"segment_id": 0, "cut_points": [0x1000]},
        "split",
        {"segment_id": 0},
        "split of segment 0 into 0000-3fff, 4000-7fff",
    ),
    (
        "rebucket",
        {"segment_id": 0, "bucket_count": 8},
        "rebucket",
        {"segment_id": 0, "bucket_count": 2},
        "rebucket of segment 0 into 0000-7fff with 2 buckets",
    ),
    (
        "merge",
        {"first_id": 0, "second_id": 1},
        "recut",
        {"segment_ids": [0, 1], "cut_points": [0x2000]},
        "recut of segment 0, 1 into 0000-1fff, 2000-ffff",
    ),
]


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize(("kind", "fields", "other_kind", "other_fields", "wanted"), OTHERS)
def test_only_the_same_reshape_gets_the_operation_of_its_key(
    bench: Bench,
    perform: Perform,
    kind: str,
    fields: dict[str, object],
    other_kind: str,
    other_fields: dict[str, object],
    wanted: str,
    is_deleted: bool,
) -> None:
    """Before the operation runs, after it, and after its topic is gone."""
    bench.create(segments=2)
    first = perform(f"segments {kind}", **fields)

    def compare() -> None:
        for is_dry_run in (False, True):
            again = perform(f"segments {kind}", is_dry_run=is_dry_run, **fields)
            assert (again.repeated, again.children) == (True, first.children)
            with pytest.raises(Conflict, match="request key only-once was used for") as refused:
                perform(f"segments {other_kind}", is_dry_run=is_dry_run, **other_fields)
            assert f"operation {first.operation_id}" in refused.value.message
            assert f"not for {wanted}; take a fresh key" in refused.value.message

    compare()
    bench.settle()
    if is_deleted:
        bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))
    compare()


def test_a_repeated_seek_to_another_target_is_refused(bench: Bench, perform: Perform) -> None:
    bench.topic_with()
    fields = {"subscription": "billing"}
    first = perform("subscriptions seek", to="earliest", **fields)

    assert perform("subscriptions seek", to="earliest", **fields).operation_id == first.operation_id
    with pytest.raises(Conflict, match="request key only-once was used for seek") as refused:
        perform("subscriptions seek", to="latest", **fields)
    assert "not for a seek past everything published so far; take a fresh key" in refused.value.message


CREATION: dict[str, Any] = {"segments": 2, "properties": {"team": "a"}, "policy": {"max_segments": 16}}


@pytest.mark.parametrize(
    ("others", "did", "wanted"),
    [
        ({"segments": 4}, "segments 2", "segments 4"),
        ({"properties": {}}, "properties {'team': 'a'}", "properties {}"),
        ({"policy": {"max_segments": 8}}, "policy {'max_segments': 16}", "policy {'max_segments': 8}"),
        ({"policy": {}, "segments": 1}, "segments 2, policy {'max_segments': 16}", "segments 1, policy {}"),
        ({"data_plane": "another"}, "data plane embedded", "data plane another"),
    ],
)
def test_only_the_same_creation_gets_the_operation_of_its_key(
    bench: Bench, cleave: Application, others: dict[str, object], did: str, wanted: str
) -> None:
    """Before the operation runs, after it, and after the policy of the topic has changed."""
    cleave.__dict__["planes"] = dict(bench.planes) | {"another": bench.plane}
    fields = CREATION | {"data_plane": "embedded"}
    first = _perform(cleave, "topics create", **fields)

    def compare() -> None:
        for is_dry_run in (False, True):
            again = _perform(cleave, "topics create", is_dry_run=is_dry_run, **fields)
            assert (again.repeated, again.creates) == (True, first.creates)
            with pytest.raises(Conflict, match=f"only-once was used for create of {TOPIC}") as refused:
                _perform(cleave, "topics create", is_dry_run=is_dry_run, **(fields | others))
            said = f"(operation {first.operation_id}: {did}), not for {wanted}; take a fresh key"
            assert said in refused.value.message

    compare()
    bench.settle()
    compare()
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(max_segments=4))
    compare()


def test_a_creation_that_an_older_version_wrote_is_compared_as_far_as_it_is_known(
    bench: Bench, perform: Perform
) -> None:
    perform("topics create", **CREATION)
    bench.execute("UPDATE cleave.operation SET parameters = parameters - 'policy' - 'properties'")

    assert perform("topics create", segments=2).repeated
    with pytest.raises(Conflict, match="segments 2"):
        perform("topics create", segments=3)


def test_a_large_value_of_a_policy_is_the_same_value_in_a_repeated_request(perform: Perform) -> None:
    """PostgreSQL returns it as an integer with other digits."""
    policy = {"split_byte_rate_out": 1e30}
    first = perform("topics create", policy=policy)

    again = perform("topics create", policy=policy)
    assert (again.operation_id, again.repeated) == (first.operation_id, True)
    with pytest.raises(Conflict, match="not for policy"):
        perform("topics create", policy={"split_byte_rate_out": 1e29})


def keeper() -> Any:
    """A data plane whose broker keeps the layouts."""
    plane = MagicMock(spec=PulsarScalableDataPlane)
    plane.read_layout.return_value = SegmentLayout.initial(2, now=0)
    return plane


@pytest.mark.usefixtures("bench")
def test_only_the_same_attachment_gets_the_operation_of_its_key(cleave: Application) -> None:
    cleave.__dict__["planes"] = {"pulsar_scalable": keeper(), "another": keeper()}
    first = _perform(cleave, "topics attach")

    for is_dry_run in (False, True):
        assert _perform(cleave, "topics attach", is_dry_run=is_dry_run).repeated
        with pytest.raises(Conflict, match="only-once was used for attach") as refused:
            _perform(cleave, "topics attach", data_plane="another", is_dry_run=is_dry_run)
        said = (
            f"(operation {first.operation_id}: data plane pulsar_scalable), not for data plane another; take"
        )
        assert said in refused.value.message
        with pytest.raises(Conflict, match=r"create segments None.* not for create segments 2; take a fresh"):
            _perform(cleave, "topics create", data_plane="pulsar_scalable", segments=2, is_dry_run=is_dry_run)


@pytest.mark.usefixtures("bench")
def test_a_dry_run_of_a_repeated_attachment_does_not_ask_the_broker(cleave: Application) -> None:
    """The request itself does not either."""
    plane = keeper()
    cleave.__dict__["planes"] = {"pulsar_scalable": plane}
    fresh = _perform(cleave, "topics attach", is_dry_run=True)
    assert (fresh.repeated, len(fresh.on_broker)) == (False, 2)
    _perform(cleave, "topics attach")
    plane.read_layout.side_effect = TopicNotFound("it was deleted there")

    again = _perform(cleave, "topics attach", is_dry_run=True)

    assert (again.repeated, again.on_broker) == (True, None)
