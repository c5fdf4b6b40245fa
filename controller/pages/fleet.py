"""The fleet: a row for each topic; topics that need attention come first."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import Query

from controller.actions.fields import fill_in
from controller.pages import approvals
from controller.pages.context import MAX_ROWS, Reading, Text
from controller.questions.overviews import ShowFleet, Shown, fleet_topics, last_load_run, live_workers


def page(
    tx: Reading, find: Text = "", show: Text = "", after: Annotated[int, Query(ge=0, lt=2**31)] = 0
) -> dict[str, Any]:
    """Return up to MAX_ROWS topics whose names contain `find`, in condition `show` (empty: any), without the first
    `after` topics, and the sums of the fleet. `next` is the value of `after` for the next page, None on the last.
    Raises InvalidInput for an unknown condition, or a number out of bounds.
    """
    request = fill_in(ShowFleet, {"find": find, "show": show or None, "after": after, "limit": MAX_ROWS + 1})
    sums, topics = fleet_topics(tx, request, sums=True)
    return {
        "find": find,
        "show": show,
        "shown": get_args(Shown),
        "topics": topics[:MAX_ROWS],
        "next": after + MAX_ROWS if len(topics) > MAX_ROWS else None,
        "sums": sums,
        "workers": live_workers(tx),
        "last_load": last_load_run(tx),
        "approvals": approvals.waiting(tx),
    }
