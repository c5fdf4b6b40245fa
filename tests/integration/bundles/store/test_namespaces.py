"""Namespaces of bundles: dry run until enabled, each change by compare-and-set."""

from __future__ import annotations

import pytest

from controller.bundles.store import namespaces
from controller.bundles.store.namespaces import BalancingMode, NamespaceRow
from controller.domain.errors import InvalidInput, InvariantViolated, LostRace, NotFound
from tests.support.bundle_reports import CLUSTER, HALF, LAST, NAMESPACE, add_namespace
from tests.support.store_driver import StoreDriver


@pytest.fixture
def row(driver: StoreDriver) -> NamespaceRow:
    """A namespace of two bundles."""
    return add_namespace(driver, 0, HALF, LAST)


def test_a_new_namespace_stands_in_dry_run(row: NamespaceRow) -> None:
    assert (row.mode, row.row_version, row.split_settings) == (BalancingMode.DRY_RUN, 1, {})
    assert row.bundles.count == 2


def test_it_is_listed_in_its_cluster(driver: StoreDriver, row: NamespaceRow) -> None:
    assert driver.do(namespaces.list_namespaces, CLUSTER) == [row]
    assert driver.do(namespaces.list_namespaces, "elsewhere") == []


def test_each_change_keeps_the_rest_and_raises_the_version(driver: StoreDriver, row: NamespaceRow) -> None:
    driver.do(
        namespaces.set_mode, CLUSTER, NAMESPACE, BalancingMode.AUTOMATIC, actor="bob", seen_row_version=1
    )
    driver.do(
        namespaces.set_split_settings,
        CLUSTER,
        NAMESPACE,
        {"max_topics": 5},
        actor="cid",
        seen_row_version=2,
    )
    found = driver.do(
        namespaces.set_boundaries, CLUSTER, NAMESPACE, [0, LAST], actor="dan", seen_row_version=3
    )

    assert (found.mode, found.split_settings, found.boundaries) == (
        BalancingMode.AUTOMATIC,
        {"max_topics": 5},
        (0, LAST),
    )
    assert (found.row_version, found.actor) == (4, "dan")
    assert found == driver.do(namespaces.get_namespace, CLUSTER, NAMESPACE)
    assert found.boundaries_at > row.boundaries_at


def test_a_version_that_has_passed_is_a_lost_race(driver: StoreDriver, row: NamespaceRow) -> None:
    driver.do(
        namespaces.set_mode, CLUSTER, NAMESPACE, BalancingMode.APPROVAL, actor="bob", seen_row_version=1
    )

    with pytest.raises(LostRace, match="version 2, not 1"):
        driver.do(
            namespaces.set_mode, CLUSTER, NAMESPACE, BalancingMode.DRY_RUN, actor="ann", seen_row_version=1
        )


def test_one_that_is_unknown_is_not_found(driver: StoreDriver) -> None:
    with pytest.raises(NotFound, match="collect its reports first"):
        driver.do(
            namespaces.set_mode, CLUSTER, NAMESPACE, BalancingMode.APPROVAL, actor="ann", seen_row_version=0
        )


@pytest.mark.parametrize(
    "edges", [[], [0], [LAST], [1, LAST], [0, LAST - 1], [0, 7, 7, LAST], [0, 9, 7, LAST]]
)
def test_boundaries_that_do_not_tile_are_refused(
    driver: StoreDriver, row: NamespaceRow, edges: list[int]
) -> None:
    with pytest.raises(InvalidInput, match="rise from 0 to 4294967295"):
        driver.do(namespaces.set_boundaries, CLUSTER, NAMESPACE, edges, actor="ann", seen_row_version=1)


def test_nobody_moves_a_version_by_hand(driver: StoreDriver, row: NamespaceRow) -> None:
    with pytest.raises(InvariantViolated, match="rises by exactly 1"):
        driver.sql("UPDATE cleave.namespace_bundles SET mode = 'automatic'")
