"""The journal: claims by term and the database's clock, steps a stale runner cannot record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.domain.errors import FencedOut, OperationNotFound, Unsupported
from controller.domain.operation import Operation, OperationState
from controller.domain.operation_steps import Step
from controller.domain.reshape import plan_split
from controller.store.journal import claim_check, claims, operations, topic_intents
from controller.store.postgres.clock import database_now
from controller.store.shards import Shards
from tests.support.store_driver import CALL_TIMEOUT_SECONDS, StoreDriver, request


def _operations(driver: StoreDriver, count: int) -> list[Operation]:
    return [driver.intend_create(f"topic://t/n/{n}").operation for n in range(count)]


def _claim_any(
    driver: StoreDriver, runner: str, *, limit: int = 10, shards: Shards | None = None
) -> list[int]:
    """Ids of what is due, one claim each, until there is none."""
    found: list[int] = []
    while len(found) < limit:
        claimed = driver.do(
            claims.claim,
            runner=runner,
            lease_seconds=60.0,
            call_timeout_seconds=CALL_TIMEOUT_SECONDS,
            shards=shards,
        )
        if not claimed:
            break
        found += [one.operation.operation_id for one in claimed]
    return found


def _expire(driver: StoreDriver, operation: Operation, *, seconds_ago: float) -> None:
    driver.sql(
        """UPDATE cleave.operation SET claim_expires_at = clock_timestamp() - make_interval(secs => :ago)
            WHERE operation_id = :id""",
        ago=seconds_ago,
        id=operation.operation_id,
    )


def test_each_live_operation_is_claimed_once(driver: StoreDriver) -> None:
    made = [operation.operation_id for operation in _operations(driver, 3)]

    first = _claim_any(driver, "a", limit=2)
    rest = _claim_any(driver, "b")

    assert first + rest == made
    assert _claim_any(driver, "c") == []


def test_rows_somebody_is_looking_at_are_skipped(driver: StoreDriver) -> None:
    made = [operation.operation_id for operation in _operations(driver, 2)]
    with driver.store.transaction() as tx:
        [held] = claims.claim(tx, runner="a", lease_seconds=60, call_timeout_seconds=1)

        assert held.operation.operation_id == made[0]
        assert _claim_any(driver, "b") == made[1:]


def test_shards_share_the_operations_out(driver: StoreDriver) -> None:
    made = _operations(driver, 6)
    shards = [Shards.of(3, [0]), Shards.of(3, [1, 2])]

    claimed = [_claim_any(driver, f"r{n}", shards=shard) for n, shard in enumerate(shards)]

    assert claimed == [[o.operation_id for o in made if shard.owns(o.topic_id)] for shard in shards]
    assert all(claimed)


def test_a_kind_this_program_does_not_know_is_left_to_a_newer_one(driver: StoreDriver) -> None:
    """Parked, neither run nor aborted."""
    [operation] = _operations(driver, 1)
    driver.sql("ALTER TABLE cleave.operation DROP CONSTRAINT operation_kind_known")
    driver.sql("UPDATE cleave.operation SET kind = 'of a newer program'")

    assert _claim_any(driver, "a") == []
    assert driver.do(claims.next_due, call_timeout_seconds=1.0) is None
    assert driver.sql(
        "SELECT state FROM cleave.operation WHERE operation_id = :id", id=operation.operation_id
    ) == [("intended",)]
    with pytest.raises(Unsupported, match="has kind of a newer program, which a newer version wrote"):
        driver.do(operations.get_operation, operation.operation_id)


def test_a_takeover_waits_for_the_expiry_and_the_longest_call(driver: StoreDriver) -> None:
    [operation] = _operations(driver, 1)
    first = driver.claim(operation, "a")
    _expire(driver, operation, seconds_ago=CALL_TIMEOUT_SECONDS / 2)
    assert _claim_any(driver, "b") == []
    _expire(driver, operation, seconds_ago=CALL_TIMEOUT_SECONDS * 2)

    second = driver.claim(operation, "b")

    assert second.claim_term == first.claim_term + 1


def _renew(driver: StoreDriver, operation: Operation, runner: str) -> None:
    if not driver.do(claims.renew, [operation], runner, 60.0):
        raise claim_check.fenced_out(operation, runner)


STALE_WRITES: list[Callable[[StoreDriver, Operation], object]] = [
    lambda driver, operation: driver.step(operation, "a"),
    lambda driver, operation: _renew(driver, operation, "a"),
    lambda driver, operation: driver.do(claims.record_failure, operation, "a", "x", 1.0),
]


@pytest.mark.parametrize("write", STALE_WRITES, ids=["step", "renew", "failure"])
@pytest.mark.parametrize("lost_by", ["expiry", "takeover"])
def test_a_stale_runner_writes_nothing(
    driver: StoreDriver, write: Callable[[StoreDriver, Operation], object], lost_by: str
) -> None:
    [operation] = _operations(driver, 1)
    stale = driver.claim(operation, "a")
    _expire(driver, operation, seconds_ago=CALL_TIMEOUT_SECONDS * 2)
    if lost_by == "takeover":
        driver.claim(operation, "a")  # even under its own name
    before = driver.sql("SELECT * FROM cleave.operation")

    with pytest.raises(FencedOut, match=f"claim term {stale.claim_term}"):
        write(driver, stale)
    driver.do(claims.release, [stale], "a")

    assert driver.sql("SELECT * FROM cleave.operation") == before
    assert driver.sql("SELECT count(*) FROM cleave.operation_step") == [(0,)]


def test_an_operation_is_held_by_its_runner_in_the_state_in_which_it_was_seen(driver: StoreDriver) -> None:
    [operation] = _operations(driver, 1)
    claimed = driver.claim(operation, "a")

    def held(seen: Operation, runner: str) -> bool:
        return driver.do(claim_check.still_held, [seen], runner) == {seen.operation_id}

    assert held(claimed, "a")
    assert not held(claimed, "b")
    assert not held(replace(claimed, claim_term=claimed.claim_term - 1), "a")
    assert not held(replace(claimed, state=OperationState.PREPARED), "a")
    _expire(driver, operation, seconds_ago=0.0)
    assert not held(claimed, "a")


def test_a_step_already_recorded_cannot_be_recorded_again(driver: StoreDriver) -> None:
    """The answer to a commit may be lost; whoever repeats the step from memory is told."""
    [operation] = _operations(driver, 1)
    claimed = driver.claim(operation)
    moved = driver.step(claimed)
    assert moved.state is OperationState.PREPARED

    with pytest.raises(FencedOut, match="in state intended"):
        driver.step(claimed)


def test_renewing_extends_and_never_shortens(driver: StoreDriver) -> None:
    [operation] = _operations(driver, 1)
    claimed = driver.claim(operation)
    [(before,)] = driver.sql("SELECT claim_expires_at FROM cleave.operation")
    assert driver.do(claims.renew, [claimed], "runner-1", 0.1) == {operation.operation_id}
    assert driver.sql("SELECT claim_expires_at FROM cleave.operation") == [(before,)]

    driver.do(claims.renew, [claimed], "runner-1", 3600.0)

    [(after,)] = driver.sql("SELECT claim_expires_at FROM cleave.operation")
    assert after > before + timedelta(minutes=50)


def test_released_is_free_at_once_and_failed_is_free_after_the_delay(driver: StoreDriver) -> None:
    [operation] = _operations(driver, 1)
    driver.do(claims.release, [driver.claim(operation, "a")], "a")
    again = driver.claim(operation, "b")
    driver.do(claims.record_failure, again, "b", "the broker said no", 3600.0)

    assert _claim_any(driver, "c") == []
    assert driver.sql("SELECT attempts, last_error, claimed_by FROM cleave.operation") == [
        (1, "the broker said no", None)
    ]
    due = driver.do(claims.next_due, call_timeout_seconds=1.0)
    assert due is not None
    assert due > datetime.now(UTC) + timedelta(minutes=50)


def test_the_next_due_instant_counts_claims_of_the_dead(driver: StoreDriver) -> None:
    assert driver.do(claims.next_due, call_timeout_seconds=1.0) is None
    [operation] = _operations(driver, 1)
    due_now = driver.do(claims.next_due, call_timeout_seconds=1.0)
    assert due_now is not None
    assert due_now <= driver.do(database_now)

    driver.claim(operation)

    [(expiry,)] = driver.sql("SELECT claim_expires_at FROM cleave.operation")
    assert driver.do(claims.next_due, call_timeout_seconds=5.0) == expiry + timedelta(seconds=5)


def test_progress_forgets_earlier_failures_and_the_journal_keeps_each_step(driver: StoreDriver) -> None:
    [operation] = _operations(driver, 1)
    driver.do(claims.record_failure, driver.claim(operation), "runner-1", "once", 0.0)
    done = driver.run(operation)

    assert (done.state, done.attempts) == (OperationState.DONE, 0)
    assert driver.sql("SELECT sequence, step, runner, claim_term FROM cleave.operation_step ORDER BY 1") == [
        (1, Step.CREATE_CHILDREN, "runner-1", 2),
        (2, Step.COMMIT, "runner-1", 2),
        (3, Step.FINISH, "runner-1", 2),
    ]
    assert driver.sql("SELECT claimed_by, finished_at IS NOT NULL FROM cleave.operation") == [(None, True)]


def test_a_runner_observes_the_database_clock_and_older_operations_only(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    older = driver.intend(topic_id, lambda layout: plan_split(layout, 0))
    younger = driver.intend(topic_id, lambda layout: plan_split(layout, 1))

    assert driver.observe(older).other_live_operations == 0
    observed = driver.observe(younger)
    assert (observed.other_live_operations, observed.abort_requested) == (1, False)

    driver.do(topic_intents.intend_delete, topic_id, request())
    assert driver.observe(older).abort_requested


def test_operations_are_found_by_id_and_key(driver: StoreDriver) -> None:
    made = _operations(driver, 3)
    driver.run(made[0])

    assert driver.do(operations.get_operation, made[1].operation_id) == made[1]
    assert driver.do(operations.find_by_request_key, made[1].request_key) == made[1]
    assert driver.do(operations.find_by_request_key, "unknown") is None
    with pytest.raises(OperationNotFound, match="operation 404"):
        driver.do(operations.get_operation, 404)
    assert (
        driver.do(operations.read_operations, [made[2].operation_id, made[1].operation_id, 404]) == made[1:]
    )
