"""What `--json` prints for values that JSON does not know."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from controller.command_output import to_json


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
