"""What `--json` prints for values that JSON does not know, and how tables round numbers."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from controller.bundles.actions.namespaces import SplitPolicyDocument
from controller.command_output import cell, to_json
from controller.domain.formatting import exact


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("12.00", "12"),
        ("12.5", "12.5"),
        (str(2**63 - 1), str(2**63 - 1)),
        (str(2**63), f'"{2**63}"'),
        ("-" + "1" * 5000, f'"-{"1" * 5000}"'),
        ("1e999999", '"1E+999999"'),
        ("1e-999999", "0.0"),
        ("Infinity", '"Infinity"'),
        ("-Infinity", '"-Infinity"'),
        ("NaN", '"NaN"'),
        ("sNaN", '"sNaN"'),
    ],
)
def test_a_number_that_64_bits_hold_stays_one_and_any_other_is_its_text(value: str, written: str) -> None:
    assert json.dumps(Decimal(value), default=to_json) == written


@pytest.mark.parametrize("value", [0.15, 0.97, 1.25, 12_345.5, 1e-05, 1e300])
def test_a_cell_of_an_exact_number_reads_back_as_the_number(value: float) -> None:
    assert float(cell(exact(value))) == value


@pytest.mark.parametrize(("value", "shown"), [(7, "7"), (True, "true"), ("adaptive", "adaptive"), (None, "")])
def test_other_cells_do_not_change(value: object, shown: str) -> None:
    assert cell(exact(value)) == cell(value) == shown


def test_the_table_of_a_split_policy_shows_the_values_in_force() -> None:
    policy = SplitPolicyDocument.of("acme/shop", {"max_msg_rate": 1234.56})

    assert {row["parameter"]: cell(row["value"]) for row in policy.rows()}["max_msg_rate"] == "1234.56"
