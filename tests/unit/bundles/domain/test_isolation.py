"""Isolation policies: which brokers a namespace may be on, which are everybody's, and what cannot be read."""

from __future__ import annotations

from collections.abc import Set

import pytest

from controller.bundles.domain.isolation import Isolation, IsolationPolicy

ACTIVE = ("fast-1:8080", "fast-2:8080", "slow-1:8080", "slow-2:8080")
SHOP = IsolationPolicy("shop", ("acme/shop.*",), (r"fast-\d",), ("slow-1",), min_primaries=1)


LATER = IsolationPolicy("later", ("acme/.*",), ("slow-2",))
WITH_PORT = IsolationPolicy("p", ("acme/shop",), ("fast-1:8080", "slow"))
JAVA_NAMESPACE = IsolationPolicy("p", (r"\p{Alpha}+/.*",), ("fast-1",))
JAVA_BROKER = IsolationPolicy("p", ("acme/shop",), (r"\p{Alpha}+",))
ALLOWED = {
    "its primary brokers": ([SHOP], ACTIVE, "acme/shop-eu", {"fast-1:8080", "fast-2:8080"}),
    "its secondary broker if no primary one is active": ([SHOP], ACTIVE[2:], "acme/shop", {"slow-1:8080"}),
    "no broker if neither is active": ([SHOP], ACTIVE[3:], "acme/shop", frozenset()),
    "anywhere, as no policy names it": ([SHOP], ACTIVE, "acme/other", None),
    "anywhere, as names of namespaces are matched whole": ([SHOP], ACTIVE, "our-acme/shop", None),
    "no broker, as names of brokers are matched whole and without the port": (
        [WITH_PORT],
        ACTIVE,
        "acme/shop",
        frozenset(),
    ),
    "the first policy that names it": ([SHOP, LATER], ACTIVE, "acme/shop", {"fast-1:8080", "fast-2:8080"}),
    "the only policy that names it": ([SHOP, LATER], ACTIVE, "acme/x", {"slow-2:8080"}),
    "a namespace that Python cannot read": ([JAVA_NAMESPACE], ACTIVE, "x/y", {"fast-1:8080"}),
    "a broker that Python cannot read": ([JAVA_BROKER], ACTIVE, "acme/shop", frozenset()),
}


@pytest.mark.parametrize(("policies", "active", "namespace", "allowed"), ALLOWED.values(), ids=ALLOWED)
def test_the_brokers_that_a_namespace_may_be_on(
    policies: list[IsolationPolicy], active: tuple[str, ...], namespace: str, allowed: Set[str] | None
) -> None:
    assert Isolation(policies, active).allowed(namespace) == allowed


@pytest.mark.parametrize(
    ("policies", "shared"),
    [([SHOP], {"slow-1:8080", "slow-2:8080"}), ([], None), ([JAVA_BROKER], frozenset())],
    ids=["those that are primary for nobody", "all of them", "none if Python cannot read which are primary"],
)
def test_the_brokers_that_are_everybodys(policies: list[IsolationPolicy], shared: Set[str] | None) -> None:
    assert Isolation(policies, ACTIVE).shared == shared


def test_a_policy_without_an_active_broker_is_named() -> None:
    port = IsolationPolicy("port", ("acme/other",), ("fast-1:8080",))
    java_only = IsolationPolicy("java", ("acme/java",), (r"\p{Alpha}+",))

    assert Isolation([SHOP, port, java_only], ACTIVE).without_broker == (port, java_only)
    assert Isolation([SHOP], ACTIVE[2:]).without_broker == (), "a secondary broker is one"
    assert Isolation([SHOP], ()).without_broker == (SHOP,)
