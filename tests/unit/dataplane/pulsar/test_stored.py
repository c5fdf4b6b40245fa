"""In which order a terminated topic's entries are looked through for a batch in doubt."""

from __future__ import annotations

import pytest

from controller.dataplane.pulsar.stored import NOWHERE, places_backwards

LEDGERS = [{"ledgerId": 3, "entries": 2}, {"ledgerId": 7, "entries": 0}, {"ledgerId": 9, "entries": 5}]


@pytest.mark.parametrize(
    ("last", "behind", "places"),
    [
        pytest.param("9:1", NOWHERE, [(9, 1), (9, 0), (3, 1), (3, 0)], id="all, the last ledger to its end"),
        pytest.param("9:1", (3, 1), [(9, 1), (9, 0)], id="nothing at or before a known place"),
        pytest.param("9:1", (7, -1), [(9, 1), (9, 0)], id="a known end of an empty ledger"),
        pytest.param("9:1", (9, 1), [], id="nothing came after"),
        pytest.param("3:1", NOWHERE, [(3, 1), (3, 0)], id="later ledgers hold nothing yet"),
        pytest.param("9:-1", NOWHERE, [(3, 1), (3, 0)], id="an empty last ledger"),
    ],
)
def test_entries_from_the_last_to_the_first_unknown(
    last: str, behind: tuple[int, int], places: list[tuple[int, int]]
) -> None:
    internal = {"lastConfirmedEntry": last, "ledgers": LEDGERS}

    assert list(places_backwards(internal, behind)) == places
