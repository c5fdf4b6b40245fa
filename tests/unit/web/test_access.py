"""The scope of a token: `*` is its only wildcard, because names may contain the other wildcards of a shell."""

from __future__ import annotations

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
