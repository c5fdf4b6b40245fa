"""What producers count of their keys becomes the sketches of their segments: over workers, files and the aggregation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import pytest

from controller.clock import to_datetime
from controller.domain.errors import InvalidInput, StoreUnavailable, TopicNotFound
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.key_count_limits import PRODUCER_MESSAGES, PRODUCERS, REQUEST_HASHES
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import plan_split
from controller.landing.file_names import tick_path
from controller.services import key_count_landing
from controller.services.key_count_landing import KeyCountLanding
from controller.services.load_aggregation.key_counts_of_run import MIN_COUNTED_SHARE
from controller.store.decisions.evaluation_inputs import load_evaluation_inputs
from controller.store.topics import policies
from tests.support.aggregation import END_MS, Run, adaptive_run
from tests.support.bench import TOPIC, Bench


@contextmanager
def database_at(seconds: float) -> Iterator[None]:
    """The database's clock, as landings read it, is this many seconds after END_MS."""
    instant = to_datetime(END_MS + round(1000 * seconds))
    with patch.object(key_count_landing, "database_now", lambda _: instant):
        yield


def landing_of(run: Run, worker: str = "w1") -> KeyCountLanding:
    """A landing of one worker."""
    return KeyCountLanding(run.bench.store, lambda: run.counts_area, worker=worker)


@pytest.fixture
def run(bench: Bench, tmp_path: Path) -> Iterator[Run]:
    """A live topic of two segments that is decided on by `adaptive`; the loader logs in as itself."""
    with adaptive_run(bench, tmp_path, segments=2) as run:
        yield run


def tell(
    run: Run, *told: tuple[str, list[tuple[int, int, int]]], worker: str = "w1", at: float = -10.0
) -> None:
    """These producers' counts, told to a worker that lands them at once."""
    landing = landing_of(run, worker)
    for producer, counts in told:
        landing.add(TOPIC, producer, counts)
    with database_at(at):
        assert landing.land() is not None


def stored(run: Run, per_second: int, *, minutes: int = 0) -> None:
    """Messages in both segments, sampled over the minute."""
    for segment_id in (0, 1):
        begin = 60 * minutes - 60
        run.land(
            *((at, 10**7 * (minutes + 1) + per_second * (at - begin)) for at in range(begin, begin + 61, 10)),
            segment_id=segment_id,
            source=f"minute-{minutes}",
        )


def situation(run: Run) -> EvaluationInput:
    capabilities = {run.bench.plane.name: run.bench.plane.capabilities}
    return run.bench.store.in_transaction(load_evaluation_inputs, [run.topic_id], capabilities)[run.topic_id]


def test_counts_of_several_producers_and_workers_add_up(run: Run) -> None:
    tell(run, ("a", [(0, 1, 300), (31, 1, 100)]), ("b", [(0, 1, 200)]))
    tell(run, ("a", [(0, 1, 50)]), at=-5.0)
    tell(run, ("c", [(65_535, 1, 60), (32, 64, 64)]), worker="w2")
    stored(run, 12)
    run.aggregate()

    now = situation(run)
    assert now.sketches == {0: (650.0, 32.0, 32.0, *[0.0] * 1021)}
    assert now.producers == 3  # two that told one worker, one that told another
    assert now.to_json() == EvaluationInput.from_json(now.to_json()).to_json()


def test_each_count_is_added_once(run: Run) -> None:
    tell(run, ("a", [(0, 1, 1_000)]))
    stored(run, 20)
    run.aggregate("first")
    run.aggregate("first")
    run.aggregate("of the same window")
    assert sum(situation(run).sketches[0]) == 1_000

    stored(run, 10, minutes=1)
    run.aggregate(minutes=1)
    assert sum(situation(run).sketches[0]) == pytest.approx(1_000, rel=0.3)  # it fades, and nothing is added
    assert run.bench.scalar("SELECT count(*) FROM staging.sketch_row") == 0


def test_counts_of_a_few_producers_only_do_not_tell_where_the_load_lies(run: Run) -> None:
    messages = round(10 * 60 * MIN_COUNTED_SHARE)
    tell(run, ("a", [(0, 1, messages - 1)]), ("b", [(40_000, 1, messages + 1)]))
    stored(run, 10)
    run.aggregate()

    assert situation(run).sketches.keys() == {1}


def test_topics_that_nobody_cuts_by_sketches_have_none(run: Run) -> None:
    run.bench.store.in_transaction(
        policies.set_topic, run.topic_id, PolicyOverride(profile="pip483"), actor="t"
    )
    tell(run, ("a", [(0, 1, 10_000)]))
    stored(run, 10)
    run.aggregate()

    assert run.bench.scalar("SELECT count(*) FROM cleave.segment_sketch") == 0


def test_counts_of_a_segment_that_was_divided_meanwhile_are_left_out(run: Run) -> None:
    tell(run, ("a", [(0, 1, 10_000), (40_000, 1, 10_000)]))
    stored(run, 10)
    run.bench.reshape(lambda layout, _: plan_split(layout, 0))
    run.aggregate()

    assert situation(run).sketches.keys() == {1}
    assert run.bench.rows("SELECT segment_id, counting FROM cleave.segment_producers") == [(1, 1)]


def test_a_producer_that_tells_no_more_counts_for_a_while(run: Run) -> None:
    tell(run, ("a", [(0, 1, 10_000)]))
    stored(run, 10)
    run.aggregate()
    assert situation(run).producers == 1

    run.bench.execute("UPDATE cleave.segment_producers SET counted_at = counted_at - interval '6 minutes'")
    assert situation(run).producers == 0


def test_counts_wait_for_the_clock_of_the_database(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: object) -> NoReturn:
        raise StoreUnavailable("the database is away")

    landing = landing_of(run)
    landing.add(TOPIC, "a", [(0, 1, 1)])
    with monkeypatch.context() as context:
        context.setattr(key_count_landing, "database_now", away)
        with pytest.raises(StoreUnavailable):
            landing.land()
    with database_at(0.0):
        path = landing.land()
    assert path == tick_path(END_MS, "w1")


def test_a_topic_that_is_not_there_is_refused(run: Run) -> None:
    landing = landing_of(run)

    with pytest.raises(TopicNotFound):
        landing.add("topic://t/n/none", "a", [(0, 1, 1)])
    assert landing.land() is None


def test_a_file_that_is_damaged_is_set_aside_and_the_rest_goes_on(run: Run, tmp_path: Path) -> None:
    tell(run, ("a", [(0, 1, 10_000)]))
    tell(run, ("b", [(40_000, 1, 10_000)]), worker="w2")
    [broken] = (tmp_path / "key-counts").rglob("*w2.parquet")
    broken.write_bytes(broken.read_bytes()[:-40] + b"x" * 40)
    stored(run, 10)
    result = run.aggregate()

    assert result.applied
    assert situation(run).sketches.keys() == {0}
    assert not broken.exists()


def test_counts_that_no_producer_can_have_are_refused_and_harm_nobody(run: Run) -> None:
    """One producer counts as many messages as it likes, in one request or in several; the other tells of what it sent."""
    landing = landing_of(run)
    with pytest.raises(
        InvalidInput,
        match=rf"liar counts {4_096 * (2**40 - 1)} messages to {TOPIC}, more than the {PRODUCER_MESSAGES} of one producer",
    ):
        landing.add(TOPIC, "liar", [(number, 1, 2**40 - 1) for number in range(4_096)])
    landing.add(TOPIC, "liar", [(40_000, 1, PRODUCER_MESSAGES)])
    with pytest.raises(InvalidInput, match=f"counts {PRODUCER_MESSAGES + 1} messages"):
        landing.add(TOPIC, "liar", [(40_000, 1, 1)])
    landing.add(TOPIC, "honest", [(0, 1, 600)])
    with database_at(-10.0):
        assert landing.land() is not None
    landing.add(TOPIC, "liar", [(40_000, 1, 1)])  # of the next interval
    stored(run, 10)
    run.aggregate()

    assert {key: sum(bins) for key, bins in situation(run).sketches.items()} == {0: 600.0, 1: 600.0}


def test_no_topic_has_more_producers_than_are_counted(run: Run) -> None:
    landing = landing_of(run)
    for number in range(PRODUCERS):
        landing.add(TOPIC, f"p{number}", [(0, 1, 1)])
    with pytest.raises(
        InvalidInput,
        match=f"one-more would be producer {PRODUCERS + 1} .* more than the limit of {PRODUCERS}",
    ):
        landing.add(TOPIC, "one-more", [(0, 1, 1)])
    landing.add(TOPIC, "p0", [(0, 1, 1)])
    assert landing.land() is not None
    landing.add(TOPIC, "one-more", [(0, 1, 1)])


def test_a_request_covers_the_ring_a_few_times_at_most(run: Run) -> None:
    landing = landing_of(run)
    landing.add(TOPIC, "p", [(0, 65_536, 1)] * 4)
    with pytest.raises(InvalidInput, match=f"cover {5 * 65_536} hashes, more than the {REQUEST_HASHES}"):
        landing.add(TOPIC, "p", [(0, 65_536, 1)] * 5)


def test_producers_that_a_broker_counts_are_as_many_as_it_says(run: Run) -> None:
    tell(run, *((f"p{number}", [(0, 1, 1_000)]) for number in range(5)))
    stored(run, 10)
    run.aggregate()
    assert situation(run).producers == 5

    run.bench.execute("UPDATE cleave.segment_producers SET connected = 2")
    assert situation(run).producers == 2
