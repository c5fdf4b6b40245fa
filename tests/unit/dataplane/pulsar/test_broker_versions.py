"""Which brokers keep ranges whole, what cannot be read on the others, which read a reloaded end, and which read policies first."""

from __future__ import annotations

import pytest

from controller.dataplane.pulsar.broker_versions import (
    demand_readable,
    holds_gates,
    keeps_whole_ranges,
    reads_after_reload,
)
from controller.domain.errors import Unsupported
from controller.domain.hash_range import HashRange

ONE_HASH, TWO = HashRange(4711, 4711), HashRange(4711, 4712)


@pytest.mark.parametrize(
    "version",
    ["3.0.14", "3.0.15", "3.3.9", "4.0.7", "4.0.7-SNAPSHOT", "4.1.0", "4.2.4", "5.0.0-M1", "a fork"],
)
def test_brokers_that_keep_ranges_whole(version: str) -> None:
    assert keeps_whole_ranges(version)
    demand_readable(ONE_HASH, version)


@pytest.mark.parametrize("version", ["2.11.4", "3.0.13", "3.1.3", "3.2.4", "3.3.8", "4.0.6", "4.0.0"])
def test_on_others_a_bucket_of_one_hash_is_refused_and_no_other(version: str) -> None:
    demand_readable(TWO, version)
    with pytest.raises(Unsupported, match="update it to"):
        demand_readable(ONE_HASH, version)


@pytest.mark.parametrize("version", ["3.0.11", "3.3.6", "4.0.4", "4.1.0", "4.2.4", "5.0.0-M1", "a fork", ""])
def test_brokers_that_read_a_terminated_topic_after_a_load(version: str) -> None:
    assert reads_after_reload(version)


@pytest.mark.parametrize("version", ["2.11.4", "3.0.10", "3.1.3", "3.2.4", "3.3.5", "4.0.3"])
def test_brokers_that_do_not(version: str) -> None:
    assert not reads_after_reload(version)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("4.0.0", False),
        ("4.0.6", False),
        ("4.0.7", True),
        ("4.1.0", True),
        ("4.2.4", True),
        ("5.0.0-M1", True),
        ("3.3.9", False),
        ("3.0.0", False),
        ("a fork", False),
    ],
)
def test_brokers_on_which_gates_hold(version: str, *, expected: bool) -> None:
    assert holds_gates(version) is expected
