"""What a watcher of topics is told: the set first, then what changed, and only of what its token is for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import InvalidInput
from controller.services.watches.topic_feed import TopicChanges, TopicFilter, snapshot_hash

SETS = st.frozensets(st.sampled_from("abcdef"))


def said(changes: TopicChanges, names: frozenset[str]) -> dict[str, object] | None:
    document = changes.document(tuple(sorted(names)))
    return None if document is None else dict(document)


@given(st.lists(SETS, min_size=1))
def test_whoever_applies_what_is_said_has_the_set(sets: list[frozenset[str]]) -> None:
    changes, known = TopicChanges(lambda _name: True), frozenset[str]()
    for index, names in enumerate(sets):
        told = said(changes, names)
        if told is None:
            assert known == names
        elif index == 0:
            known = frozenset(told["topics"])  # type: ignore[call-overload]
        else:
            assert (told["removed"], told["added"]) == (sorted(known - names), sorted(names - known))
            known = names
        assert told is None or told["hash"] == snapshot_hash(names)
        assert known == names


def test_nothing_is_said_of_a_set_that_is_known_by_its_hash() -> None:
    known = snapshot_hash(["b", "a"])

    assert said(TopicChanges(lambda _name: True, known), frozenset("ab")) is None
    assert said(TopicChanges(lambda _name: True, known), frozenset("a")) == {
        "hash": snapshot_hash("a"),
        "topics": ["a"],
    }


def test_what_the_token_is_not_for_is_not_said() -> None:
    changes = TopicChanges(lambda name: name != "b")

    assert said(changes, frozenset("ab")) == {"hash": snapshot_hash("a"), "topics": ["a"]}
    assert said(changes, frozenset("a")) is None
    assert said(changes, frozenset("bc")) == {"hash": snapshot_hash("c"), "removed": ["a"], "added": ["c"]}


def test_a_change_checks_only_the_names_that_came() -> None:
    """A namespace may have many names and many watchers, each of which would check every name at every change."""
    checked: list[str] = []

    def is_allowed(name: str) -> bool:
        checked.append(name)
        return name != "b"

    changes = TopicChanges(is_allowed)

    assert said(changes, frozenset("abc")) == {"hash": snapshot_hash("ac"), "topics": ["a", "c"]}
    del checked[:]
    assert said(changes, frozenset("acd")) == {"hash": snapshot_hash("acd"), "removed": [], "added": ["d"]}
    assert said(changes, frozenset("acdb")) is None
    assert checked == ["d", "b"]


def test_hashes_tell_sets_apart() -> None:
    assert snapshot_hash(["ab"]) != snapshot_hash(["a", "b"])


@pytest.mark.parametrize("given", [["a"], ["=x"], ["a=\0"], ["a=1", "a=2"]])
def test_a_property_that_cannot_be_meant_is_refused(given: list[str]) -> None:
    with pytest.raises(InvalidInput):
        TopicFilter.of("acme/shop", given)


def test_the_order_of_properties_makes_no_other_filter() -> None:
    assert TopicFilter.of("acme/shop", ["a=1", "b=x=y"]) == TopicFilter.of("acme/shop", ["b=x=y", "a=1"])
