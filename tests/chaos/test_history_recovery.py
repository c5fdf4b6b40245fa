"""A run of the aggregation killed at any point: what was merged is in the history, once; what was not, is not.

The next run finishes it, or the maintenance does; the next one may be killed as well.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.domain.errors import StoreUnavailable
from controller.services.load_aggregation import publish_left_over
from controller.store.load import records as loads
from tests.chaos.strikes import start
from tests.support.aggregation import END_MS, MINUTE_MS, Run, loading
from tests.support.bench import Bench

POINTS = (
    "compute:1:before",
    "compute:1:after",
    "note:1:before",
    "note:1:after",
    "merge:1:before",
    "merge:1:after",
    "publish:1:before",
    "move:1:before",
    "move:1:after",
    "move:2:before",
    "move:2:after",
    "publish:1:after",
    "discard:1:before",
    "discard:1:after",
)
"""As a run passes by them; its merge is committed before the publishing begins."""
FAST_POINTS = ("merge:1:after", "publish:1:before", "move:2:before")
WHOLE = [(0, 100.0), (1, 101.0)]
MERGED_FROM = POINTS.index("publish:1:before")


@pytest.fixture
def run(database: str, tmp_path: Path) -> Iterator[Run]:
    """Two busy segments; the loader logs in as itself."""
    bench = Bench(database)
    bench.topic_with(segments=2, subscriptions=())
    with loading(bench) as store:
        run = Run(bench, store, tmp_path, bench.topic_id)
        for segment_id, rate in WHOLE:
            for end in range(0, 181, 60):  # a file a minute, of a counter that goes on
                counts = ((at, round(rate * (at + 70))) for at in range(end - 70, end + 1, 10))
                run.land(*counts, segment_id=segment_id)
        yield run
    bench.close()


def killed_at(run: Run, point: str, *, minutes: int = 0) -> list[str]:
    """A run in a process of its own; the points it came by where it was not struck at the given one."""
    aggregator = start(
        "aggregator",
        url=run.bench.url,
        loader_url=run.store.address.uri,
        directory=str(run.directory),
        topic_id=run.topic_id,
        run_id=f"run-{minutes}",
        minutes=minutes,
        at=point,
    )
    answer, _ = aggregator.communicate()
    assert aggregator.returncode == (-signal.SIGKILL if point else 0)
    return [] if point else list(json.loads(answer.splitlines()[-1]))


def kept(run: Run, minutes: int = 0) -> list[tuple[int, float]]:
    """The window's history: segment and rate."""
    end_ms = END_MS + minutes * MINUTE_MS
    return sorted(
        (row["segment_id"], row["msg_rate_in"]) for row in run.history.read(end_ms, end_ms).to_pylist()
    )


def scratch_of(run: Run) -> list[str]:
    """Names of the scratch directories there are."""
    return [path.name for path in (run.directory / "history" / "_runs").glob("*")]


@pytest.mark.chaos
def test_the_points_are_those_a_run_passes_by(run: Run) -> None:
    assert tuple(killed_at(run, "")) == POINTS
    assert (kept(run), scratch_of(run)) == (WHOLE, [])


@pytest.mark.integration
@pytest.mark.parametrize("point", FAST_POINTS)
def test_fast_subset_the_next_run_finishes_the_history_of_one_that_was_killed(point: str, run: Run) -> None:
    check_killed(run, point)


@pytest.mark.chaos
@pytest.mark.parametrize("point", POINTS)
def test_the_next_run_finishes_the_history_of_one_that_was_killed(point: str, run: Run) -> None:
    check_killed(run, point)


def check_killed(run: Run, point: str) -> None:
    """Killed there; the next window's run finds what it left."""
    killed_at(run, point)
    is_merged = run.bench.scalar("SELECT count(*) FROM cleave.load_run") == 1
    assert is_merged == (POINTS.index(point) >= MERGED_FROM)

    assert run.aggregate(minutes=1).applied

    assert kept(run) == (WHOLE if is_merged else [])
    assert kept(run, minutes=1) == WHOLE
    assert len(scratch_of(run)) == (0 if is_merged else 1), "what nobody needs waits for the sweep"


@pytest.mark.chaos
def test_a_run_killed_while_it_finishes_anothers_history_leaves_it_to_the_one_after(run: Run) -> None:
    killed_at(run, "publish:1:before")
    killed_at(run, "move:1:after", minutes=1)
    assert len(kept(run)) == 1

    assert run.aggregate(minutes=2).applied

    assert [kept(run, minutes) for minutes in (0, 1, 2)] == [WHOLE, [], WHOLE]
    assert scratch_of(run) == []


@pytest.mark.chaos
def test_a_retry_under_the_same_id_publishes_what_its_first_attempt_merged(run: Run) -> None:
    killed_at(run, "move:1:before")

    assert not run.aggregate("run-0").applied

    assert kept(run) == WHOLE
    assert scratch_of(run) == []


@pytest.mark.integration
def test_history_whose_commit_was_not_heard_of_is_published_if_it_was_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = loads.stage_and_merge

    def merge_and_cut(tx: object, *arguments: object) -> object:
        merge(tx, *arguments)  # type: ignore[arg-type]
        tx.commit()  # type: ignore[attr-defined]
        raise StoreUnavailable("the connection was lost")

    monkeypatch.setattr(loads, "stage_and_merge", merge_and_cut)
    with pytest.raises(StoreUnavailable):
        run.aggregate("lost")
    monkeypatch.undo()
    assert kept(run) == []

    assert publish_left_over(run.store, run.history) == ("lost",)

    assert kept(run) == WHOLE
    assert publish_left_over(run.store, run.history) == ()
