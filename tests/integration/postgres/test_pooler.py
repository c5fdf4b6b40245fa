"""PgBouncer between Cleave and PostgreSQL: sessions are kept for a client, with their settings, or the pooler is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import DataPlaneUnavailable, InvalidInput
from controller.store.postgres.engine import Store
from tests.support.pgbouncer import pgbouncer
from tests.support.store_driver import StoreDriver

LIMITS = (
    "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'),"
    "       current_setting('idle_in_transaction_session_timeout'), current_setting('plan_cache_mode')"
)
IGNORED = ["", "extra_float_digits", "extra_float_digits,options"]
"""Startup parameters that PgBouncer is told to ignore: without `options` among them, it refuses these."""


@pytest.mark.parametrize("ignored", IGNORED)
def test_the_limits_of_a_session_are_in_force(database: str, tmp_path: Path, ignored: str) -> None:
    with pgbouncer(database, tmp_path, "session", ignore_startup_parameters=ignored) as url:
        driver = StoreDriver(url)
        calls = PostgresCalls(url, call_timeout_seconds=10.0)
        with calls.statement("look") as cursor:
            cursor.execute(LIMITS)
            of_calls = cursor.fetchone()

        assert driver.sql(LIMITS) == [("30s", "48s", "2min", "force_generic_plan")]
        assert of_calls == ("6s", "8s", "10s", "auto")
        driver.store.dispose()
        calls.close()


@pytest.mark.parametrize("ignored", IGNORED)
def test_settings_of_the_url_are_in_force(database: str, tmp_path: Path, ignored: str) -> None:
    options = r"?options=-c%20work_mem%3D8MB%20--cleave.word%3Da%5C%20b%20-cenable-sort%3Doff"
    with pgbouncer(database, tmp_path, "session", ignore_startup_parameters=ignored) as url:
        driver = StoreDriver(url + options)

        settings = "SELECT current_setting('work_mem'), current_setting('cleave.word'), current_setting('enable_sort')"
        assert driver.sql(settings) == [("8MB", "a b", "off")]
        driver.store.dispose()


@pytest.mark.parametrize("ignored", IGNORED)
def test_transaction_pooling_is_refused_by_the_first_connection(
    database: str, tmp_path: Path, ignored: str
) -> None:
    with pgbouncer(database, tmp_path, "transaction", ignore_startup_parameters=ignored) as url:
        store, calls = Store(url), PostgresCalls(url, call_timeout_seconds=10.0)

        with pytest.raises(InvalidInput, match="pool_mode = session"), store.transaction():
            pass
        with pytest.raises(DataPlaneUnavailable, match="pool_mode = session"), calls.statement("look"):
            pass
        store.dispose()
        calls.close()
