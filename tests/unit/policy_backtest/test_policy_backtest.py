"""The job without Spark: every load under every candidate, the same figures however the work is divided."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from controller.backtest.load_series import LoadSeries, of_messages
from controller.backtest.optimum import lower_bound
from controller.backtest.rivals.registry import RULES
from controller.backtest.rule import of_policy
from controller.backtest.score import Prices, score
from controller.backtest.simulation import Conditions, simulate
from controller.domain.errors import InvalidInput, InvalidPolicy
from controller.domain.policy import AutoScalePolicy
from spark_jobs.policy_backtest import (
    IN_FORCE,
    Candidate,
    Load,
    Question,
    answers,
    by_key,
    compute_here,
    drawn,
    rates_of_trace,
)
from spark_jobs.recorded_load import Recording, series_of

START = 1_763_812_800_000
POLICY = AutoScalePolicy()
OWN, EAGER = Candidate("own", IN_FORCE), Candidate("eager", "pip483", {"merge_msg_rate_in": 3_500})
ADAPTIVE = Candidate("adaptive", "adaptive")
QUESTION = Question((OWN, EAGER, ADAPTIVE))


def day(name: str, peak: float, steps: int = 360) -> LoadSeries:
    """A wave between nothing and a peak, in messages/s."""
    wave = (1 - np.cos(np.arange(steps) / steps * 4 * np.pi)) / 2
    return of_messages(name, wave * peak, start_ms=START)


SERIES = [day("small", 15_000.0), day("large", 80_000.0), day("short", 30_000.0, 180)]


def recording(number: int, **changes: Any) -> Recording:
    series = SERIES[number]
    end_ms = START + series.steps * 60_000
    return replace(Recording(number + 1, series.name, START, end_ms, POLICY.to_document()), **changes)


RECORDINGS = [recording(number) for number in range(len(SERIES))]
RATES = pa.concat_tables(
    [rates_of_trace(one, series) for one, series in zip(RECORDINGS, SERIES, strict=True)]
)


def rows(table: pa.Table) -> dict[tuple[str, str, int], dict[str, Any]]:
    return {(row["load"], row["policy"], row["seed"]): row for row in table.to_pylist()}


@pytest.fixture(scope="module")
def computed() -> pa.Table:
    return compute_here(RATES, RECORDINGS, QUESTION)


def test_each_load_has_a_row_for_each_candidate(computed: pa.Table) -> None:
    assert sorted(rows(computed)) == [
        (load, policy, 0) for load in ("large", "short", "small") for policy in ("adaptive", "eager", "own")
    ]


def test_the_figures_are_those_of_the_simulation_by_itself(computed: pa.Table) -> None:
    for series in SERIES:
        row = rows(computed)[series.name, "own", 0]
        alone = score(simulate(series, of_policy(POLICY), Conditions()))
        [least] = lower_bound(
            series.load(POLICY.thresholds.split.rates), Prices(), step_seconds=60, most_segments=64
        )

        assert row["cost"] == alone.cost
        assert row["least_cost"] == pytest.approx(float(least), rel=1e-12)
        assert json.loads(row["figures"])["reshapes"] == alone.reshapes


def test_no_policy_costs_less_than_the_least(computed: pa.Table) -> None:
    assert all(row["cost"] >= row["least_cost"] > 0 for row in computed.to_pylist())


def test_it_does_not_matter_how_the_work_is_divided(computed: pa.Table) -> None:
    loads = list(by_key(RATES, reversed(RECORDINGS)))
    parts = [
        batch
        for part in range(2)
        for load in reversed(loads)
        for batch in answers([Load(load.recording, load.rates, (part, 2))], QUESTION)
    ]

    assert rows(pa.Table.from_batches(parts)) == rows(computed)


def test_a_trace_goes_through_the_rows_unchanged() -> None:
    series = SERIES[0]
    again = series_of(RECORDINGS[0], rates_of_trace(RECORDINGS[0], series))

    assert (again.rates == series.rates).all()
    assert again.shares is None


def test_a_candidate_with_another_threshold_makes_no_segment_stronger() -> None:
    """It splits at twice the rate, so its segments are overloaded where those of the policy in force are not."""
    lazy = Candidate("lazy", IN_FORCE, {"split_msg_rate_in": 20_000})
    found = rows(compute_here(RATES, [recording(1)], Question((OWN, lazy))))
    own, other = (json.loads(found["large", name, 0]["figures"]) for name in ("own", "lazy"))

    assert other["overload_seconds"] > 10 * own["overload_seconds"]
    assert other["segment_hours"] < own["segment_hours"]
    assert other["over_provisioned_hours"] < own["over_provisioned_hours"]
    assert (own["silent_seconds"], other["silent_seconds"]) == (0.0, 0.0)
    assert found["large", "lazy", 0]["least_cost"] == found["large", "own", 0]["least_cost"]


def test_the_least_cost_is_that_of_the_candidate_which_may_have_the_most_segments() -> None:
    crowded = Candidate("crowded", IN_FORCE, {"max_segments": 2})
    found = rows(compute_here(RATES, [recording(1)], Question((OWN, crowded))))

    assert found["large", "crowded", 0]["least_cost"] == found["large", "own", 0]["least_cost"]
    assert found["large", "crowded", 0]["cost"] > found["large", "own", 0]["cost"]


def test_a_seed_draws_the_load_anew_and_the_same_each_time() -> None:
    question = Question((OWN,), seeds=(0, 1, 2))
    found, again = (compute_here(RATES, [recording(0)], question) for _ in range(2))

    assert found.equals(again)
    costs = [row["cost"] for row in found.to_pylist()]
    assert len(set(costs)) == 3
    assert max(costs) < 1.2 * min(costs)
    series = SERIES[0]
    assert drawn(series, 0) is series
    assert drawn(series, 5).rates[0, 0] == 0.0  # where there was nothing there is nothing


def test_the_same_load_in_other_rows_gives_the_same_figures(computed: pa.Table) -> None:
    """Rows shuffled, a load that was not asked about beside them."""
    order = np.random.default_rng(3).permutation(RATES.num_rows)

    assert compute_here(RATES.take(order), RECORDINGS[:2], QUESTION).to_pylist() == [
        row for row in computed.to_pylist() if row["load"] != "short"
    ]


def test_a_load_without_rows_has_no_answer() -> None:
    missing = replace(recording(0), key=99, name="missing")

    assert compute_here(RATES, [missing], QUESTION).num_rows == 0


def test_progress_is_told() -> None:
    told: list[int] = []
    compute_here(RATES, RECORDINGS, Question((OWN,), seeds=(0, 1)), told.append)

    assert sum(told) == 6


def test_a_topic_starts_with_the_segments_it_had() -> None:
    found = rows(compute_here(RATES, [recording(2, segments=4)], Question((OWN,))))
    one = rows(compute_here(RATES, [recording(2)], Question((OWN,))))

    assert found["short", "own", 0]["cost"] != one["short", "own", 0]["cost"]


def test_pictures_come_when_they_are_asked_for(computed: pa.Table) -> None:
    found = rows(compute_here(RATES, RECORDINGS[:1], replace(QUESTION, pictures=True)))
    pictures = {policy: json.loads(row["picture"]) for (_, policy, _), row in found.items()}

    assert computed.column("picture").null_count == computed.num_rows
    assert len(pictures["own"]["load"]) == 360
    assert max(pictures["own"]["load"]) == pytest.approx(1.5, abs=1e-3)
    assert [len(one["acts"]) > 0 for one in pictures.values()] == [True] * 3
    assert [name for name, one in pictures.items() if "front" in one] == ["own"]
    front = pictures["own"]["front"]
    assert [point["weight"] for point in front] == sorted(point["weight"] for point in front)
    excess = [point["excess_hours"] for point in front]
    assert excess == sorted(excess, reverse=True)
    row = found["small", "own", 0]
    assert [one["least_cost"] for one in front if one["weight"] == 20] == [
        pytest.approx(row["least_cost"], rel=1e-6)
    ]


def test_long_loads_are_thinned_to_their_peaks() -> None:
    series = of_messages("long", [0.0] * 4_999 + [10_000.0] + [0.0] * 1_000, start_ms=START)
    one = Recording(1, "long", START, START + 6_000 * 60_000, POLICY.to_document())
    [row] = compute_here(rates_of_trace(one, series), [one], Question((OWN,), pictures=True)).to_pylist()
    found = json.loads(row["picture"])

    assert len(found["load"]) == 2_000
    assert (max(found["load"]), found["step_ms"]) == (1.0, 180_000)
    ring = found["ring"]
    assert [load for _, _, load in ring["loads"] if load] == [1.0]
    assert 90 <= len(ring["loads"]) <= 97
    assert ring["segments"] == [[0, 0, 0xFFFF, START, START + 6_000 * 60_000]]


def test_a_load_that_is_shorter_than_a_tick_has_a_picture() -> None:
    """Its policy is never evaluated, so nothing is refused."""
    series = replace(of_messages("brief", [5.0] * 3, start_ms=START), step_seconds=10)
    one = Recording(1, "brief", START, START + 30_000, POLICY.to_document(), step_seconds=10)
    [row] = compute_here(rates_of_trace(one, series), [one], Question((OWN,), pictures=True)).to_pylist()

    assert row["error"] is None
    assert json.loads(row["picture"])["refusals"] == {}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_load_with_an_infinite_figure_is_refused_with_the_reason() -> None:
    policy = replace(POLICY, split_msg_rate_in=2.0, merge_msg_rate_in=1.0)
    one = Recording(1, "huge", START, START + 300 * 60_000, policy.to_document())
    series = of_messages("huge", [1e308] * 300, start_ms=START)
    [row] = compute_here(rates_of_trace(one, series), [one], Question((OWN,))).to_pylist()

    assert row["error"].startswith("InvalidInput: ")
    assert "under own is inf; the recorded rates exceed any capacity" in row["error"]


def test_a_candidate_is_refused_by_name_or_by_its_parameters() -> None:
    with pytest.raises(InvalidInput, match="rule 'nonsense' is unknown"):
        Candidate("x", "nonsense").check(POLICY)
    with pytest.raises(InvalidPolicy, match="max_segments"):
        Candidate("x", "pip483", {"max_segments": 0}).check(POLICY)


@pytest.mark.parametrize("rule", [name for name in RULES if name not in ("adaptive", "pip483")])
def test_other_systems_rules_are_candidates_too(rule: str) -> None:
    found = rows(compute_here(RATES, [recording(2)], Question((Candidate(rule, rule),))))
    row = found["short", rule, 0]

    assert row["cost"] >= row["least_cost"] > 0
    assert json.loads(row["figures"]).get("is_ideal", False) == rule.startswith("count")


def test_the_rules_of_adaptive_take_no_notice_of_a_switch_of_the_others() -> None:
    strict = recording(2, policy=replace(POLICY, strict_pulsar=True, profile="pip483").to_document())
    plain = recording(2)

    one, other = (
        compute_here(RATES, [found], Question((ADAPTIVE,))).column("cost").to_pylist()
        for found in (strict, plain)
    )
    assert one == other


def test_a_question_goes_to_another_process_as_text() -> None:
    question = Question((OWN, EAGER), Prices(excess=3.0), (0, 4), 120, 10.0, pictures=True)

    assert Question.from_json(question.to_json()) == question
