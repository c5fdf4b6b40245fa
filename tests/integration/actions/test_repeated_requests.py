"""Repeated requests whose topic is gone: the same request gets its operation, another request with its key is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from controller.actions.action import find_action, perform_at
from controller.actions.context import Caller, Options
from controller.bootstrap import Application
from controller.dataplane.topic_description import TopicDescription
from controller.domain.errors import Conflict, TopicNotFound
from controller.domain.operation import Origin
from controller.services import topic_admin
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
