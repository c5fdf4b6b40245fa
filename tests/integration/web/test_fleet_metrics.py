"""What `cleave metrics` serves, of a database with a history: every figure against what was done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import requests
from prometheus_client import REGISTRY, CollectorRegistry
from sqlalchemy import make_url, text

from controller.devstack.ports import free_port
from controller.domain.assignment import SegmentBucket
from controller.domain.bucket_ownership import OwnershipChanges
from controller.domain.hash_range import HashRange
from controller.domain.operation import Origin
from controller.services.segment_admin import merging, rebucketing, splitting
from controller.store import fleet_figures, leases, set_aside
from controller.store.postgres.engine import Store
from controller.store.set_aside import SetAside
from controller.store.topics import bucket_owners, held_topics, unmanaged_logs
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.unmanaged_logs import UnmanagedLog
from controller.web.fleet_metrics import FleetMetrics, described
from tests.support.bench import Bench
from tests.support.waiting import wait_until


@pytest.fixture
def registry(bench: Bench) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(FleetMetrics(bench.store))
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_a_topic_is_counted_by_pulsars_names(bench: Bench, registry: CollectorRegistry) -> None:
    bench.topic_with(segments=2)
    bench.reshape(splitting(0))
    name = bench.topic_name

    assert value(registry, "pulsar_scalable_topic_active_segments", topic=name) == 3
    assert value(registry, "pulsar_scalable_topic_auto_splits_total", topic=name) == 0, "by hand"
    assert value(registry, "cleave_layout_changes_total", kind="split", origin="manual") == 1
    assert value(registry, "cleave_topic_stale_segments", topic=name) == 3
    assert value(registry, "cleave_topic_hottest_ratio", topic=name) is None
    assert value(registry, "cleave_fleet_topics") == 1
    assert value(registry, "cleave_fleet_active_segments") == 3
    assert value(registry, "cleave_fleet_uncovered_ranges") == 0


def test_what_the_autoscaler_did_and_refused_is_counted_wherever_it_ran(
    bench: Bench, registry: CollectorRegistry
) -> None:
    """Ledger rows go with time; what they were counted as stays."""
    bench.topic_with()
    for planner, origin in (
        (splitting(0), Origin.AUTO),
        (splitting(1), Origin.AUTO),
        (merging(3, 4), Origin.AUTO),
        (rebucketing(5, 4), Origin.AUTO),
        (merging(6, 2), Origin.API),
    ):
        bench.finish(bench.intend(planner, replace(bench.request(), origin=origin)))
    refusals = (
        '[{"lane": "load", "reason": "at-max-segments", "segment_id": 0},'
        ' {"lane": "load", "reason": "at-max-segments", "segment_id": 1},'
        ' {"lane": "merge", "reason": "merge-depth", "segment_id": 0}, {"reason": "disabled"}]'
    )
    for _ in range(2):
        bench.execute(
            "INSERT INTO cleave.decision (topic_id, epoch, input_version, lanes, decided_by, code_version, decisions,"
            f" refusals, situation) SELECT topic_id, epoch, 1, '{{load}}', 't', 'v', '[]', '{refusals}', '{{}}'"
            " FROM cleave.topic"
        )
    bench.execute("DELETE FROM cleave.decision")
    name = bench.topic_name

    assert value(registry, "pulsar_scalable_topic_auto_splits_total", topic=name) == 2
    assert value(registry, "pulsar_scalable_topic_auto_merges_total", topic=name) == 1
    assert value(registry, "pulsar_scalable_topic_rebucket_rollovers_total", topic=name) == 1
    assert value(registry, "pulsar_scalable_topic_split_suppressed_max_segments_total", topic=name) == 2
    assert value(registry, "pulsar_scalable_topic_merge_suppressed_max_depth_total", topic=name) == 2
    assert value(registry, "cleave_suppressed_total", lane="load", reason="at-max-segments") == 2
    assert value(registry, "cleave_suppressed_total", lane="all", reason="disabled") == 2
    assert value(registry, "cleave_layout_changes_total", kind="merge", origin="api") == 1


def test_topics_that_nothing_acts_on_and_logs_that_are_kept_are_counted(
    bench: Bench, registry: CollectorRegistry
) -> None:
    def counts() -> list[float | None]:
        figures = ("held_topics", "unverified_topics", "unmanaged_logs")
        return [value(registry, f"cleave_fleet_{figure}") for figure in figures]

    bench.topic_with()
    assert counts() == [0, 0, 0]
    bench.execute("UPDATE cleave.topic SET verified_under = NULL, row_version = row_version + 1")
    assert counts() == [0, 1, 0]
    with bench.store.transaction() as tx:
        held_topics.hold(tx, bench.topic_id, "two logs share segment id 3")
        log = UnmanagedLog(bench.topic_id, "log-7", 7, "not of this journal", None, None)
        unmanaged_logs.note(tx, bench.plane.name, log)
    assert counts() == [1, 0, 1]
    with bench.store.transaction() as tx:  # found under an earlier topic of the name, a segment since
        used = UnmanagedLog(bench.topic_id, bench.log_of(0), 0, "not of this journal", None, None)
        unmanaged_logs.note(tx, bench.plane.name, used)
    assert counts() == [1, 0, 1]


def test_a_subject_is_left_out_also_between_the_rare_batches_that_skip_it(
    bench: Bench, registry: CollectorRegistry
) -> None:
    def skip() -> None:
        left_out = [SetAside("topic 7", "a bug", 7)]
        bench.store.in_transaction(set_aside.note, set_aside.Batch.MAINTENANCE, left_out)

    def in_half_an_hour() -> float | None:
        half_an_hour = "interval '30 minutes'"
        bench.execute(
            f"UPDATE cleave.set_aside SET first_at = first_at - {half_an_hour}, last_at = last_at - {half_an_hour}"
        )
        return value(registry, "cleave_fleet_set_aside")

    skip()
    assert value(registry, "cleave_fleet_set_aside") == 1
    assert in_half_an_hour() == 0, "no other batch has skipped it so far"
    skip()
    later = [in_half_an_hour() for _ in range(5)]
    assert (later[:3], later[4]) == ([1, 1, 1], 0)


def test_what_somebody_has_to_look_at_has_an_age(bench: Bench, registry: CollectorRegistry) -> None:
    """A withheld bucket, a segment that is not read to its end, an operation that nobody runs, a hole, and a lost shard."""
    bench.topic_with(segments=2)
    bench.reshape(splitting(0))
    for gauge in (
        "oldest_undrained",
        "oldest_withheld",
        "oldest_away",
        "oldest_operation",
        "load_age",
        "sample_age",
    ):
        assert value(registry, f"cleave_fleet_{gauge}_seconds") is None, gauge

    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name, incarnation) SELECT topic_id, 'billing', 'c', 'life-1' FROM cleave.topic"
    )
    bench.execute(
        "UPDATE cleave.segment SET sealed_at = sealed_at - interval '2 hours', created_at = created_at - interval '3 hours' WHERE segment_id = 0"
    )
    bench.execute(
        "INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation,"
        " release_asked_at) SELECT topic_id, 'billing', 1, 0, 65535, 'c', 1, clock_timestamp() - interval '5 minutes' FROM cleave.topic"
    )
    bench.intend(splitting(1))
    bench.execute(
        "UPDATE cleave.operation SET intended_at = intended_at - interval '10 minutes' WHERE finished_at IS NULL"
    )
    bench.execute(
        "INSERT INTO cleave.load_source SELECT name, clock_timestamp() - age * interval '1 minute' FROM (VALUES"
        " ('b:8080@20261120T010203Z', 600), ('b:8080@20261123T040506Z', 7), ('b:8080@20261123T040506Z~1700000000000', 90),"
        " ('embedded', 8), ('c:8080@20261123T040506Z', 9), ('d:8080@20261123T040506Z', 9)) AS v (name, age)"
    )
    bench.execute(
        "INSERT INTO cleave.segment_load (topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, source, modified_at)"
        " SELECT topic_id, segment_id, 1, 1, 1, 1, source, clock_timestamp() FROM cleave.topic, (VALUES (0, 'c:8080@20261123T040506Z'),"
        " (1, 'b:8080@20261123T040506Z~1700000000000'), (2, 'embedded')) AS v (segment_id, source)"
    )
    bench.execute(
        "INSERT INTO cleave.lease (name, holder, term, expires_at) VALUES ('shard/0', 'w', 5, clock_timestamp() - interval '1 second'), ('worker/w', 'w', 9, clock_timestamp() + interval '1 minute')"
    )

    assert value(registry, "cleave_fleet_undrained_segments") == 1
    assert 7200 <= (value(registry, "cleave_fleet_oldest_undrained_seconds") or 0) < 9000
    assert value(registry, "cleave_fleet_buckets_withheld") == 1
    assert 300 <= (value(registry, "cleave_fleet_oldest_withheld_seconds") or 0) < 2000
    assert value(registry, "cleave_fleet_live_operations") == 1
    assert value(registry, "cleave_fleet_stuck_operations") == 1
    assert 600 <= (value(registry, "cleave_fleet_oldest_operation_seconds") or 0) < 2400
    assert 420 <= (value(registry, "cleave_sample_source_silent_seconds", source="b:8080") or 0) < 460
    assert 480 <= (value(registry, "cleave_sample_source_silent_seconds", source="embedded") or 0) < 520
    for idle in ("c:8080", "d:8080"):  # the record of a sealed segment, and none
        assert value(registry, "cleave_sample_source_silent_seconds", source=idle) is None
    assert value(registry, "cleave_fleet_workers") == 1
    assert value(registry, "cleave_fleet_shards") == 1
    assert value(registry, "cleave_fleet_shards_without_worker") == 1
    assert value(registry, "cleave_fleet_lease_changes_total") == 5

    bench.execute(
        "INSERT INTO cleave.segment_drain (topic_id, subscription, segment_id) SELECT topic_id, 'billing', 0 FROM cleave.topic"
    )
    assert value(registry, "cleave_fleet_undrained_segments") == 0


def test_who_lets_nothing_go_and_what_is_drained_is_told_by_topic(
    bench: Bench, registry: CollectorRegistry
) -> None:
    """What PIP-486 wants to be seen: shared segments, withheld buckets, drains, and buckets that change hands."""
    bench.topic_with(segments=2)
    name = {"topic": bench.topic_name}
    for gauge in ("shared_segments", "buckets_withheld", "draining_segments"):
        assert value(registry, f"pulsar_scalable_topic_{gauge}", **name) == 0, gauge
    assert value(registry, "cleave_topic_oldest_withheld_seconds", **name) is None
    assert value(registry, "cleave_topic_still_drain_seconds", **name) is None
    assert value(registry, "cleave_topic_oldest_away_seconds", **name) is None
    assert value(registry, "cleave_topic_buckets_away", **name) == 0

    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name, incarnation) SELECT topic_id, 'billing', 'c', 'life-1' FROM cleave.topic"
    )
    bench.reshape(splitting(0))
    bench.execute(
        "UPDATE cleave.segment SET sealed_at = sealed_at - interval '50 minutes', created_at = created_at - interval '3 hours'"
        " WHERE segment_id = 0"
    )
    bench.execute(
        "INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation,"
        " release_asked_at) SELECT topic_id, 'billing', segment_id, bucket_start, bucket_start + 32767, consumer, 1, asked FROM cleave.topic,"
        " (VALUES (1, 0, 'c', NULL), (1, 32768, 'd', clock_timestamp() - interval '4 minutes'), (0, 0, 'c', NULL), (0, 32768, 'c', NULL))"
        " AS v (segment_id, bucket_start, consumer, asked)"
    )

    bench.execute(
        "UPDATE cleave.consumer SET disconnected_at = clock_timestamp() - interval '40 seconds' WHERE name = 'c'"
    )
    for whose, labels in (("fleet", {}), ("topic", name)):
        assert value(registry, f"cleave_{whose}_buckets_away", **labels) == 3
        assert 40 <= (value(registry, f"cleave_{whose}_oldest_away_seconds", **labels) or 0) < 600

    assert value(registry, "pulsar_scalable_topic_shared_segments", **name) == 1
    assert value(registry, "pulsar_scalable_topic_buckets_withheld", **name) == 1
    assert 240 <= (value(registry, "cleave_topic_oldest_withheld_seconds", **name) or 0) < 1000
    assert value(registry, "pulsar_scalable_topic_draining_segments", **name) == 1
    assert 3000 <= (value(registry, "cleave_topic_still_drain_seconds", **name) or 0) < 4000, (
        "nobody has counted"
    )


def test_buckets_that_change_hands_are_counted_by_topic(bench: Bench, registry: CollectorRegistry) -> None:
    topic_id = bench.topic_with(segments=2)
    key = SubscriptionKey(topic_id, "billing")
    whole = [SegmentBucket(segment_id, HashRange(0, 65535)) for segment_id in (0, 1)]
    for granted in ({whole[0]: "a", whole[1]: "a"}, {whole[1]: "b"}):
        with bench.store.transaction() as tx:
            generation, _ = bucket_owners.lock(tx, key)
            bucket_owners.write(
                tx,
                key,
                OwnershipChanges(
                    granted, release_requests={}, withdrawn_requests=frozenset(), ended=frozenset()
                ),
                generation,
            )
    with bench.store.transaction() as tx:  # nobody gets anything
        bucket_owners.write(
            tx,
            key,
            OwnershipChanges(
                {}, release_requests={whole[1]: "a"}, withdrawn_requests=frozenset(), ended=frozenset()
            ),
            2,
        )

    name = "pulsar_scalable_topic_bucket_reassignments_total"
    assert value(registry, name, topic=bench.topic_name) == 3


def test_a_shard_that_goes_from_hand_to_hand_has_a_number_of_its_own(
    bench: Bench, registry: CollectorRegistry
) -> None:
    for _ in range(3):
        with bench.store.transaction() as tx:
            lease = leases.acquire(tx, "shard/7", "w", 60.0)
            assert lease is not None
            leases.resign(tx, lease)
    bench.execute(
        "INSERT INTO cleave.lease (name, holder, term, expires_at) VALUES ('shard/8', 'w', 9, clock_timestamp() - interval '2 hours'),"
        " ('worker/w', 'w', 9, clock_timestamp() + interval '1 minute')"
    )
    [family] = [one for one in registry.collect() if one.name == "cleave_shard_lease_changes"]
    assert [(one.labels, one.value) for one in family.samples] == [({"shard": "7"}, 3.0)]


def test_acts_that_wait_for_a_person_are_counted_and_those_whose_time_is_nearly_over(
    bench: Bench, registry: CollectorRegistry
) -> None:
    bench.topic_with(segments=3)
    assert value(registry, "cleave_approvals_pending") == 0
    assert value(registry, "cleave_oldest_approval_seconds") is None
    bench.execute(
        "INSERT INTO cleave.approval (subject, subject_id, action, topic_id, epoch, parts, segments, kind, reason, proposed_by,"
        " default_answer, segment_ids, proposed_at, expires_at)"
        " SELECT 'operation', 1, 'split', topic_id, 0, 2, 2, 'split', 'hot', 'w', 'reject', ARRAY[segment_id],"
        " clock_timestamp() - asked, clock_timestamp() + left_over FROM cleave.topic, (VALUES"
        " (0, interval '70 minutes', interval '30 minutes'), (1, interval '80 minutes', interval '20 minutes'),"
        " (99, interval '9 hours', interval '1 minute')) AS v (segment_id, asked, left_over)"
    )
    assert value(registry, "cleave_approvals_pending") == 2, (
        "the segment of the third is gone: nobody can answer it"
    )
    assert 4800 <= (value(registry, "cleave_oldest_approval_seconds") or 0) < 5600
    assert value(registry, "cleave_approvals_ending") == 1


def test_how_long_operations_waited_and_took_is_told_wherever_they_ran(
    bench: Bench, registry: CollectorRegistry
) -> None:
    bench.topic_with()
    intent = bench.intend(splitting(0))
    bench.execute(
        "UPDATE cleave.operation SET intended_at = intended_at - interval '20 seconds' WHERE finished_at IS NULL"
    )
    bench.finish(intent)
    took = value(registry, "cleave_recent_operation_seconds", kind="split", quantile="1")
    waited = value(registry, "cleave_recent_operation_wait_seconds", quantile="1")
    step = value(registry, "cleave_recent_step_seconds", step="create-children", quantile="0.5")
    assert 20 <= (waited or 0) <= (took or 0) < 600
    assert 0 <= (step if step is not None else -1) < 60

    bench.execute("UPDATE cleave.operation SET finished_at = finished_at - interval '16 minutes'")
    assert value(registry, "cleave_recent_operation_seconds", kind="split", quantile="1") is None
    assert value(registry, "cleave_recent_operation_wait_seconds", quantile="1") is None


def test_load_that_somebody_else_had_written_is_counted(bench: Bench, registry: CollectorRegistry) -> None:
    assert value(registry, "cleave_recent_load_outrun") == 0
    bench.execute(
        "INSERT INTO cleave.load_run (run_id, window_end, engine, samples, segments, written, outrun, applied_at) SELECT run, clock_timestamp(),"
        " 'twin', 1, 1, 1, outrun, clock_timestamp() - age FROM (VALUES ('a', 2, interval '0'), ('b', 3, interval '1 minute'),"
        " ('c', 100, interval '1 hour')) AS v (run, outrun, age)"
    )
    assert value(registry, "cleave_recent_load_outrun") == 5


@pytest.mark.parametrize(
    "but",
    [
        "UPDATE cleave.subscription SET parents_block = false",
        "UPDATE cleave.subscription SET state = 'deleting'",
        "UPDATE cleave.consumer SET incarnation = ''",
        "DELETE FROM cleave.consumer",
    ],
)
def test_what_nobody_waits_for_is_not_undrained(bench: Bench, registry: CollectorRegistry, but: str) -> None:
    bench.topic_with(segments=2)
    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name, incarnation) SELECT topic_id, 'billing', 'c', 'life-1' FROM cleave.topic"
    )
    bench.reshape(splitting(0))
    assert value(registry, "cleave_fleet_undrained_segments") == 1
    bench.execute(but)
    assert value(registry, "cleave_fleet_undrained_segments") == 0


def test_a_shard_that_workers_no_longer_deal_over_is_forgotten_within_the_hour(
    bench: Bench, registry: CollectorRegistry
) -> None:
    bench.execute(
        "INSERT INTO cleave.lease (name, holder, term, expires_at) VALUES"
        " ('shard/0', 'w', 1, clock_timestamp() + interval '10 seconds'), ('shard/7', 'w', 3, clock_timestamp() - interval '2 hours')"
    )
    assert value(registry, "cleave_fleet_shards") == 1
    assert value(registry, "cleave_fleet_shards_without_worker") == 0


def test_more_topics_than_it_may_list_are_in_the_sums(bench: Bench) -> None:
    bench.topic_with(segments=2)
    registry = CollectorRegistry()
    registry.register(FleetMetrics(bench.store, most_topics=0))
    assert value(registry, "cleave_fleet_topics_left_out") == 1
    assert value(registry, "cleave_fleet_active_segments") == 2
    assert value(registry, "pulsar_scalable_topic_active_segments", topic=bench.topic_name) is None

    other = CollectorRegistry()
    other.register(FleetMetrics(bench.store, prefix="topic://other/"))
    assert value(other, "cleave_fleet_topics_left_out") == 1


def test_every_metric_is_described(bench: Bench, registry: CollectorRegistry) -> None:
    bench.topic_with()
    names = {name.removesuffix("_total") for name, *_ in described()}
    assert {family.name for family in registry.collect()} == names


def test_a_database_that_is_away_is_a_figure_too() -> None:
    nowhere = Store("postgresql://nobody@127.0.0.1:9/none", application_name="test", pool_size=1)
    assert [(one.name, one.samples[0].value) for one in FleetMetrics(nowhere).collect()] == [
        ("cleave_database_up", 0)
    ]


def test_a_database_that_is_stuck_is_told_as_one_that_is_away(
    bench: Bench, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Prometheus gives up the scrape, and says that nobody serves the figures."""
    monkeypatch.setattr(fleet_figures, "_STATEMENT_TIMEOUT", text("SET LOCAL statement_timeout = '200ms'"))
    with bench.store.transaction() as tx:
        tx.execute(text("LOCK TABLE cleave.lease IN ACCESS EXCLUSIVE MODE"))
        assert value(registry, "cleave_database_up") == 0
    assert value(registry, "cleave_database_up") == 1


@contextmanager
def served(url: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    arguments = [sys.executable, "-m", "controller.commands.cli", "metrics", "--port", str(port), *options]
    with subprocess.Popen(arguments, env={**os.environ, "CLEAVE_DATABASE_URL": url}) as process:
        try:
            yield process, f"http://127.0.0.1:{port}/metrics"
        finally:
            process.kill()


def test_it_is_served_to_whoever_may_only_look_and_ends_when_told(bench: Bench) -> None:
    bench.topic_with(segments=2)
    bench.execute("CREATE ROLE watcher LOGIN PASSWORD 'pw' IN ROLE cleave_inspector")
    url = make_url(bench.url).set(username="watcher", password="pw").render_as_string(hide_password=False)
    try:
        with served(url) as (process, address):

            def page() -> str | None:
                try:
                    return requests.get(address, timeout=30).text
                except requests.ConnectionError:
                    return None

            text = wait_until(page, message="it serves")
            assert text is not None
            assert "cleave_database_up 1.0" in text
            assert f'pulsar_scalable_topic_active_segments{{topic="{bench.topic_name}"}} 2.0' in text
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
    finally:
        bench.execute("DROP ROLE watcher")


def histogram(name: str, **labels: str) -> tuple[float, float]:
    """How many and their sum, of this process."""
    count, seconds = (REGISTRY.get_sample_value(f"{name}_{part}", labels) for part in ("count", "sum"))
    return count or 0.0, seconds or 0.0


def test_who_runs_an_operation_says_how_long_it_waited_and_took(bench: Bench) -> None:
    bench.topic_with()
    waited, took = (
        histogram("cleave_notification_lag_seconds"),
        histogram("cleave_operation_seconds", kind="split"),
    )
    intent = bench.intend(splitting(0))
    bench.execute(
        "UPDATE cleave.operation SET intended_at = intended_at - interval '20 seconds' WHERE finished_at IS NULL"
    )
    bench.finish(intent)

    for before, name, labels in (
        (waited, "cleave_notification_lag_seconds", {}),
        (took, "cleave_operation_seconds", {"kind": "split"}),
    ):
        count, seconds = histogram(name, **labels)
        assert count == before[0] + 1, name
        assert 20 <= seconds - before[1] < 600, name


def test_an_operation_taken_up_again_waited_for_nobody(bench: Bench) -> None:
    """Whoever had it before was told to stop, or died: that is no lag of a notification."""
    bench.topic_with()
    intent = bench.intend(splitting(0))
    bench.run_once(intent.operation.operation_id, should_stop=lambda: True)
    before = histogram("cleave_notification_lag_seconds")
    bench.finish(intent)
    assert histogram("cleave_notification_lag_seconds") == before


def test_the_time_of_an_operation_is_that_of_all_its_steps(bench: Bench) -> None:
    bench.topic_with()
    took = histogram("cleave_operation_seconds", kind="split")
    intent = bench.intend(splitting(0))
    bench.run_once(
        intent.operation.operation_id,
        checkpoint=lambda name: threading.Event().wait(0.3) if name == "commit:before" else None,
    )
    [(seconds,)] = bench.rows(
        "SELECT extract(epoch FROM finished_at - intended_at) FROM cleave.operation ORDER BY operation_id DESC LIMIT 1"
    )
    count, after = histogram("cleave_operation_seconds", kind="split")
    assert count == took[0] + 1
    assert after - took[1] == pytest.approx(float(seconds), abs=0.1)
