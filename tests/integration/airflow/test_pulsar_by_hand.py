"""The forms on a topic of a real Pulsar, told by the extras of the connection `cleave` where the cluster is."""

from __future__ import annotations

import secrets
from urllib.parse import quote

import pytest

from controller.dataplane.base import LogState
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.plane import PulsarDataPlane
from tests.integration.airflow.conftest import RunDag
from tests.support.brokers import SharedBroker
from tests.support.pulsar_namespaces import make_namespace

pytestmark = pytest.mark.airflow


def test_a_topic_is_created_and_split(
    run_dag: RunDag,
    controller_url: str,
    pulsar_broker: SharedBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = PulsarAccess(admin_url=pulsar_broker.admin_url)
    topic = f"topic://{make_namespace(access, f'dags-{secrets.token_hex(4)}')}/orders"
    monkeypatch.setenv(
        "AIRFLOW_CONN_CLEAVE",
        f"{controller_url}?pulsar_admin_url={quote(access.admin_url, safe='')}&call_timeout_seconds=25",
    )
    plane = PulsarDataPlane(access, call_timeout_seconds=30.0)

    def states() -> dict[str, LogState]:
        prefix = f"{plane.backing_topic(topic, '')}"
        return {name.removeprefix(prefix): plane.segment_state(name) for name in plane.list_segments(topic)}

    assert run_dag("cleave_create_topic", topic=topic, data_plane="pulsar").state == "success"
    assert states() == {"0000-ffff-0": LogState.OPEN}

    assert run_dag("cleave_manual_split", topic=topic, segment_id=0).state == "success"
    assert states() == {
        "0000-7fff-1": LogState.OPEN,
        "0000-ffff-0": LogState.TERMINATED,
        "8000-ffff-2": LogState.OPEN,
    }
    plane.close()
