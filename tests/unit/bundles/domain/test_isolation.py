"""Isolation policies: which brokers a namespace may be on, which are everybody's, and what cannot be read."""

from __future__ import annotations

from controller.bundles.domain.isolation import Isolation, IsolationPolicy

ACTIVE = ("fast-1:8080", "fast-2:8080", "slow-1:8080", "slow-2:8080")
SHOP = IsolationPolicy("shop", ("acme/shop.*",), (r"fast-\d",), ("slow-1",), min_primaries=1)


def test_a_namespace_is_kept_to_its_primary_brokers_while_enough_are_active() -> None:
    assert Isolation([SHOP], ACTIVE).allowed("acme/shop-eu") == {"fast-1:8080", "fast-2:8080"}
    assert Isolation([SHOP], ACTIVE[2:]).allowed("acme/shop") == {"slow-1:8080"}
    assert Isolation([SHOP], ACTIVE[3:]).allowed("acme/shop") == frozenset()


def test_another_namespace_may_be_on_what_is_primary_for_nobody() -> None:
    isolation = Isolation([SHOP], ACTIVE)

    assert isolation.allowed("acme/other") is None
    assert isolation.shared == {"slow-1:8080", "slow-2:8080"}
    assert Isolation([], ACTIVE).shared is None


def test_names_are_matched_whole_and_without_the_port() -> None:
    assert Isolation([SHOP], ACTIVE).allowed("our-acme/shop") is None
    policy = IsolationPolicy("p", ("acme/shop",), ("fast-1:8080", "slow"))
    assert Isolation([policy], ACTIVE).allowed("acme/shop") == frozenset()


def test_the_first_policy_that_names_it_counts() -> None:
    later = IsolationPolicy("later", ("acme/.*",), ("slow-2",))
    isolation = Isolation([SHOP, later], ACTIVE)

    assert isolation.allowed("acme/shop") == {"fast-1:8080", "fast-2:8080"}
    assert isolation.allowed("acme/x") == {"slow-2:8080"}


def test_what_python_cannot_read_forbids() -> None:
    java_only = r"\p{Alpha}+/.*"
    assert Isolation([IsolationPolicy("p", (java_only,), ("fast-1",))], ACTIVE).allowed("x/y") == {
        "fast-1:8080"
    }
    unreadable = Isolation([IsolationPolicy("p", ("acme/shop",), (r"\p{Alpha}+",))], ACTIVE)
    assert (unreadable.allowed("acme/shop"), unreadable.shared) == (frozenset(), frozenset())


def test_a_policy_without_an_active_broker_is_named() -> None:
    port = IsolationPolicy("port", ("acme/other",), ("fast-1:8080",))
    java_only = IsolationPolicy("java", ("acme/java",), (r"\p{Alpha}+",))

    assert Isolation([SHOP, port, java_only], ACTIVE).without_broker == (port, java_only)
    assert Isolation([SHOP], ACTIVE[2:]).without_broker == (), "a secondary broker is one"
    assert Isolation([SHOP], ()).without_broker == (SHOP,)
