"""Checks of the logs of a topic: which count as missing, and brokers whose answers are incomplete."""

from __future__ import annotations

from contextlib import closing

import pytest

from controller.dataplane.layout_keeper import LogCheck
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.errors import DataPlaneUnavailable
from tests.support.scripted_broker import Conversation, scripted_broker

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


def test_the_logs_of_active_segments_are_looked_up_and_those_that_are_not_found_are_missing() -> None:
    names = {i: f"segment://t/n/x/0000-ffff-{i}" for i in (0, 2, 10, 11)}
    segments = {str(i): {"name": name, "state": "ACTIVE" if i else "SEALED"} for i, name in names.items()}
    with scripted_broker() as broker:

        def answer(conversation: Conversation) -> None:
            if conversation.path.endswith("/stats"):
                broker.says(200, {"epoch": 3, "segments": segments})(conversation)
            elif conversation.path.endswith("-11"):
                broker.says(200, {"brokerUrl": "pulsar://b:6650"})(conversation)
            else:
                broker.refuses(404, "Topic not found")(conversation)

        broker.behaves(answer)
        with closing(
            PulsarScalableDataPlane(PulsarAccess(admin_url=broker.url), call_timeout_seconds=20.0)
        ) as plane:
            assert plane.check_logs(TOPIC) == LogCheck(epoch=3, missing=(2, 10))
        assert len(broker.received) == 4


def test_a_lookup_that_is_refused_for_another_reason_does_not_make_a_log_missing() -> None:
    with scripted_broker() as broker:
        broker.behaves(
            broker.says(200, {"epoch": 1, "segments": {"0": ACTIVE}}),
            broker.refuses(404, "Namespace not found"),
        )
        access = PulsarAccess(admin_url=broker.url)
        with (
            closing(PulsarScalableDataPlane(access, call_timeout_seconds=20.0)) as plane,
            pytest.raises(DataPlaneUnavailable, match=r"look up the logs .* 404 \(Namespace not found\)"),
        ):
            plane.check_logs(TOPIC)
