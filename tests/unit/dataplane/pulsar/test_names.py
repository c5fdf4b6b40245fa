"""Names that Pulsar keeps apart are encoded so that it gets the very name; all others are refused with a sentence."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.dataplane.pulsar import names
from controller.domain.errors import InvalidInput

DESCRIPTOR = "0000-7fff-12"
LOCAL = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=80
)


@pytest.mark.parametrize(
    ("topic", "segment", "path"),
    [
        (
            "topic://t/n/x",
            "persistent://t/n/x-segment-0000-7fff-12",
            "persistent/t/n/x-segment-0000-7fff-12",
        ),
        (
            "topic://t/n/a b",
            "persistent://t/n/a b-segment-0000-7fff-12",
            "persistent/t/n/a%20b-segment-0000-7fff-12",
        ),
        (
            "topic://t/n/100%",
            "persistent://t/n/100%-segment-0000-7fff-12",
            "persistent/t/n/100%25-segment-0000-7fff-12",
        ),
        (
            "topic://t/n/a%2Fb",
            "persistent://t/n/a%2Fb-segment-0000-7fff-12",
            "persistent/t/n/a%252Fb-segment-0000-7fff-12",
        ),
        (
            "topic://t/n/q?x#y",
            "persistent://t/n/q?x#y-segment-0000-7fff-12",
            "persistent/t/n/q%3Fx%23y-segment-0000-7fff-12",
        ),
        (
            "topic://t/n/größe",
            "persistent://t/n/größe-segment-0000-7fff-12",
            "persistent/t/n/gr%C3%B6%C3%9Fe-segment-0000-7fff-12",
        ),
        (
            "topic://t/n/..",
            "persistent://t/n/..-segment-0000-7fff-12",
            "persistent/t/n/%2E%2E-segment-0000-7fff-12",
        ),
        (
            "topic://t/n/x-partition-3",
            "persistent://t/n/x-partition-3-segment-0000-7fff-12",
            "persistent/t/n/x-partition-3-segment-0000-7fff-12",
        ),
        (
            "topic://t-1/n.a=b:c/x",
            "persistent://t-1/n.a=b:c/x-segment-0000-7fff-12",
            "persistent/t-1/n.a=b:c/x-segment-0000-7fff-12",
        ),
    ],
)
def test_each_name_and_its_place_in_a_url(topic: str, segment: str, path: str) -> None:
    assert names.segment_topic(topic, DESCRIPTOR) == segment
    assert names.topic_path(segment) == path
    assert names.segments_of([topic], [segment]) == {topic: [segment]}


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("orders", "name it as topic://"),
        ("persistent://t/n/x", "name it as topic://"),
        ("topic://t/x", "name it as topic://"),
        ("topic://t/n/", "is empty"),
        ("topic:///n/x", "tenant ''"),
        ("topic://t//x", "namespace ''"),
        ("topic://t/n/a/b", "allows no slash"),
        ("topic://ten ant/n/x", "tenant 'ten ant'"),
        ("topic://t/n?/x", "namespace 'n?'"),
        ("topic://t/größe/x", "namespace 'größe'"),
        ("topic://../n/x", "tenant '..'"),
        ("topic://t/n/a\nb", "control character"),
        ("topic://t/n/a\0b", "control character"),
        ("topic://t/n/a\ud800b", "control character"),
        (f"topic://t/n/{'x' * 1000}", "keep a segment's topic within 1000"),
        (f"topic://t/n/{'é' * 490}", "keep a segment's topic within 1000"),
    ],
)
def test_what_pulsar_has_no_name_for_is_refused(topic: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        names.segment_topic(topic, DESCRIPTOR)


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("x", "persistent://public/default/x"),
        ("t/n/x", "persistent://t/n/x"),
        ("persistent://t/n/x", "persistent://t/n/x"),
    ],
)
def test_short_forms_are_pulsars(short: str, full: str) -> None:
    assert names.full_name(short) == full
    assert names.topic_path(short) == full.replace("://", "/")


@given(LOCAL)
def test_a_decoded_path_is_the_name_again(local: str) -> None:
    """The broker decodes a topic once and a subscription twice."""
    path = names.topic_path(f"persistent://t/n/{local}")

    assert unquote(path, errors="strict") == f"persistent/t/n/{local}"
    assert path.count("/") == 3
    assert unquote(unquote(names.subscription_path(local))) == local
    assert names.subscription_path(local).isascii()


@given(LOCAL, LOCAL)
def test_a_segment_belongs_to_one_topic(one: str, other: str) -> None:
    topics = f"topic://t/n/{one}", f"topic://t/n/{other}"
    segments = [names.segment_topic(topic, DESCRIPTOR) for topic in topics]

    expected = {topic: sorted({segment}) for topic, segment in zip(topics, segments, strict=True)}
    assert names.segments_of(topics, {*segments}) == expected


def test_a_topic_named_like_a_segment_of_another_is_not_mixed_up_with_it() -> None:
    inner = "topic://t/n/x-segment-0000-ffff-0"
    segment = names.segment_topic(inner, DESCRIPTOR)

    outer = inner.replace("topic", "persistent", 1)
    found = names.segments_of([inner, "topic://t/n/x"], [segment, outer])
    assert found == {inner: [segment], "topic://t/n/x": [outer]}


@pytest.mark.parametrize(
    ("text", "words"), [("", "is empty"), ("a\tb", "control"), ("x" * 501, "longer than 500")]
)
def test_a_subscription_that_cannot_be_written_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        names.subscription_path(text)


@pytest.mark.parametrize("text", ["t", "t/", "/n", "t/n n", "t/n/x"])
def test_no_namespace(text: str) -> None:
    with pytest.raises(InvalidInput):
        names.namespace_path(text)


@pytest.mark.parametrize(
    ("subscription", "cursor"),
    [
        ("billing", "billing"),
        ("a_b-c.d*e", "a_b-c.d*e"),
        ("a b", "a+b"),
        ("100%", "100%25"),
        ("o'reilly", "o%27reilly"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("a~b", "a%7Eb"),
        ("a/b", "a%2Fb"),
    ],
)
def test_a_cursor_is_called_as_java_encodes_forms(subscription: str, cursor: str) -> None:
    assert names.cursor_name(subscription) == cursor
