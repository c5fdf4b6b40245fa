"""The limits of calls in progress: each kind of call, and each subject's changes, leave turns for others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from controller.actions.rights import Right
from controller.web.http_caller import AT_ONCE, LOADS_AT_ONCE, OF_SUBJECT, Turns

Call = tuple[Right, str]


def admitted(calls: Sequence[Call]) -> list[bool]:
    """Whether each call has its turn, if the calls begin in this order and none ends."""

    async def begin() -> list[bool]:
        turns, has_turn = Turns(), [False] * len(calls)

        async def hold(number: int, call: Call) -> None:
            async with turns.take(*call):
                has_turn[number] = True
                await asyncio.Event().wait()

        holding = [asyncio.create_task(hold(*numbered)) for numbered in enumerate(calls)]
        await asyncio.sleep(0)  # each call gets its turn, or waits
        for one in holding:
            one.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        return has_turn

    return asyncio.run(begin())


CHANGES: list[Call] = [(Right.OPERATE, f"subject {number}") for number in range(AT_ONCE)]
READS: list[Call] = [(Right.READ, "reader")] * AT_ONCE
LOADS: list[Call] = [(Right.WRITE_LOAD, "broker")] * LOADS_AT_ONCE


@pytest.mark.parametrize("calls", [CHANGES, READS, LOADS])
def test_each_kind_of_call_has_a_limit_that_leaves_turns_for_the_others(calls: list[Call]) -> None:
    one_of_each: list[Call] = [
        (Right.ADMINISTER, "other"),
        (Right.LOOK_UP, "other"),
        (Right.WRITE_LOAD, "other"),
    ]
    others = [of is not calls for of in (CHANGES, READS, LOADS)]
    assert admitted([*calls, *one_of_each]) == [True] * len(calls) + others


def test_changes_that_wait_for_the_share_of_their_subject_take_no_turn_of_others() -> None:
    greedy = [(Right.OPERATE, "greedy")] * AT_ONCE
    first = [number < OF_SUBJECT for number in range(AT_ONCE)]
    others = CHANGES[: AT_ONCE - OF_SUBJECT]
    assert admitted([*greedy, *others]) == [*first, *[True] * len(others)]
