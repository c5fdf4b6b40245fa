"""The table that an application keeps positions in, beside its results: one owner a bucket, each position once."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.pool import NullPool

from controller.client.exactly_once_table import Claim, PositionTable
from controller.domain.errors import (
    AlreadyStored,
    Conflict,
    FencedOut,
    InvalidInput,
    StoreUnavailable,
    Terminal,
)
from tests.support.bench import Bench

Connect = Callable[[], Any]
FIRST = Claim(topic_id=1, subscription="billing", origin=1, segment_id=0, bucket_start=0, generation=1)
NEXT = replace(FIRST, generation=2)


@pytest.fixture(params=["psycopg2", "sqlalchemy"])
def connect(request: pytest.FixtureRequest, database: str, dsn: str) -> Iterator[Connect]:
    if request.param == "sqlalchemy":
        engine = sqlalchemy.create_engine(database, poolclass=NullPool)
        yield engine.connect
        engine.dispose()
    else:
        yield lambda: psycopg2.connect(dsn)


@pytest.fixture
def table(table: PositionTable) -> PositionTable:
    table.create()  # is there already
    return table


def stored(
    table: PositionTable,
    connect: Connect,
    claim: Claim,
    *position: int,
    after: tuple[int, ...] | None = None,
    first: tuple[int, ...] | None = None,
) -> None:
    with closing(connect()) as connection:
        table.store(connection, claim, position, after=after, first=first)
        connection.commit()


def test_what_was_stored_is_known_to_the_next_owner(table: PositionTable, connect: Connect) -> None:
    assert table.claim(FIRST) is None
    stored(table, connect, FIRST, 7)

    assert table.claim(NEXT) == (7,)


def test_an_owner_of_before_stores_nothing(table: PositionTable, connect: Connect) -> None:
    table.claim(FIRST)
    table.claim(NEXT)

    with pytest.raises(FencedOut, match="no longer owned as of generation 1; roll back"):
        stored(table, connect, FIRST, 7)
    with pytest.raises(FencedOut, match="belongs to a newer owner than generation 1"):
        table.claim(FIRST)
    assert table.claim(NEXT) is None


def test_a_position_is_stored_once_and_never_falls(table: PositionTable, connect: Connect) -> None:
    table.claim(FIRST)
    stored(table, connect, FIRST, 3, 9, -1)

    for again in ((3, 9, -1), (3, 8, 5), (2, 99, 0)):
        with pytest.raises(AlreadyStored, match="roll back and acknowledge"):
            stored(table, connect, FIRST, *again)
    stored(table, connect, FIRST, 3, 10, -1)
    assert table.claim(FIRST) == (3, 10, -1)


def test_nothing_is_stored_over_what_was_handed_out_before_it_and_is_not(
    table: PositionTable, connect: Connect
) -> None:
    table.claim(FIRST)
    with pytest.raises(
        Conflict, match=r"up to position \[7\] .* are not in the results; roll back"
    ) as refusal:
        stored(table, connect, FIRST, 9, after=(7,))
    assert not isinstance(refusal.value, AlreadyStored)

    stored(table, connect, FIRST, 5)
    with pytest.raises(Conflict, match="not in the results"):
        stored(table, connect, FIRST, 9, after=(7,))
    stored(table, connect, FIRST, 7, after=(5,))
    stored(table, connect, FIRST, 9, after=(7,))
    with pytest.raises(AlreadyStored):
        stored(table, connect, FIRST, 7, after=(5,))
    assert table.claim(FIRST) == (9,)


def test_a_message_whose_result_is_stored_is_not_stored_again_with_the_next_one(
    table: PositionTable, connect: Connect
) -> None:
    table.claim(FIRST)
    stored(table, connect, FIRST, 5)

    for first in ((4,), (5,)):
        with pytest.raises(
            Conflict, match=r"position \[5\] .* some of these messages already; roll back"
        ) as refusal:
            stored(table, connect, FIRST, 7, first=first)
        assert not isinstance(refusal.value, AlreadyStored), "position 7 is not in the results"
    with pytest.raises(AlreadyStored):
        stored(table, connect, FIRST, 5, first=(4,))
    stored(table, connect, FIRST, 7, after=(5,), first=(6,))
    assert table.claim(FIRST) == (7,)


def test_what_was_stored_of_a_bucket_says_nothing_of_the_run_that_begins_with_it(
    table: PositionTable, connect: Connect
) -> None:
    """Nor the other way round: the run's other buckets may be far behind."""
    table.claim(FIRST)
    stored(table, connect, FIRST, 7)
    run, longer = (replace(NEXT, bucket_end=last) for last in (1023, 2047))

    assert table.claim(run) is None
    stored(table, connect, run, 3)
    assert table.claim(replace(longer, generation=3)) is None
    assert table.claim(replace(FIRST, generation=4)) == (7,)
    assert table.claim(replace(run, generation=5)) == (3,)


def test_each_range_has_a_row_of_its_own_that_the_table_can_hold() -> None:
    ends = (1, 2, 3, 4, 100, 65_534, 65_535)
    ranges = [(start, end) for end in ends for start in {0, 1, end // 2, end - 1} if start < end]
    rows = [replace(FIRST, bucket_start=start, bucket_end=end).place[3] for start, end in ranges]

    assert len(set(rows)) == len(rows)
    assert all(-(2**31) <= row < 0 for row in rows)
    assert replace(FIRST, bucket_start=9, bucket_end=9).place[3] == 9


def test_what_is_rolled_back_is_not_stored(table: PositionTable, connect: Connect) -> None:
    table.claim(FIRST)
    with closing(connect()) as connection:
        table.store(connection, FIRST, (7,))
        connection.rollback()

    assert table.claim(NEXT) is None


def test_positions_of_another_origin_mean_nothing(table: PositionTable, connect: Connect) -> None:
    """The subscription was moved by a seek, or is a new one of that name, which counts its generations from anew."""
    table.claim(NEXT)
    stored(table, connect, NEXT, 7)
    moved = replace(FIRST, origin=2)

    assert table.claim(moved) is None
    with pytest.raises(FencedOut):
        stored(table, connect, replace(NEXT, generation=3), 8)


SEEK_US, LATER_MS = 1_700_000_000_000_000, 1_700_000_060_000


def test_an_owner_of_a_restored_database_that_lost_a_seek_goes_on(
    table: PositionTable, connect: Connect
) -> None:
    """The generations of a verified topic are above the time of the seek, which is the origin."""
    lost = replace(FIRST, origin=SEEK_US, generation=9)
    table.claim(lost)
    stored(table, connect, lost, 7)
    restored = replace(FIRST, origin=SEEK_US - 60_000_000, generation=LATER_MS)

    assert table.claim(restored) == (7,)
    stored(table, connect, restored, 8)
    with pytest.raises(FencedOut):
        stored(table, connect, lost, 9)


def test_an_owner_of_a_deleted_subscription_takes_nothing_from_its_successor(table: PositionTable) -> None:
    """The generations of the successor begin at 0, and its origin is the time of its creation."""
    table.claim(replace(FIRST, origin=LATER_MS * 1000 + 1000, generation=1))

    with pytest.raises(FencedOut, match="request the seek again"):
        table.claim(replace(FIRST, origin=SEEK_US, generation=LATER_MS))


@pytest.mark.parametrize(
    "other", [{"topic_id": 2}, {"subscription": "audit"}, {"segment_id": 1}, {"bucket_start": 32_768}]
)
def test_each_bucket_has_a_row_of_its_own(
    table: PositionTable, connect: Connect, other: dict[str, Any]
) -> None:
    table.claim(FIRST)
    table.claim(replace(FIRST, **other))
    stored(table, connect, FIRST, 7)

    assert table.claim(replace(NEXT, **other)) is None
    assert table.claim(NEXT) == (7,)


def test_a_bucket_is_not_taken_while_its_last_owner_may_still_commit(
    table: PositionTable, connect: Connect
) -> None:
    table.claim(FIRST)
    with closing(connect()) as connection:
        table.store(connection, FIRST, (7,))
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            table.claim(NEXT)

        found: list[object] = []
        taking = threading.Thread(target=lambda: found.append(table.claim(NEXT)))
        taking.start()
        connection.commit()
        taking.join()

    assert found == [(7,)]


def test_a_database_that_is_away_is_worth_another_try(table: PositionTable, database: str) -> None:
    dsn = sqlalchemy.make_url(database).set(drivername="postgresql", port=1, host="127.0.0.1")
    away = PositionTable(lambda: psycopg2.connect(dsn.render_as_string(hide_password=False)))

    with pytest.raises(StoreUnavailable, match="positions in cleave_position are out of reach"):
        away.claim(FIRST)


@pytest.mark.parametrize("name", ["elsewhere", "no_schema.cleave_position"])
def test_a_table_that_was_never_made_is_made_by_create(connect: Connect, name: str) -> None:
    with pytest.raises(Terminal, match=rf"no table {name} .*does not exist.*call `create\(\)`"):
        PositionTable(connect, name=name).claim(FIRST)


def test_a_login_without_rights_is_told_which_it_needs(bench: Bench, table: PositionTable) -> None:
    role = f"results_{secrets.token_hex(4)}"
    bench.execute(f"CREATE ROLE {role}")

    def connect_without_rights() -> Any:
        dsn = sqlalchemy.make_url(bench.url).set(drivername="postgresql")
        return psycopg2.connect(dsn.render_as_string(hide_password=False), options=f"-c role={role}")

    try:
        with pytest.raises(Terminal, match="grant it SELECT, INSERT and UPDATE"):
            PositionTable(connect_without_rights, name=table.name).claim(FIRST)
    finally:
        bench.execute(f"DROP ROLE {role}")


def test_a_connection_that_commits_each_statement_stores_no_position(
    table: PositionTable, connect: Connect
) -> None:
    """Results and position would be two transactions, and a rollback would keep the results."""
    table.claim(FIRST)

    def connect_without_transactions() -> Any:
        connection = connect()
        if hasattr(connection, "execution_options"):
            return connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.autocommit = True
        return connection

    with pytest.raises(InvalidInput, match="autocommit"):
        PositionTable(connect_without_transactions).claim(NEXT)
    with pytest.raises(InvalidInput, match="autocommit"):
        stored(table, connect_without_transactions, FIRST, 7)
    assert table.claim(FIRST) is None


@pytest.mark.parametrize("name", ["", "a b", 'x"; drop table y', "A", "a.b.c"])
def test_a_name_that_would_need_quoting_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="not a plain table name"):
        PositionTable(lambda: None, name=name)
