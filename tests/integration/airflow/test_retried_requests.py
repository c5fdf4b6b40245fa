"""A request is tried again after its attempt died: whatever that attempt reached, there is one operation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from controller import tasks
from controller.domain.errors import Conflict, Retryable
from controller.domain.operation import OperationState
from controller.store import leases
from tests.support.bench import TOPIC, Bench

KEY = "airflow/cleave_manual_split/manual__1/split/-1"


def task_arguments(url: str, key: str = KEY, **params: Any) -> dict[str, Any]:
    """Arguments of a task."""
    return {
        "dsn": url,
        "extras": {},
        "request_key": key,
        "actor": "ana",
        "params": {"topic": TOPIC, **params},
    }


def operation_count(bench: Bench, kind: str) -> int:
    """Operations of the kind, ended or not."""
    return int(bench.scalar("SELECT count(*) FROM cleave.operation WHERE kind = :kind", kind=kind))


def test_the_second_attempt_gets_the_firsts_operation(bench: Bench, controller_url: str) -> None:
    bench.create()

    first = tasks.perform("segments split", **task_arguments(controller_url, segment_id=0))
    second = tasks.perform("segments split", **task_arguments(controller_url, segment_id=0))

    assert (second["repeated"], second | {"repeated": False}) == (True, first)
    assert (first["state"], operation_count(bench, "split")) == ("done", 1)
    assert len(bench.layout.active) == 2


def test_every_kind_of_request_may_be_repeated_after_it_was_done(bench: Bench, controller_url: str) -> None:
    bench.create(2)
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("segments merge", "merge", {"first_id": 0, "second_id": 1}),
        ("segments rebucket", "rebucket", {"segment_id": 2, "bucket_count": 8}),
        ("topics delete", "delete", {"confirm": TOPIC}),
        ("topics create", "create", {"segments": 3}),
    ]

    for action, key, params in requests:
        first = tasks.perform(action, **task_arguments(controller_url, key, **params))
        again = tasks.perform(action, **task_arguments(controller_url, key, **params))
        assert again == first | {"repeated": True}
        assert first["state"] == "done"

    assert [operation_count(bench, kind) for kind in ("merge", "rebucket", "delete")] == [1, 1, 1]
    assert operation_count(bench, "create") == 2, "one by the bench"


def test_a_key_is_good_for_its_request_only(bench: Bench, controller_url: str) -> None:
    bench.create(2)
    tasks.perform("segments merge", **task_arguments(controller_url, first_id=0, second_id=1))

    with pytest.raises(Conflict, match="was used for merge"):
        tasks.perform("topics create", **task_arguments(controller_url))


DIES_AFTER_THE_COMMIT = """
import json, os, signal, sys
from controller import tasks
from controller.actions import context

context.run_to_its_end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
tasks.perform("segments split", **json.loads(sys.argv[1]))
"""


def test_a_process_killed_after_its_commit_leaves_work_that_the_retry_finishes(
    bench: Bench, controller_url: str
) -> None:
    bench.create()
    arguments = task_arguments(controller_url, segment_id=0)

    killed = subprocess.run(
        [sys.executable, "-c", DIES_AFTER_THE_COMMIT, json.dumps(arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
        timeout=60,
    )

    assert killed.returncode == -signal.SIGKILL
    [left] = bench.live_operations()
    assert left.state is OperationState.INTENDED

    document = tasks.perform("segments split", **arguments)

    assert (document["operation_id"], document["state"]) == (left.operation_id, "done")
    assert operation_count(bench, "split") == 1
    bench.check_laws()


def test_an_attempt_that_waits_too_long_is_worth_another_and_the_operation_stays(
    bench: Bench, controller_url: str
) -> None:
    bench.create()
    with bench.store.transaction() as tx:
        lease = leases.acquire(tx, "worker/asleep", "asleep", 3600.0)
        assert lease is not None

    with pytest.raises(Retryable, match="check that a worker runs"):
        tasks.perform("segments split", **task_arguments(controller_url, segment_id=0, timeout_seconds=0.2))

    [waiting] = bench.live_operations()
    bench.store.in_transaction(leases.resign, lease)
    assert (
        tasks.perform("segments split", **task_arguments(controller_url, segment_id=0))["operation_id"]
        == waiting.operation_id
    )
