"""A name is made of characters that everybody sees, and every text can be made so for a terminal."""

from __future__ import annotations

import pickle
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.dataplane.embedded.names import checked
from controller.dataplane.pulsar.names import segment_topic
from controller.domain.errors import InvalidInput
from controller.domain.formatting import in_markdown, printable
from controller.domain.hash_range import FULL_RANGE
from controller.domain.names import (
    LONGEST_NAME,
    MOST_TOPIC_BYTES,
    REFUSED,
    demand_name,
    demand_namespace,
    demand_reason,
    demand_topic,
    policy_level,
)
from controller.domain.segment import Segment, backing_topic_name, segment_descriptor
from tests.support.terminal_attacks import ATTACKS, is_safe

ANY_TEXT = st.text(st.characters(exclude_categories=()))
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zs", "Zl", "Zp"})


def test_every_character_that_is_a_space_or_commands_a_terminal_is_refused() -> None:
    refused = {code for first, last in REFUSED for code in range(first, last + 1)}
    hidden = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in HIDDEN}
    assert hidden <= refused


def test_what_people_write_is_not_refused() -> None:
    for name in ("billing", "größe", "売上", "заказы", "a.b", "...", ".a", "a-b_c:d=1", "🚀", "e\u0301"):
        assert demand_name("consumer", name) == name


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_is_no_name_and_its_refusal_shows_it_escaped(attack: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        demand_name("consumer", f"a{attack}")
    assert is_safe(str(refused.value))
    assert attack not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/../b", "topic://a/b/..", "a b", "a" * (LONGEST_NAME + 1), "\ud800"]
)
def test_what_else_is_no_name(name: str) -> None:
    with pytest.raises(InvalidInput):
        demand_name("topic", name)


@pytest.mark.parametrize("kind", ["tenant", "namespace", "topic", "subscription", "consumer"])
def test_a_name_in_a_path_has_no_slash(kind: str) -> None:
    with pytest.raises(InvalidInput, match="slash"):
        demand_name(kind, "team/billing")
    assert demand_name("producer", "team/billing") == "team/billing"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("topic://t/n", "write topic://tenant/namespace/name"),
        ("persistent://t/n/x", "write topic://tenant/namespace/name"),
        ("topic://t/n/", "write topic://tenant/namespace/name"),
        ("topic:///n/x", "write topic://tenant/namespace/name"),
        ("", "the topic is empty"),
        ("topic://t/n/x/y", "slash"),
        ("topic://t/../x", "dots only"),
        (f"topic://t/n/{'x' * (LONGEST_NAME + 1)}", "at most 500"),
        (f"topic://{'t' * 460}/n/{'x' * 480}", f"{MOST_TOPIC_BYTES} bytes"),
        (f"topic://t/n/{'売' * 320}", f"{MOST_TOPIC_BYTES} bytes"),
    ],
)
def test_a_topic_that_some_interface_cannot_express_or_keep_is_refused(name: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        demand_topic(name)


def test_the_longest_topic_is_taken_and_leaves_room_for_its_logs() -> None:
    longest = f"topic://t/n/{'売' * ((MOST_TOPIC_BYTES - 12) // 3)}"
    last = Segment(2**63 - 1, FULL_RANGE, parent_ids=(), created_epoch=0, created_at_ms=0)

    assert demand_topic(longest) == longest
    assert checked("segment", backing_topic_name(longest, last))
    assert segment_topic(longest.replace("売", "aaa"), segment_descriptor(FULL_RANGE, 2**63 - 1))


def test_a_namespace_is_two_names() -> None:
    assert demand_namespace("acme/shop") == "acme/shop"
    for namespace in ("acme", "a/b/c", "acme/", "/shop", "acme/..", f"{'売' * 200}/{'売' * 200}"):
        with pytest.raises(InvalidInput):
            demand_namespace(namespace)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("cluster", "cluster"),
        ("t/n", "t/n"),
        ("t/n/x", "topic://t/n/x"),
        ("persistent://t/n/x", "topic://t/n/x"),
        ("topic://t/n/x", "topic://t/n/x"),
    ],
)
def test_a_level_of_policy_is_the_cluster_a_namespace_or_a_topic(text: str, level: str) -> None:
    assert policy_level(text) == level


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "t/n/x/y",
        "topic://t/n",
        "foo://t/n/x",
        "non-persistent://t/n/x",
        "topic://foo://t/n/x",
        "persistent://topic://t/n/x",
        "topic://persistent://t/n/x",
        "://t/n/x",
    ],
)
def test_another_text_is_no_level_of_policy(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a level of policy; write cluster"):
        policy_level(text)


@given(ANY_TEXT)
def test_a_name_is_printable_but_for_characters_this_unicode_does_not_know(name: str) -> None:
    try:
        demand_name("consumer", name)
    except InvalidInput:
        return
    assert all(char.isprintable() or unicodedata.category(char) == "Cn" for char in name)


@given(ANY_TEXT)
def test_any_text_can_be_printed_and_a_printable_one_stays(text: str) -> None:
    assert printable(text).isprintable()
    assert is_safe(printable(text, lines=True))
    assert printable(printable(text)) == printable(text)
    if text.isprintable():
        assert printable(text) == text


@given(ANY_TEXT)
def test_the_message_of_an_error_is_one_printable_line(text: str) -> None:
    error = InvalidInput(text)
    assert str(error).isprintable()
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_reason_may_have_lines_and_emoji_and_nothing_that_deceives() -> None:
    for reason in ("before the sale", "one\n\ttwo\r\n", "👩‍💻 asked", "می‌خواهم"):
        assert demand_reason("reason", reason) == reason
    for reason in ("", " \n", "a\x1b[2J", "a\u202eb", "a\x9bb", "a" * 1_001):
        with pytest.raises(InvalidInput):
            demand_reason("reason", reason)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[click](javascript:alert(1))", r"[click\](javascript:alert(1))"),
        ("![x](http://evil/p.png)", r"![x\](http://evil/p.png)"),
        (r"[click\](x)", r"[click\\\](x)"),
        ("[a][b]", r"[a\][b]"),
        ("[a]: http://evil", r"[a\]: http://evil"),
        ("<img src=x onerror=alert(1)>", r"\<img src=x onerror=alert(1)>"),
        ("`code`", r"\`code\`"),
        ("\x1b[2J", r"\\x1b[2J"),
        ("split 0 [0000-7fff] of msg_rate_in", "split 0 [0000-7fff] of msg_rate_in"),
    ],
)
def test_markdown_makes_no_link_of_a_text(text: str, shown: str) -> None:
    assert in_markdown(text) == shown
