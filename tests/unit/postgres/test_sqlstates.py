"""Each SQLSTATE that Cleave treats in a way of its own, and what it means."""

from __future__ import annotations

import pytest
from psycopg2 import errorcodes

from controller.postgres.sqlstates import Condition, condition

MEANINGS = {
    "08000": Condition.AWAY,
    "08006": Condition.AWAY,
    "08P01": Condition.AWAY,
    "22003": Condition.VALUE,
    "23505": Condition.CONSTRAINT,
    "23P01": Condition.CONSTRAINT,
    "25006": Condition.READ_ONLY,
    "25P03": Condition.AWAY,
    "25P04": Condition.AWAY,
    "26000": Condition.SESSION_LOST,
    "28000": Condition.REFUSED,
    "28P01": Condition.REFUSED,
    "3D000": Condition.REFUSED,
    "3F000": Condition.NOT_INSTALLED,
    "40001": Condition.RACED,
    "40003": Condition.AWAY,
    "40P01": Condition.RACED,
    "42501": Condition.FORBIDDEN,
    "42703": Condition.NOT_INSTALLED,
    "42883": Condition.NOT_INSTALLED,
    "42P01": Condition.NOT_INSTALLED,
    "42P05": Condition.SESSION_LOST,
    "53100": Condition.DISK_FULL,
    "53200": Condition.RESOURCES,
    "53300": Condition.RESOURCES,
    "55P03": Condition.LOCKED,
    "57014": Condition.TOO_LATE,
    "57P01": Condition.AWAY,
    "57P02": Condition.AWAY,
    "57P03": Condition.AWAY,
    "57P04": Condition.AWAY,
    "57P05": Condition.AWAY,
    "58030": Condition.AWAY,
}
OF_THE_STATEMENT = ["0A000", "25001", "25P02", "42601", "42P02", "54001", "55000", "P0001", "XX000"]


@pytest.mark.parametrize(
    ("state", "meaning"), [*MEANINGS.items(), *((state, None) for state in (*OF_THE_STATEMENT, None))]
)
def test_a_state_has_one_meaning_or_is_of_the_statement(state: str | None, meaning: Condition | None) -> None:
    assert condition(state) is meaning


def test_states_of_a_server_that_stops_are_all_of_them_outages() -> None:
    stops = [code for code in vars(errorcodes).values() if isinstance(code, str) and code.startswith("57P")]

    assert stops
    assert {condition(code) for code in stops} == {Condition.AWAY}


@pytest.mark.parametrize(
    ("state", "elsewhere"), [("40001", Condition.RACED), ("40P01", Condition.RACED), ("55000", None)]
)
def test_a_conflict_with_recovery_is_told_by_its_server(state: str, elsewhere: Condition | None) -> None:
    assert condition(state, on_standby=True) is Condition.READ_ONLY
    assert condition(state) is elsewhere


def test_what_another_connection_may_put_right_spoils_the_connection() -> None:
    assert {one for one in Condition if one.spoils_connection} == {
        Condition.AWAY,
        Condition.READ_ONLY,
        Condition.SESSION_LOST,
    }
