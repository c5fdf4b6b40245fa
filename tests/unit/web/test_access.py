"""The scope of a token: `*` is its only wildcard, because names may contain the other wildcards of a shell."""

from __future__ import annotations

import fnmatch

import pytest

from controller.actions.rights import Right
from controller.web.access import Grant, Role

SCOPES = [
    ("acme/shop/orders", "acme/shop/orders", True),
    ("acme/shop/*", "acme/shop/orders", True),
    ("acme/*", "acme/shop/orders", True),
    ("acme/shop/why?", "acme/shop/why?", True),
    ("acme/shop/why?", "acme/shop/whyX", False),
    ("acme/team[1-2]/*", "acme/team[1-2]/orders", True),
    ("acme/team[1-2]/*", "acme/team1/orders", False),
    ("acme/shop/[!a]", "acme/shop/[!a]", True),
    ("acme/shop/[!a]", "acme/shop/b", False),
    ("acme/shop/a[", "acme/shop/a[", True),
    ("acme/shop/a]", "acme/shop/a]", True),
]


@pytest.mark.parametrize(("pattern", "name", "is_included"), SCOPES)
def test_the_scope_of_a_client_names_topics_in_which_only_the_star_is_a_wildcard(
    pattern: str, name: str, is_included: bool
) -> None:
    grant = Grant(Role.CLIENT, topics=(f"topic://{pattern}",))

    assert grant.may(Right.CONSUME, topic=f"topic://{name}") is is_included


@pytest.mark.parametrize(
    ("pattern", "namespace", "is_included"),
    [
        ("*", "acme/team[1-2]", True),
        ("acme/*", "acme/team1", True),
        ("acme/team[1-2]", "acme/team[1-2]", True),
        ("acme/team[1-2]", "acme/team1", False),
        ("acme/why?", "acme/why?", True),
        ("acme/why?", "acme/whyX", False),
    ],
)
def test_the_scope_of_an_operator_names_namespaces_in_which_only_the_star_is_a_wildcard(
    pattern: str, namespace: str, is_included: bool
) -> None:
    grant = Grant(Role.OPERATOR, namespaces=(pattern,))

    assert grant.may(Right.OPERATE, namespace=namespace) is is_included


@pytest.mark.parametrize(
    ("patterns", "is_possible"),
    [
        (("topic://acme/shop/*",), True),
        (("topic://acme/shop/orders",), True),
        (("topic://acme/*",), True),
        (("*",), True),
        (("*orders",), True),
        (("topic://acme/sho*", "topic://other/x/y"), True),
        (("topic://other/shop/*", "topic://acme/shop2/*"), False),
        (("topic://acme/shop",), False),
        (("topic://acme/shop[1]/*",), False),
    ],
)
def test_a_namespace_in_which_no_topic_can_be_of_a_client_is_known(
    patterns: tuple[str, ...], is_possible: bool
) -> None:
    assert Grant(Role.CLIENT, topics=patterns).may_look_into("acme/shop") is is_possible


def test_a_client_may_look_into_the_namespace_of_each_topic_of_its_patterns() -> None:
    topic = "topic://acme/shop/orders"
    for begin in range(len(topic) + 1):
        for end in range(begin, len(topic) + 1):
            grant = Grant(Role.CLIENT, topics=(f"{topic[:begin]}*{topic[end:]}",))
            assert grant.may(Right.LOOK_UP, topic=topic)
            assert grant.may_look_into("acme/shop")


def test_other_roles_look_into_every_namespace() -> None:
    assert Grant(Role.OPERATOR, namespaces=("acme/*",)).may_look_into("other/shop")


def test_the_patterns_of_a_grant_are_translated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    translated: list[str] = []
    translate = fnmatch.translate

    def noted(pattern: str) -> str:
        translated.append(pattern)
        return translate(pattern)

    monkeypatch.setattr(fnmatch, "translate", noted)
    grant = Grant(Role.CLIENT, topics=("topic://once/*", "topic://twice/*"))

    assert [grant.may(Right.LOOK_UP, topic=f"topic://twice/{index}") for index in range(3)] == [True] * 3
    assert translated == ["topic://once/*", "topic://twice/*"]
