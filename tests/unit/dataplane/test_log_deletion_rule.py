"""The proof that a log may be deleted: each condition keeps the log by itself."""

from __future__ import annotations

import pytest

from controller.dataplane.base import CursorReport, LogReport, LogState
from controller.dataplane.log_deletion_rule import FOREIGN, reason_to_keep
from controller.domain.log_origin import LogOrigin, Ownership

OWN = LogOrigin("own", 1, (0,), ())
CREATED = Ownership(is_reserved=True, token="own")
READ, UNREAD = CursorReport(0), CursorReport(3)


@pytest.mark.parametrize(
    ("origin", "ownership"),
    [
        (LogOrigin("another", 1, (0,), ()), CREATED),
        (None, CREATED),
        (OWN, Ownership(is_reserved=True, token=None)),
        (OWN, Ownership(is_reserved=False, token="own")),
        (None, Ownership()),
    ],
    ids=["another token", "no origin", "no token", "not reserved", "neither"],
)
@pytest.mark.parametrize("was_active", [True, False])
def test_a_log_that_no_operation_of_the_journal_created_is_kept(
    origin: LogOrigin | None, ownership: Ownership, was_active: bool
) -> None:
    ownership = Ownership(ownership.is_reserved, ownership.token, was_active=was_active)

    assert reason_to_keep(LogReport(LogState.TERMINATED, origin, False, {}), ownership) == FOREIGN


@pytest.mark.parametrize(
    ("origin", "ownership"),
    [
        (OWN, CREATED),
        (None, Ownership(is_reserved=True, token=None)),
        (None, Ownership(is_adopted=True)),
    ],
    ids=["own", "from before tokens were recorded", "adopted"],
)
def test_a_log_of_the_journal_that_nobody_used_is_deleted(
    origin: LogOrigin | None, ownership: Ownership
) -> None:
    assert reason_to_keep(LogReport(LogState.OPEN, origin, False, {}), ownership) is None


@pytest.mark.parametrize(
    ("state", "cursors", "was_active", "reason"),
    [
        (LogState.TERMINATED, {"a": READ, "b": UNREAD}, True, "subscription b has 3 unread message(s)"),
        (LogState.OPEN, {"a": READ}, True, "the log holds messages and still accepts appends"),
        (LogState.OPEN, {}, True, "the log holds messages and still accepts appends"),
        (
            LogState.TERMINATED,
            {},
            False,
            "the log holds messages, and no subscription shows that they were read",
        ),
        (LogState.TERMINATED, {}, True, None),
        (LogState.TERMINATED, {"a": READ, "b": READ}, False, None),
    ],
)
def test_a_used_log_is_deleted_once_it_is_closed_and_read(
    state: LogState, cursors: dict[str, CursorReport], was_active: bool, reason: str | None
) -> None:
    ownership = Ownership(is_reserved=True, token="own", was_active=was_active)

    assert reason_to_keep(LogReport(state, OWN, True, cursors), ownership) == reason
