"""The audit goes with time, and whoever has the controller's login cannot make it go sooner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.domain.errors import CleaveError
from controller.store import audit
from controller.store.postgres.clock import database_now
from controller.tasks.row_retention import keep_partitions
from tests.support.bench import Bench

AGES_DAYS = (0, 29, 31, 399, 401)


@pytest.fixture
def bench(database: str) -> Iterator[Bench]:
    """Somebody asked for something at each of those ages."""
    bench = Bench(database)
    for age in AGES_DAYS:
        bench.execute(
            "INSERT INTO cleave.audit (asked_at, subject, method, path, act, status)"
            " VALUES (clock_timestamp() - :age * interval '1 day', :who, 'POST', '/', 'split', 200)",
            age=age,
            who=str(age),
        )
    yield bench
    bench.close()


def kept(bench: Bench) -> list[int]:
    return [int(subject) for (subject,) in bench.rows("SELECT subject FROM cleave.audit ORDER BY audit_id")]


@pytest.mark.parametrize(("settings", "left"), [({}, [0, 29, 31, 399]), ({"audit_keep_days": 30}, [0, 29])])
def test_maintenance_forgets_what_is_old(bench: Bench, settings: dict[str, int], left: list[int]) -> None:
    keep_partitions(dsn=bench.url, extras=settings, keep_days=90)
    assert kept(bench) == left


def test_nothing_of_the_last_thirty_days_goes_whatever_is_asked_for(bench: Bench) -> None:
    with bench.store.transaction() as tx:
        assert audit.forget_before(tx, database_now(tx)) == 3
    assert kept(bench) == [0, 29]
    for statement in (
        "DELETE FROM cleave.audit",
        "TRUNCATE cleave.audit",
        "UPDATE cleave.audit SET status = 404",
    ):
        with pytest.raises(CleaveError):
            bench.execute(f"SET LOCAL ROLE cleave_controller; {statement}")
    assert kept(bench) == [0, 29]
