"""The checker that demos and kill tests trust: each kind of damage is seen, and nothing else is."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from controller.client.history import HistoryFile, Record, check, read_history


def sent(*numbers: int, key: str = "k") -> list[Record]:
    return [Record(0, "p", key, number, "") for number in numbers]


def delivered(*numbers: int, key: str = "k", where: str = "c", start: int = 0) -> list[Record]:
    return [Record(start + at, "p", key, number, where) for at, number in enumerate(numbers)]


def test_a_faithful_history_is_exactly_once() -> None:
    verdict = check(sent(0, 1, 2), delivered(0, 1, 2))

    assert verdict.exactly_once
    assert (verdict.sent, verdict.delivered) == (3, 3)


def test_what_was_acknowledged_and_never_delivered_is_lost() -> None:
    assert check(sent(0, 1, 2), delivered(0, 2)).lost == (("p", "k", 1),)


def test_a_second_delivery_is_a_duplicate_and_not_out_of_order() -> None:
    verdict = check(sent(0, 1, 2), [*delivered(0, 1), *delivered(0, 1, 2, where="d", start=10)])

    assert verdict.duplicated == (("p", "k", 0), ("p", "k", 1))
    assert verdict.in_order_and_complete
    assert not verdict.exactly_once


def test_a_first_delivery_behind_a_later_one_is_out_of_order() -> None:
    verdict = check(sent(0, 1, 2), delivered(0, 2, 1))

    assert verdict.out_of_order == (("p", "k", 1),)
    assert not verdict.in_order_and_complete


def test_order_is_judged_by_time_across_consumers() -> None:
    late = delivered(0, where="a", start=10)
    early = delivered(1, where="b", start=5)

    assert check(sent(0, 1), [*late, *early]).out_of_order == (("p", "k", 0),)


def test_keys_and_producers_are_independent() -> None:
    other = [record._replace(producer="q") for record in sent(0, 1)]
    arrived = [record._replace(producer="q") for record in delivered(0, 1, start=1)]

    assert check(
        [*sent(0, 1), *other], [*delivered(0, start=0), *arrived, *delivered(1, start=9)]
    ).exactly_once


def test_a_delivery_nobody_knows_to_have_sent_is_unconfirmed_only() -> None:
    verdict = check(sent(0), delivered(0, 1))

    assert verdict.unconfirmed == (("p", "k", 1),)
    assert verdict.exactly_once


def test_files_of_several_processes_are_read_back_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    first, second = tmp_path / "sent", tmp_path / "delivered"
    with HistoryFile(first) as history:
        history.write([("p", "größe", 0)])
        history.write([("p", "größe", 1)])
    with HistoryFile(second, "c") as history:
        history.write([("p", "größe", 0), ("p", "größe", 1)])
    with second.open("a") as torn:
        torn.write("123\tp\tgr")

    assert [r.identity for r in read_history(first)] == [("p", "größe", 0), ("p", "größe", 1)]
    assert {r.where for r in read_history(second)} == {"c"}
    assert check(read_history(first), read_history(second)).exactly_once


@given(st.permutations(range(6)))
def test_exactly_the_orders_that_rise_are_in_order(order: list[int]) -> None:
    verdict = check(sent(*range(6)), delivered(*order))

    assert verdict.in_order_and_complete == (order == sorted(order))
    assert verdict.lost == verdict.duplicated == ()
