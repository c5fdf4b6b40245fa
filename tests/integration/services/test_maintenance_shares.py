"""Shares of the fleet that maintenance reconciles and collects: each topic once, from a random one on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from controller.services.segment_admin import splitting
from controller.tasks import maintenance
from controller.tasks.maintenance import collect_garbage, reconcile_share
from tests.support.bench import Bench

ALL = {"share": 0, "of": 1}
NAMES = [f"topic://acme/shop/orders-{number}" for number in range(5)]


@pytest.fixture
def fleet(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Five topics, each with a sealed segment that is past its retention, and without one of its logs. A page has two topics."""
    bench = Bench(database)
    for name in NAMES:
        bench.topic_name = name
        bench.topic_with(segments=1, subscriptions=())
        bench.reshape(splitting(0))
        bench.plane.delete_segment(bench.log_of(1))
    monkeypatch.setattr(maintenance, "PAGE_TOPICS", 2)
    yield bench
    bench.close()


def begin_at(monkeypatch: pytest.MonkeyPatch, choose: Callable[[int], int]) -> None:
    """Let a share begin after this id, of as many as there are."""
    monkeypatch.setattr(maintenance, "secrets", SimpleNamespace(randbelow=choose))


def reconcile(bench: Bench) -> Any:
    """The topics with findings in the order of their comparison, and whether all were compared."""
    result = reconcile_share(dsn=bench.url, extras={}, share=ALL, dry_run=True)
    return [row["topic"] for row in result["shown"]], result["complete"]


@pytest.mark.parametrize(("after", "order"), [(0, "01234"), (1, "12340"), (3, "34012"), (4, "40123")])
def test_a_share_begins_at_any_topic_and_wraps_around_once(
    fleet: Bench, monkeypatch: pytest.MonkeyPatch, after: int, order: str
) -> None:
    begin_at(monkeypatch, lambda highest_id: highest_id - len(NAMES) + after)

    assert reconcile(fleet) == ([NAMES[int(number)] for number in order], True)
    collected = collect_garbage(dsn=fleet.url, extras={"retention_minutes": 0}, share=ALL, dry_run=True)
    assert (collected["topics"], collected["segments"], collected["complete"]) == (5, 5, True)


def test_a_share_without_time_for_all_is_not_complete(fleet: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever page comes first, the time is over after it."""
    seconds = count()
    monkeypatch.setattr(maintenance, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(maintenance, "BUDGET_SECONDS", 2)
    begin_at(monkeypatch, lambda highest_id: highest_id - 2)

    assert reconcile(fleet) == (NAMES[3:], False)


def test_a_share_of_one_page_begins_at_its_first_topic(fleet: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PAGE_TOPICS", 200)
    begin_at(monkeypatch, lambda highest_id: pytest.fail(f"one of {highest_id} was chosen"))

    assert reconcile(fleet) == (NAMES, True)
