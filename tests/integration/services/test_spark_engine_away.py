"""A Connect server that is away is worth another try, and is noticed at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.devstack.ports import free_port, release_port
from controller.domain.errors import Retryable
from controller.domain.load_window import LoadWindow
from controller.landing.area import LandingArea
from controller.landing.history import RateHistory
from controller.services.load_aggregation import Landed, SparkEngine


def test_a_connect_server_that_is_away_is_retryable_and_its_token_stays_secret(tmp_path: Path) -> None:
    port = free_port()
    engine = SparkEngine(f"sc://localhost:{port}/;token=secret")
    scratch = RateHistory(str(tmp_path / "history")).scratch("run")

    with pytest.raises(Retryable) as caught:
        engine.compute(Landed(LandingArea(str(tmp_path / "landing")), ()), scratch, LoadWindow(60_000))

    assert "secret" not in str(caught.value)
    release_port(port)
