"""The worker as a real process: what wakes it, what it takes over, how it shares and how it leaves."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sqlalchemy import text

from controller.domain.operation import OperationState
from controller.domain.policy import PolicyOverride
from controller.services import segment_admin
from controller.services.key_sampler import LEAST_MESSAGES
from controller.store.postgres import inspection
from controller.store.topics import consumers, policies
from tests.integration.conftest import StartWorker, held_by
from tests.support.bench import Bench
from tests.support.cleave_process import cleave_process
from tests.support.waiting import wait_until

NEVER = 3600
"""A sweep this rare cannot be what made a test pass: only notifications and due instants can."""


def register(bench: Bench, *names: str) -> None:
    with bench.store.transaction() as tx:
        for name in names:
            consumers.register(tx, bench.topic_id, "billing", name)


def active(bench: Bench) -> int:
    return len(bench.layout.active)


def set_policy(bench: Bench, **parameters: object) -> None:
    """These parameters of the topic; a consumer that has no segment splits one, however slow, rather than share its buckets."""
    parameters = {"split_vs_rebucket_min_msg_rate_in": 0, **parameters}
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride.from_document(parameters))


def write_load(bench: Bench, segment_id: int, rate: float) -> None:
    with bench.store.transaction() as tx:
        tx.execute(
            text(
                "INSERT INTO cleave.load_source VALUES ('test', clock_timestamp()) ON CONFLICT (source) DO UPDATE SET observed_at = clock_timestamp()"
            )
        )
        tx.execute(
            text("INSERT INTO cleave.segment_load VALUES (:t, :s, :r, 0, 0, 0, 'test', clock_timestamp())"),
            {"t": bench.topic_id, "s": segment_id, "r": rate},
        )


def test_a_consumer_too_many_gets_a_segment_without_any_sweep(
    bench: Bench, start_worker: StartWorker
) -> None:
    bench.topic_with()
    set_policy(bench)
    start_worker("w1", worker_sweep_seconds=NEVER)

    register(bench, "a")
    register(bench, "b")

    wait_until(lambda: active(bench) == 2, message="the topic has a segment for each consumer")
    with bench.store.transaction() as tx:
        rows = inspection.rows(tx, "SELECT * FROM inspect.operations WHERE kind = 'split'")
    assert [(row["origin"], row["reason"]) for row in rows] == [("auto", "consumer-count")]
    with bench.store.transaction() as tx:
        decided = inspection.rows(tx, "SELECT * FROM inspect.decisions WHERE cardinality(operations) > 0")
    assert [row["operations"] for row in decided] == [[rows[0]["operation_id"]]]


def test_what_a_cooldown_held_back_happens_when_it_ends(bench: Bench, start_worker: StartWorker) -> None:
    bench.topic_with()
    set_policy(bench, split_cooldown_seconds=1)
    start_worker("w1", worker_sweep_seconds=NEVER)

    register(bench, "a", "b", "c")

    wait_until(lambda: active(bench) == 3, message="the second split follows at the end of the cooldown")


def test_a_consumer_that_leaves_is_noticed(bench: Bench, start_worker: StartWorker) -> None:
    """Nothing may be split for somebody who left while the cooldown ran."""
    bench.topic_with()
    set_policy(bench, split_cooldown_seconds=3600)
    start_worker("w1", worker_sweep_seconds=NEVER)
    register(bench, "a", "b", "c")
    wait_until(lambda: active(bench) == 2)

    def waits_for_cooldown() -> bool:
        with bench.store.transaction() as tx:
            found = inspection.rows(tx, "SELECT reason FROM inspect.why_not WHERE lane = 'consumer'")
        return any(row["reason"] == "split-cooldown" for row in found)

    wait_until(waits_for_cooldown, message="the third consumer waits for the cooldown")
    with bench.store.transaction() as tx:
        consumers.unregister(tx, bench.topic_id, "billing", "c")
    wait_until(lambda: not waits_for_cooldown(), message="the refusal is taken back")
    assert active(bench) == 2


def test_the_load_lane_is_the_workers_by_setting(bench: Bench, start_worker: StartWorker) -> None:
    bench.topic_with()
    start_worker("w1", worker_sweep_seconds=NEVER, worker_load_lane="true")

    write_load(bench, 0, 20_000.0)

    wait_until(lambda: active(bench) == 2, message="the hot segment was split")


def test_without_the_setting_load_is_left_to_the_passes(bench: Bench, start_worker: StartWorker) -> None:
    bench.topic_with()
    start_worker("w1", worker_sweep_seconds=NEVER)
    write_load(bench, 0, 20_000.0)

    register(bench, "a")  # makes the worker evaluate, so that its silence means something

    def evaluated() -> bool:
        with bench.store.transaction() as tx:
            return bool(
                tx.execute(
                    text("SELECT consumer_version = input_version FROM cleave.evaluation")
                ).scalar_one()
            )

    wait_until(evaluated)
    assert active(bench) == 1


def test_an_operation_that_anyone_intends_is_run(bench: Bench, start_worker: StartWorker) -> None:
    bench.topic_with()
    start_worker("w1", worker_sweep_seconds=NEVER)

    operation_id = bench.intend(segment_admin.splitting(0, parts=4)).operation.operation_id

    wait_until(lambda: bench.operation(operation_id).state is OperationState.DONE)
    assert active(bench) == 4


def test_work_that_waited_for_a_worker_is_done_when_one_comes(
    bench: Bench, start_worker: StartWorker
) -> None:
    bench.topic_with()
    register(bench, "a", "b")
    operation_id = bench.intend(segment_admin.splitting(0)).operation.operation_id

    start_worker("w1", worker_sweep_seconds=NEVER)

    wait_until(lambda: bench.operation(operation_id).state is OperationState.DONE)


def test_two_workers_share_the_shards_and_a_killed_ones_topics_move(
    bench: Bench, start_worker: StartWorker
) -> None:
    bench.topic_with()
    set_policy(bench)
    lease_seconds = {"worker_lease_seconds": 2, "worker_sweep_seconds": NEVER}
    workers = {name: start_worker(name, **lease_seconds) for name in ("w1", "w2")}
    wait_until(
        lambda: len(held_by(bench, "w1")) == len(held_by(bench, "w2")) == 8, message="half the shards each"
    )

    holder = next(name for name in workers if f"shard/{bench.topic_id % 16}" in held_by(bench, name))
    workers[holder].kill()
    register(bench, "a", "b")

    wait_until(lambda: active(bench) == 2, message="the other worker has the dead one's topics")
    survivor = next(name for name in workers if name != holder)
    wait_until(lambda: len(held_by(bench, survivor)) == 16)


def test_a_paused_worker_that_wakes_writes_nothing_for_shards_it_lost(
    bench: Bench, start_worker: StartWorker
) -> None:
    bench.topic_with()
    set_policy(bench)
    settings = {"worker_lease_seconds": 2, "worker_sweep_seconds": NEVER}
    paused = start_worker("w1", **settings)
    shard = f"shard/{bench.topic_id % 16}"
    os.kill(paused.pid, signal.SIGSTOP)
    start_worker("w2", **settings)
    wait_until(lambda: shard in held_by(bench, "w2"), message="the shard has moved")

    register(bench, "a", "b")
    wait_until(lambda: active(bench) == 2)
    os.kill(paused.pid, signal.SIGCONT)
    wait_until(lambda: held_by(bench, "w1"), message="the sleeper is a worker again, with a share of its own")

    with bench.store.transaction() as tx:
        rows = inspection.rows(tx, "SELECT actor FROM inspect.operations WHERE kind = 'split'")
    assert [row["actor"] for row in rows] == ["worker w2"]


def test_a_second_worker_of_a_name_says_so_and_ends(
    bench: Bench, start_worker: StartWorker, database: str, tmp_path: Path
) -> None:
    bench.topic_with()
    first = start_worker("w1", worker_lease_seconds=3)
    log = tmp_path / "second.log"
    second = cleave_process("worker", "--name", "w1", log=log, database_url=database, worker_lease_seconds=3)
    second.start()

    wait_until(lambda: not second.running, message="the second has left")

    assert second.exit_code == 2
    said = "cleave: another worker runs under the name w1; give each worker a unique name"
    assert [line for line in log.read_text().splitlines() if line.startswith("cleave:")] == [said]
    assert first.running
    assert len(held_by(bench, "w1")) == 16


def test_a_killed_worker_is_followed_by_one_of_its_name(bench: Bench, start_worker: StartWorker) -> None:
    """As a container that is restarted: it waits for the dead one's lease instead of ending."""
    bench.topic_with()
    start_worker("w1", worker_lease_seconds=3).kill()
    incarnation = "SELECT incarnation FROM inspect.leases WHERE name = 'worker/w1'"
    dead = bench.scalar(incarnation)

    restarted = start_worker("w1", worker_lease_seconds=3)

    wait_until(lambda: bench.scalar(incarnation) != dead and len(held_by(bench, "w1")) == 16)
    assert restarted.running


def test_sigterm_ends_it_and_gives_back_its_leases(bench: Bench, start_worker: StartWorker) -> None:
    bench.topic_with()
    worker = start_worker("w1", worker_lease_seconds=600, worker_sweep_seconds=NEVER)

    os.kill(worker.pid, signal.SIGTERM)

    wait_until(lambda: not worker.running, message="the worker has left")
    assert held_by(bench, "w1") == set()


def test_it_samples_the_keys_of_what_is_near_its_capacity(bench: Bench, start_worker: StartWorker) -> None:
    bench.topic_with()
    set_policy(bench, profile="adaptive")
    bench.publish(0, LEAST_MESSAGES)
    write_load(bench, 0, 9_000.0)

    start_worker("w1", worker_sweep_seconds=NEVER)

    def sampled() -> list[tuple[object, ...]]:
        return bench.rows("SELECT segment_id, share, messages FROM inspect.key_sketches")

    assert wait_until(sampled, message="a sketch of the segment") == [(0, 1, LEAST_MESSAGES)]
