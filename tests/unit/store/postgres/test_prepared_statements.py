"""What is wrong with a prepared statement is said when the program starts, not when it is first used."""

from __future__ import annotations

import pytest

from controller.store.postgres.prepared_statements import Prepared


def test_each_parameter_has_a_type_and_each_type_a_parameter() -> None:
    with pytest.raises(ValueError, match="uses parameters \\['a', 'b'\\], but types are given for \\['a'\\]"):
        Prepared("half", "SELECT :a, :b", {"a": "text"})
    with pytest.raises(ValueError, match="statement spare"):
        Prepared("spare", "SELECT :a", {"a": "text", "b": "text"})


def test_a_cast_is_no_parameter() -> None:
    assert Prepared("cast", "SELECT 'now'::text, :a", {"a": "text"}).name == "cleave_cast"
