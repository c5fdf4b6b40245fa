"""PostgreSQL refuses the names that `domain.names` refuses."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.domain.errors import InvalidInput
from controller.domain.names import REFUSED, demand_visible
from controller.store.topics import consumers
from tests.support.bench import Bench
from tests.support.terminal_attacks import ATTACKS


def test_postgresql_and_python_refuse_the_same_characters(bench: Bench) -> None:
    [(accepted,)] = bench.rows(
        "SELECT array_agg(code) FROM generate_series(1, :last) AS code"
        " WHERE code NOT BETWEEN 55296 AND 57343 AND cleave.is_name('a' || chr(code) || 'b')",
        last=sys.maxunicode,
    )
    refused = {code for first, last in REFUSED for code in range(first, last + 1)}
    assert set(accepted) == set(range(1, sys.maxunicode + 1)) - refused


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    names=st.lists(
        st.text(st.sampled_from("./a"))
        | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        min_size=20,
        max_size=50,
    )
)
def test_and_the_same_names(bench: Bench, names: list[str]) -> None:
    def is_name(name: str) -> bool:
        try:
            return bool(name and demand_visible("topic", name))
        except InvalidInput:
            return False

    [(said,)] = bench.rows(
        "SELECT array_agg(cleave.is_name(n) ORDER BY i) FROM unnest(CAST(:names AS text[])) WITH ORDINALITY AS u (n, i)",
        names=names,
    )
    assert said == list(map(is_name, names))


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_login_registers_an_attack(bench: Bench, attack: str) -> None:
    topic = bench.topic_with()
    call = "SELECT * FROM cleave.register_session(:topic, 'billing', :name, 'f00d')"
    with pytest.raises(InvalidInput, match="printable"):
        bench.rows(call, topic=topic, name=f"a{attack}")
    with pytest.raises(InvalidInput), bench.store.transaction() as tx:
        consumers.register(tx, topic, "billing", f"a{attack}")
    assert bench.rows("SELECT name FROM cleave.consumer") == []
