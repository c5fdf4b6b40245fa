"""What a batch skipped is recorded, whatever characters its name has."""

from __future__ import annotations

from controller.store import set_aside
from controller.store.set_aside import Batch, SetAside
from tests.support.store_driver import StoreDriver


def test_a_name_that_postgresql_cannot_store_is_recorded_all_the_same(driver: StoreDriver) -> None:
    skipped = [SetAside("file a\0\ud800\n b", "no name: \udfff"), SetAside("file c", "no Parquet")]

    driver.do(set_aside.note, Batch.LOAD, skipped)

    assert driver.sql("SELECT subject, reason FROM inspect.set_aside ORDER BY 1") == [
        ("file a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} b", "no name: \N{REPLACEMENT CHARACTER}"),
        ("file c", "no Parquet"),
    ]
