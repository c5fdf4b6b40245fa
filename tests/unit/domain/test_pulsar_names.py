"""Complete names of topics; only these are hashed."""

from __future__ import annotations

import pytest

from controller.domain.errors import InvalidInput
from controller.domain.pulsar_names import (
    belongs_to_a_broker,
    canonical_topic_name,
    checked_namespace,
    is_system_namespace,
    namespace_of,
    partitioned_topic_of,
)


@pytest.mark.parametrize(
    ("given", "complete"),
    [
        ("my-topic", "persistent://public/default/my-topic"),
        ("tenant/ns/x", "persistent://tenant/ns/x"),
        ("persistent://tenant/ns/x", "persistent://tenant/ns/x"),
        ("non-persistent://tenant/ns/x-partition-3", "non-persistent://tenant/ns/x-partition-3"),
        ("segment://tenant/ns/x/0000-7fff-4", "segment://tenant/ns/x/0000-7fff-4"),
        ("topic://tenant/ns/a/b", "topic://tenant/ns/a/b"),
        ("persistent://tenant/ns/größe €", "persistent://tenant/ns/größe €"),
    ],
)
def test_short_names_are_completed_as_pulsars_tools_do(given: str, complete: str) -> None:
    assert canonical_topic_name(given) == complete
    assert canonical_topic_name(complete) == complete


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "is not complete"),
        ("ns/x", "neither a topic nor tenant/namespace/topic"),
        ("a/b/c/d", "neither a topic nor tenant/namespace/topic"),
        ("kafka://t/n/x", "has the domain 'kafka'; give one of persistent, non-persistent, topic, segment"),
        ("://t/n/x", "has the domain ''"),
        ("persistent://t/n", "is not complete; write it as persistent://tenant/namespace/topic"),
        ("persistent://t/n/", "is not complete"),
        ("persistent://t/cluster/n/x", "more than three parts"),
        ("persistent://t/n s/x", "namespace 't/n s' is not a name"),
        ("persistent:///n/x", "namespace '/n' is not a name"),
        ("persistent://t/n/\ud800", "has no UTF-8 form"),
    ],
)
def test_what_pulsar_takes_for_no_name_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        canonical_topic_name(name)

    assert words in refused.value.message


def test_the_namespace_of_any_form() -> None:
    assert namespace_of("x") == "public/default"
    assert namespace_of("segment://t/n/x/0000-7fff-4") == "t/n"


@pytest.mark.parametrize("namespace", ["t", "t/n/x", "t/", "/n", "t/n\n", "t/ö"])
def test_a_namespace_is_two_names(namespace: str) -> None:
    with pytest.raises(InvalidInput, match="is not a name; write it as tenant/namespace"):
        checked_namespace(namespace)


@pytest.mark.parametrize(
    ("topic", "base"),
    [
        ("x-partition-12", "x"),
        ("x-partition-0", "x"),
        ("x-partition-1-partition-2", "x-partition-1"),
        ("x-partition-", "x-partition-"),
        ("x-partition-01", "x-partition-01"),
        ("x-partition-a", "x-partition-a"),
        ("x", "x"),
    ],
)
def test_a_partition_is_known_by_its_number(topic: str, base: str) -> None:
    assert partitioned_topic_of(topic) == f"persistent://public/default/{base}"


@pytest.mark.parametrize(
    ("namespace", "of_a_broker", "system"),
    [
        ("pulsar/system", False, True),
        ("pulsar/host:8080", True, True),
        ("pulsar/cluster/host:8080", True, True),
        ("sla-monitor/host:8080", True, True),
        ("pulsar/other", False, False),
        ("public/default", False, False),
    ],
)
def test_namespaces_of_one_broker_and_of_pulsar(namespace: str, of_a_broker: bool, system: bool) -> None:
    assert belongs_to_a_broker(namespace) is of_a_broker
    assert is_system_namespace(namespace) is system
