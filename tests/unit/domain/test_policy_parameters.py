"""Values of parameters in documents: one text for one value, and types refused by name."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest

from controller.domain.errors import InvalidPolicy
from controller.domain.policy_parameters import read_parameters, write_parameter

KINDS: dict[str, type] = {"count": int, "rate": float, "on": bool, "name": str}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (700.0, "700"),
        (0.25, "0.25"),
        (-0.0, "0"),
        (2.0**60, "1.152921504606847e+18"),
        (float("inf"), '"Infinity"'),
        (float("-inf"), '"-Infinity"'),
        (float("nan"), '"NaN"'),
        (True, "true"),
        ("x", '"x"'),
    ],
)
def test_a_value_has_one_text_in_any_json(value: Any, written: str) -> None:
    text = json.dumps(write_parameter(value), allow_nan=False)
    assert text == written
    if isinstance(value, float):
        (pair,) = read_parameters({"rate": json.loads(text)}, KINDS)
        assert pair[1] == value or math.isnan(value)
        assert isinstance(pair[1], float)


def test_parameters_come_in_the_order_of_declaration_without_nulls() -> None:
    document = {"name": "x", "rate": 3, "on": None, "count": 4.0}
    assert list(read_parameters(document, KINDS)) == [("count", 4), ("rate", 3.0), ("name", "x")]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"count": "4"}, "count = '4'; give a whole number"),
        ({"count": 4.5}, "count = 4.5; give a whole number"),
        ({"count": True}, "count = True; give a whole number"),
        ({"count": float("inf")}, "count = inf; give a whole number"),
        ({"count": float("nan")}, "count = nan; give a whole number"),
        ({"rate": "fast"}, "rate = 'fast'; give a number"),
        ({"rate": False}, "rate = False; give a number"),
        ({"rate": [1]}, r"rate = [1]; give a number"),
        ({"on": 1}, "on = 1; give true or false"),
        ({"name": 7}, "name = 7; give a text"),
        ({"rate": 10**400}, "characters); give a number"),
        ({"rate": -(10**5000)}, "rate = an integer of 16610 bits; give a number"),
        ({"rate": Decimal("1e400")}, "give a number"),
        ({"rate": {}}, "rate = {}; give a number"),
        ({"count": 10**400}, "characters); give a whole number"),
        ({"count": Decimal(4)}, "give a whole number"),
        ({"rates": 7}, "'rates' cannot be set here; the parameters are count, rate, on, name"),
    ],
)
def test_a_wrong_name_or_type_is_refused_with_the_next_move(document: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        list(read_parameters(document, KINDS))
    assert says in str(refused.value)
    assert len(str(refused.value)) < 250
