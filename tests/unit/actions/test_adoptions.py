"""The sentence about an adoption that was only tried."""

from __future__ import annotations

from typing import Any, cast

import pytest

from controller.actions.adoptions import AdoptionResponse

LOG = "persistent://acme/shop/orders"


@pytest.mark.parametrize(
    ("is_cut_off", "words"),
    [(False, "; stop till, clerk first, or give cut_off"), (True, "; till, clerk would be cut off")],
)
def test_a_dry_run_says_what_becomes_of_connected_clients(is_cut_off: bool, words: str) -> None:
    response = cast(Any, AdoptionResponse).model_construct(
        topic="topic://acme/shop/orders",
        dry_run=True,
        creates=[],
        closes=[LOG],
        producers=["till"],
        consumers=["clerk"],
        cut_off=is_cut_off,
    )

    assert response.sentence() == f"{LOG} would end; topic://acme/shop/orders would have 0 segments{words}"
