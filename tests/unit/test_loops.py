"""Every loop of a long-lived thread is run by `repeating`, so that none ends with an unexpected error."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = (
    "controller/services",
    "controller/bundles",
    "controller/dataplane",
    "controller/commands",
    "controller/pages",
    "controller/tasks",
    "controller/web",
)
RUN_OTHERWISE = {
    (
        "controller/dataplane/pulsar/log_client.py",
        "_check_readers",
    ): "each reader's error is caught: it may not delay the others",
    ("controller/commands/live.py", "_show"): "a person looks at it, and begins it again",
    (
        "controller/services/operation_runner/claim_and_run.py",
        "run_due",
    ): "it ends when there is nothing to do",
    (
        "controller/services/worker/work_loop.py",
        "_run_due_operations",
    ): "a thread of the pool, begun again by the loop",
    ("controller/services/worker/worker.py", "_take_shards"): "an unexpected error is caught there",
    (
        "controller/services/collection/consumer_watch.py",
        "round",
    ): "one round, over when every topic had its turn",
    (
        "controller/services/gate_keeper.py",
        "_open_what_may_open",
    ): "one round, over when every gate had its turn",
    ("controller/services/log_trimmer.py", "trim"): "one round, bounded by its time",
    ("controller/services/deletion_sweeper.py", "sweep"): "one round, bounded by its budget",
    (
        "controller/dataplane/pulsar/batch_sender.py",
        "_await",
    ): "a call waits for its results until its deadline",
}
"""Loops that ask whether to stop, and why each goes on, or ends, by itself."""


def loops_that_ask_whether_to_stop() -> Iterator[tuple[str, str]]:
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef) and any(
                    map(_asks_whether_to_stop, ast.walk(function))
                ):
                    yield str(path.relative_to(ROOT)), function.name


def _asks_whether_to_stop(node: ast.AST) -> bool:
    if not isinstance(node, ast.While):
        return False
    asked = ast.unparse(node.test)
    return any(word in asked for word in (".is_set()", ".wait(", "should_stop", "is_stopping"))


def test_no_loop_of_a_thread_ends_with_an_error_that_nobody_expected() -> None:
    assert set(loops_that_ask_whether_to_stop()) == set(RUN_OTHERWISE)
