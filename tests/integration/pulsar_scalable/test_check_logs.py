"""Checks of logs on a broker whose statistics are incomplete."""

from __future__ import annotations

from contextlib import closing

import pytest

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.errors import DataPlaneUnavailable
from tests.support.scripted_broker import scripted_broker

TOPIC = "topic://t/n/x"
ACTIVE = {"name": "segment://t/n/x/0000-ffff-0", "state": "ACTIVE"}


@pytest.mark.parametrize(
    "statistics",
    [
        {},
        {"epoch": 1, "segments": None},
        {"epoch": 1, "segments": {"0": {"state": "ACTIVE"}}},
        {"epoch": 1, "segments": {"x": ACTIVE}},
        {"segments": {"0": ACTIVE}},
        {"epoch": None, "segments": {"0": ACTIVE}},
    ],
)
def test_incomplete_statistics_are_an_error_that_passes(statistics: object) -> None:
    with scripted_broker() as broker:
        broker.behaves(broker.says(200, statistics))
        access = PulsarAccess(admin_url=broker.url)
        with (
            closing(PulsarScalableDataPlane(access, call_timeout_seconds=20.0)) as plane,
            pytest.raises(DataPlaneUnavailable, match=f"statistics of {TOPIC}: .*lacks the requested data"),
        ):
            plane.check_logs(TOPIC)
        assert len(broker.received) == 1
