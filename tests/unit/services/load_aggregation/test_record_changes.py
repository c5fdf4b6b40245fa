"""The records that a run writes are those of `domain.load_record_rule.next_record`, segment by segment, on random histories."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from controller.domain.load_record import METRICS
from controller.landing.schemas import RATE_SCHEMA
from controller.services.load_aggregation.record_changes import record_changes
from controller.store.load.records import HEARD_SCHEMA, Baseline
from tests.spark.oracle import Values, by_topic, tables
from tests.spark.random_cases import CASES, WINDOW, batch, demand_equal, expected
from tests.support.drawn import cases as number_of_cases

LIMITS = (*METRICS, "observed_at_ms", "covered_ms", "source")


def changes_of(seed: int) -> tuple[dict[int, Values], dict[int, Values]]:
    """Return the changes that a run makes of the batch, and those that the rule makes."""
    cases = batch(seed)
    rates, heard = expected(cases)
    stored = {name: table for name, table in tables(cases).items() if name != "samples"}
    rows = [
        {"topic_id": n, "segment_id": 0, **dict(zip(LIMITS, row, strict=True))} for n, row in rates.items()
    ]
    spoken = [{"source": source, "observed_at_ms": at, "set_aside": 0} for source, at in heard.items()]
    made = record_changes(
        pa.Table.from_pylist(rows, RATE_SCHEMA),
        pa.Table.from_pylist(spoken, HEARD_SCHEMA),
        Baseline(None, **stored),
        WINDOW,
    )
    wanted = {n: row for n, case in enumerate(cases) if (row := case.expected_change(WINDOW)) is not None}
    demand_equal(cases, wanted, by_topic(made))
    return rates, wanted


@given(seed=st.integers(0, 2**32))
@settings(
    max_examples=number_of_cases(3, 30), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
def test_a_run_writes_what_the_rule_says(seed: int) -> None:
    changes_of(seed)


def test_the_batches_hold_what_they_are_meant_to() -> None:
    """Writes, silences and stays: a generator that never writes would prove nothing."""
    rates, changes = changes_of(0)

    assert len([n for n, change in changes.items() if change[6] is not None]) > CASES / 100
    assert len([n for n in rates if n not in changes]) > CASES / 50
    assert len(changes) > CASES / 4


def test_a_topic_without_thresholds_and_a_source_without_a_sound_sample_change_nothing() -> None:
    cases = batch(1)
    stored: Mapping[str, pa.Table] = {k: v for k, v in tables(cases).items() if k != "samples"}
    none = Baseline(None, stored["records"], stored["sources"], stored["thresholds"].slice(0, 0))
    rates, heard = expected(cases)
    rows = [
        {"topic_id": n, "segment_id": 0, **dict(zip(LIMITS, row, strict=True))} for n, row in rates.items()
    ]
    table = pa.Table.from_pylist(rows, RATE_SCHEMA)
    spoken = pa.Table.from_pylist(
        [{"source": source, "observed_at_ms": 1, "set_aside": 0} for source in heard], HEARD_SCHEMA
    )

    assert record_changes(table, spoken, none, WINDOW).num_rows == 0

    unsound = pa.Table.from_pylist(
        [{"source": s, "set_aside": 1} for s in stored["records"]["source"].to_pylist()], HEARD_SCHEMA
    )
    whole = Baseline(None, **stored)
    assert record_changes(table.slice(0, 0), unsound, whole, WINDOW).num_rows == 0
