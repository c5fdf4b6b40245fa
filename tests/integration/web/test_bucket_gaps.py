"""Entry buckets that nobody reads, since their owner is away or does not release them: alarms, gauges, `inspect.bucket_gaps`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from controller import metrics
from controller.client.servers import Servers
from controller.client.session import Session
from controller.devstack.serving import client_of, serving_worker
from controller.services.consumer_sessions import leader
from controller.store.topics import consumers
from tests.support.bench import TOPIC, Bench
from tests.support.session_readers import EVERYTHING, Reader, owned, share
from tests.support.waiting import wait_until

SEGMENTS = 2


@pytest.fixture
def address(bench: Bench) -> Iterator[str]:
    """Of one worker."""
    with serving_worker(bench.url) as running:
        yield running.address


def test_who_does_not_let_go_of_a_bucket_is_told_of_and_loses_it_where_there_is_a_limit(bench: Bench) -> None:
    with serving_worker(bench.url, bucket_gap_seconds=0.2, consumer_release_seconds=2.0) as worker:
        servers = client_of(worker.address)
        alarms = metrics.BUCKET_ALARMS._value.get()
        holder = Session(servers, TOPIC, "billing", "a", on_change=lambda: None)
        wait_until(lambda: owned(holder) == EVERYTHING, message="all is a's")
        second = Reader(servers, "b")

        wait_until(
            lambda: metrics.BUCKET_ALARMS._value.get() == alarms + 2, message="an alarm for each bucket"
        )
        found = bench.rows(
            "SELECT DISTINCT holder, successor, reason, gap_seconds >= 0.2 FROM inspect.bucket_gaps"
        )
        assert found == [("a", "b", "being handed over", True)]
        assert second.owned == set()

        wait_until(lambda: len(second.owned) == 2, message="b has its share")
        wait_until(lambda: owned(holder) == EVERYTHING - second.owned, message="a is told")
        wait_until(
            lambda: worker_gauges() == ALL_IS_WELL,
            message="all is well again",
        )
        second.session.close()
        holder.close()
        servers.close()


def worker_gauges() -> dict[str, float]:
    """What the worker says of its buckets."""
    return {
        "owned": metrics.BUCKETS_OWNED._value.get(),
        "withheld": metrics.BUCKETS_WITHHELD._value.get(),
        "away": metrics.BUCKETS_AWAY._value.get(),
        "overdue": metrics.BUCKETS_OVERDUE._value.get(),
    }


ALL_IS_WELL = {"owned": 4.0, "withheld": 0.0, "away": 0.0, "overdue": 0.0}
AWAY = "owner is not connected: it may come back until its grace period is over"
_AWAY_SINCE = "SELECT disconnected_at FROM cleave.consumer WHERE name = 'a'"
_GAPS = "SELECT DISTINCT holder, reason, since = (SELECT disconnected_at FROM cleave.consumer WHERE name = holder) FROM inspect.bucket_gaps"


def test_the_buckets_of_a_consumer_that_is_away_are_told_of_until_it_is_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is written twice, however long it is away and however often everything is looked at."""
    noted: list[dict[str, float | None]] = []
    note = consumers.note_disconnected
    monkeypatch.setattr(
        consumers,
        "note_disconnected",
        lambda *given: (noted.append(given[-1]), note(*given)) if given[-1] else None,
    )
    monkeypatch.setattr(leader, "SWEEP_SECONDS", 0.2)
    with (
        serving_worker(bench.url, bucket_gap_seconds=3.0, consumer_grace_seconds=60.0) as worker,
        capture_logs() as lines,
    ):
        servers = client_of(worker.address)
        alarms = metrics.BUCKET_ALARMS._value.get()
        first, second = Reader(servers, "a"), Reader(servers, "b")
        share(first, second)
        before = first.generations
        first.session.close(leave=False)

        wait_until(lambda: bench.rows(_GAPS) == [("a", AWAY, True)], message="all are told")
        wait_until(lambda: worker_gauges()["away"] == 2.0, message="the worker counts them")
        wait_until(
            lambda: metrics.BUCKET_ALARMS._value.get() == alarms + 2, message="an alarm for each bucket"
        )
        wait_until(lambda: worker_gauges()["overdue"] == 2.0, message="they are overdue")
        settlements = len(noted)
        again = Reader(servers, "a")
        wait_until(lambda: worker_gauges() == ALL_IS_WELL, message="all is well again")
        wait_until(lambda: again.generations == before, message="a has what it had")

        assert bench.rows(_GAPS) == []
        assert bench.scalar(_AWAY_SINCE) is None
        assert metrics.BUCKET_ALARMS._value.get() == alarms + 2, "once for each"
        [away, back] = noted
        assert settlements == 1
        assert back == {"a": None}
        assert [*away] == ["a"]
        assert 2.0 <= (away["a"] or 0.0) < 30.0
        told = [line for line in lines if line["event"] == "owner of a bucket is disconnected"]
        assert [(one["consumer"], one["subscription"], one["topic_id"]) for one in told] == [
            ("a", "billing", bench.topic_id)
        ] * 2
        assert {(one["segment_id"], one["bucket"]) for one in told} == {
            (segment, f"{start:04x}-{start + 32767:04x}") for segment, start in before
        }
        assert all(one["away_seconds"] >= 3.0 for one in told)
        again.session.close()
        second.session.close()
        servers.close()


def test_a_bucket_that_is_asked_for_while_its_owner_is_away_says_both(bench: Bench, servers: Servers) -> None:
    holder = Session(servers, TOPIC, "billing", "a", on_change=lambda: None)
    wait_until(lambda: owned(holder) == EVERYTHING, message="all is a's")
    second = Session(servers, TOPIC, "billing", "b", on_change=lambda: None)
    holder.close(leave=False)

    wait_until(
        lambda: (
            bench.rows(
                "SELECT holder, successor, reason FROM inspect.bucket_gaps WHERE successor IS NOT NULL"
            )
            == [("a", "b", "being handed over: owner is not connected")] * 2
        ),
        message="both are told",
    )
    wait_until(lambda: owned(second) == EVERYTHING, message="its grace period is as long as ever")
    second.close()


def test_a_new_leader_keeps_since_when_a_consumer_is_away(bench: Bench) -> None:
    """To it everybody is just disconnected, and who is back is so at once."""
    with serving_worker(bench.url, consumer_grace_seconds=60.0) as worker:
        servers = client_of(worker.address)
        first, second = Reader(servers, "a"), Reader(servers, "b")
        share(first, second)
        first.session.close(leave=False)
        second.session.close(leave=False)
        since = wait_until(lambda: bench.scalar(_AWAY_SINCE), message="it is noted")
        servers.close()
    with serving_worker(bench.url, consumer_grace_seconds=60.0) as worker:
        servers = client_of(worker.address)
        again = Reader(servers, "b")
        wait_until(lambda: len(again.owned) == 2, message="b is back")
        wait_until(
            lambda: bench.rows("SELECT DISTINCT holder FROM inspect.bucket_gaps") == [("a",)],
            message="b is here",
        )

        assert bench.scalar(_AWAY_SINCE) == since
        again.session.close()
        servers.close()


def test_a_bucket_that_nobody_was_given_shows_since_when(bench: Bench) -> None:
    """As where no worker leads the topic: rows of consumers are there, and nobody acts."""
    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name, registered_at)"
        " VALUES (:topic_id, 'billing', 'a', clock_timestamp() - interval '90 s')",
        topic_id=bench.topic_id,
    )
    bench.execute(
        "UPDATE cleave.segment SET created_at = created_at - interval '1 hour' WHERE segment_id = 0"
    )

    found = bench.rows(
        "SELECT segment_id, holder, reason, gap_seconds >= 90 FROM inspect.bucket_gaps ORDER BY segment_id, bucket"
    )

    waiting = "not assigned yet"
    assert found == [(0, None, waiting, True)] * 2 + [(1, None, waiting, False)] * 2
