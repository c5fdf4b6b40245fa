"""The trigger behind an asset's watcher, on a real database: what it fires, and what it remembers."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import threading
from contextlib import suppress
from typing import Any

import pytest

from controller.domain.errors import StoreUnavailable
from controller.services import segment_admin, topic_admin
from tests.support.bench import TOPIC, Bench
from tests.support.waiting import wait_until

pytestmark = pytest.mark.airflow
LISTENS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cleave-layout-changes' AND state = 'idle' AND query <> ''"


def pipes() -> int:
    """Ends of pipes that this process has open."""
    found = 0
    for descriptor in os.listdir("/dev/fd"):
        with suppress(OSError):  # that of the listing itself is closed by now
            found += stat.S_ISFIFO(os.fstat(int(descriptor)).st_mode)
    return found


class State:
    """What Airflow keeps of an asset."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.kept.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self.kept[key] = value


class FiredTrigger:
    """A trigger that runs as the triggerer runs it, until it has fired so often."""

    def __init__(self, bench: Bench, state: State | None = None, **options: Any) -> None:
        from cleave_provider.triggers.cleave import LayoutChangeTrigger

        _, kept = LayoutChangeTrigger(**options).serialize()
        self._trigger = LayoutChangeTrigger(**kept)
        if state is not None:
            self._trigger.asset_state_store = state  # type: ignore[assignment]  # what the triggerer puts there
        self._bench = bench
        self.events = 0

    def during(self, act: Any, count: int) -> list[dict[str, Any]]:
        """So many changes at least, which the act causes once the trigger listens."""
        return asyncio.run(asyncio.wait_for(self._during(act, count), 60))

    async def _during(self, act: Any, count: int) -> list[dict[str, Any]]:
        run = self._trigger.run()

        async def some() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            while len(found) < count:
                found += (await anext(run)).payload["changes"]
                self.events += 1
            return found

        firing = asyncio.ensure_future(some())
        try:
            await asyncio.to_thread(wait_until, lambda: self._bench.scalar(LISTENS), message="it listens")
            await asyncio.to_thread(act)
            return await firing
        finally:
            firing.cancel()
            await run.aclose()


def test_it_fires_for_each_change_with_what_changed(bench: Bench, connection: str) -> None:
    bench.topic_with(1)

    def act() -> None:
        bench.reshape(segment_admin.splitting(0))
        bench.reshape(segment_admin.merging(1, 2))

    first, second = FiredTrigger(bench).during(act, 2)

    assert (first["topic"], first["kind"], first["sealed"], first["created"]) == (TOPIC, "split", [0], [1, 2])
    assert (second["kind"], second["epoch"]) == ("merge", 2)
    wait_until(lambda: bench.scalar(LISTENS) == 0, message="its connection is given back")


def test_of_one_topic_it_fires_for_no_other(bench: Bench, connection: str) -> None:
    bench.topic_with(1)

    def act() -> None:
        asked = topic_admin.create_topic(
            bench.store,
            bench.planes,
            "topic://acme/shop/another",
            bench.request(),
            data_plane=bench.plane.name,
        )
        bench.finish(asked)
        bench.reshape(segment_admin.splitting(0))
        bench.reshape(segment_admin.merging(1, 2))

    one_topic = FiredTrigger(bench, topics=[TOPIC.removeprefix("topic://")]).during(act, 1)
    assert [(fired["topic"], fired["kind"]) for fired in one_topic] == [(TOPIC, "split")]


def test_of_one_kind_it_fires_for_no_other(bench: Bench, connection: str) -> None:
    bench.topic_with(1)

    def act() -> None:
        bench.reshape(segment_admin.splitting(0))
        bench.reshape(segment_admin.merging(1, 2))

    [fired] = FiredTrigger(bench, kinds=["merge"]).during(act, 1)

    assert fired["kind"] == "merge"


def test_what_happened_while_no_triggerer_was_up_fires_when_one_is(bench: Bench, connection: str) -> None:
    bench.topic_with(1)
    state = State()
    FiredTrigger(bench, state).during(lambda: bench.reshape(segment_admin.splitting(0)), 1)
    bench.reshape(segment_admin.splitting(1))

    again = FiredTrigger(bench, state)
    fired = again.during(lambda: None, 2)

    assert ([one["epoch"] for one in fired], again.events) == ([1, 2], 1)


def test_how_far_it_came_is_kept_before_it_fires_for_the_first_time(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a triggerer that dies within the seconds after its first event would begin anew, without what came meanwhile."""
    from controller.services.asset_events import follower

    bench.topic_with(1)
    reads = follower.database_now

    def read(tx: Any) -> Any:
        instant = reads(tx)
        if bench.layout.epoch == 0:
            bench.reshape(segment_admin.splitting(0))
        return instant

    monkeypatch.setattr(follower, "database_now", read)
    state = State()
    FiredTrigger(bench, state).during(lambda: None, 1)
    bench.reshape(segment_admin.splitting(1))

    assert [one["epoch"] for one in FiredTrigger(bench, state).during(lambda: None, 2)] == [1, 2]


def test_whatever_goes_wrong_it_is_tried_again(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger that dies is made anew at once by the triggerer, again and again."""
    from cleave_provider.triggers import cleave

    monkeypatch.setattr(cleave, "PAUSE_SECONDS", 0.05)
    bench.topic_with(1)
    follow, failures = (
        cleave.LayoutChangeTrigger._follow,
        [ValueError("an option that the driver does not know")],
    )

    def fails_once(trigger: Any, *given: Any) -> Any:
        if failures:
            raise failures.pop()
        return follow(trigger, *given)

    monkeypatch.setattr(cleave.LayoutChangeTrigger, "_follow", fails_once)

    [fired] = FiredTrigger(bench).during(lambda: bench.reshape(segment_admin.splitting(0)), 1)

    assert fired["kind"] == "split"


def test_what_happened_while_the_database_was_away_is_told_afterwards(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Airflow keeps nothing of an asset, as before 3.3: the trigger itself knows how far it was."""
    from controller.services.asset_events import LayoutFollower

    bench.topic_with(1)
    waits = LayoutFollower.wait
    away: list[bool] = []

    def wait(following: LayoutFollower, timeout_seconds: float) -> Any:
        if away:
            away.clear()
            bench.reshape(segment_admin.merging(1, 2))
            raise StoreUnavailable("PostgreSQL is away", 0.0)
        found = waits(following, timeout_seconds)
        if found:
            away.append(True)
        return found

    monkeypatch.setattr(LayoutFollower, "wait", wait)
    monkeypatch.setattr("cleave_provider.triggers.cleave.APART_SECONDS", 0.05)

    fired = FiredTrigger(bench).during(lambda: bench.reshape(segment_admin.splitting(0)), 2)

    assert {one["kind"] for one in fired} == {"split", "merge"}


@pytest.mark.parametrize(
    "wrong", ["?pass_batch_topics=none", "_that_is_not_there"], ids=["setting", "database"]
)
def test_a_connection_that_cannot_serve_is_looked_at_again(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    from cleave_provider.triggers import cleave

    monkeypatch.setattr(cleave, "PAUSE_SECONDS", 0.05)
    bench.topic_with(1)
    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", f"{connection}{wrong}")
    looks = cleave.CleaveHook.access

    def put_right(hook: Any) -> Any:
        found = looks(hook)
        monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", connection)
        return found

    monkeypatch.setattr(cleave.CleaveHook, "access", put_right)

    [fired] = FiredTrigger(bench).during(lambda: bench.reshape(segment_admin.splitting(0)), 1)

    assert fired["kind"] == "split"


def test_a_trigger_that_is_cancelled_while_it_begins_gives_everything_back(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins in the thread meanwhile has a pipe, and nobody waits for it any more."""
    from cleave_provider.triggers.cleave import LayoutChangeTrigger

    begun, go_on, follow = threading.Event(), threading.Event(), LayoutChangeTrigger._follow

    def slowly(*given: Any) -> Any:
        following = follow(*given)
        begun.set()
        assert go_on.wait(30)
        return following

    monkeypatch.setattr(LayoutChangeTrigger, "_follow", slowly)

    async def cancelled() -> None:
        fires = asyncio.ensure_future(anext(LayoutChangeTrigger().run()))
        assert await asyncio.to_thread(begun.wait, 30)
        fires.cancel()
        await asyncio.gather(fires, return_exceptions=True)
        go_on.set()

    before = pipes()
    asyncio.run(cancelled())

    wait_until(lambda: pipes() == before, message="its pipe is given back")


def test_a_kind_that_is_none_is_refused_where_the_dag_is_read(airflow_home: None) -> None:
    from cleave_provider.assets.cleave import watched_layout

    with pytest.raises(ValueError, match="no layout changes of kind splitt; use create, split"):
        watched_layout("splits", kinds=["splitt"])


@pytest.mark.parametrize(
    "chosen", [{"topics": TOPIC}, {"kinds": "split"}, {"topics": [7]}, {"kinds": [None]}]
)
def test_a_choice_that_is_no_list_of_texts_is_refused_where_the_dag_is_read(
    airflow_home: None, chosen: dict[str, Any]
) -> None:
    """The letters of a text would be topics that never change."""
    from cleave_provider.assets.cleave import watched_layout

    [(name, value)] = chosen.items()
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r} must be a list of texts")):
        watched_layout("mine", **chosen)


def test_every_kind_is_one_that_a_layout_change_can_have(bench: Bench, airflow_home: None) -> None:
    """Another one would never fire."""
    from cleave_provider.triggers.cleave import KINDS

    law = bench.scalar(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'layout_change_kind_known'"
    )
    assert sorted(KINDS) == sorted(re.findall(r"'(\w+)'", law))


def test_watchers_of_the_same_are_one_trigger(airflow_home: None) -> None:
    from airflow.triggers.base import BaseEventTrigger

    from cleave_provider.triggers.cleave import LayoutChangeTrigger

    def stored(**options: Any) -> int:
        return BaseEventTrigger.hash(*LayoutChangeTrigger(**options).serialize())

    assert stored(kinds=["merge", "split"]) == stored(kinds=["split", "merge"])
    assert stored(kinds=["merge"]) != stored(kinds=["split"])
