"""Topics of real brokers are adopted, attached and detached alike, whether the database is asked or `cleave serve`."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import requests

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from tests.support.brokers import SharedBroker, pulsar_client
from tests.support.command_line import CommandLine
from tests.support.over_http import OverHttp, serving
from tests.support.pulsar_namespaces import make_namespace

PATIENT_SECONDS = 25
Ways = tuple[CommandLine, OverHttp]
REHEARSED = (
    "topics adopt persistent://{topic} --dry-run",
    "topics adopt persistent://{topic} --topic {topic}-2 --segments 3 --dry-run",
    "topics adopt {topic} --dry-run --json",
)
REFUSED = (
    "topics adopt persistent://{topic}",
    "topics adopt persistent://{topic}-none",
    "topics adopt persistent://{topic} --data-plane embedded",
    "topics attach {topic} --data-plane embedded",
    "topics detach {topic}-none",
)
CHANGED = ("topics adopt persistent://{topic} --segments 1 --cut-off",)
MIRRORED = (
    "topics attach {topic} --dry-run",
    "topics attach {topic}",
    "topics attach {topic}",
    "topics detach {topic} --dry-run",
    "topics detach {topic} --reason enough",
)
"""One after the other; a topic is attached once."""


@pytest.fixture
def ways(
    cleave: CommandLine,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[SharedBroker], AbstractContextManager[Ways]]:
    """The command on the database, and over HTTP, where both know of a broker."""

    @contextmanager
    def beside(broker: SharedBroker) -> Iterator[Ways]:
        settings = {
            "pulsar_admin_url": broker.admin_url,
            "pulsar_service_url": broker.service_url,
            "call_timeout_seconds": PATIENT_SECONDS,
        }
        for name, value in settings.items():
            monkeypatch.setenv(f"CLEAVE_{name.upper()}", str(value))
        with serving(database, tmp_path, **settings) as server:
            yield cleave, OverHttp(cleave, capsys, monkeypatch, server)

    return beside


def test_a_partitioned_topic_is_adopted_alike(
    ways: Callable[[SharedBroker], AbstractContextManager[Ways]], pulsar_broker: SharedBroker
) -> None:
    access = PulsarAccess(admin_url=pulsar_broker.admin_url, service_url=pulsar_broker.service_url)
    namespace = make_namespace(access, f"adopted-{secrets.token_hex(4)}")
    here, there = f"{namespace}/here", f"{namespace}/hier"
    with ways(pulsar_broker) as (cleave, http), pulsar_client(pulsar_broker.service_url) as client:
        for topic in (here, there):
            made = f"{pulsar_broker.admin_url}/admin/v2/persistent/{topic}/partitions"
            requests.put(made, json=2, timeout=PATIENT_SECONDS).raise_for_status()
            client.create_producer(f"persistent://{topic}", producer_name="till")
            client.subscribe(f"persistent://{topic}", "billing").close()
        before = http.rows()
        for line in REHEARSED:
            asked = line.format(topic=here).split()
            said = http.ok(*asked).replace('"origin": "api"', '"origin": "manual"')
            assert said == cleave.ok(*asked), line
            assert "till at" in said
        for line in REFUSED:
            asked = line.format(topic=here).split()
            answer = cleave(*asked)
            assert http(*asked) == answer, line
            assert (answer.code, answer.err.count("\n")) == (2, 1), line
        assert http.rows() == before
        done = [_done(way, CHANGED[0], topic) for way, topic in ((cleave, here), (http, there))]

        assert done[0] == done[1]
        assert done[0]["state"] == "done"
        assert cleave.column("SELECT topic FROM inspect.topics ORDER BY 1") == [
            f"topic://{topic}" for topic in (here, there)
        ]


def test_a_topic_of_pulsar_5_is_attached_and_given_back_alike(
    ways: Callable[[SharedBroker], AbstractContextManager[Ways]], pulsar5_broker: SharedBroker
) -> None:
    plane = PulsarScalableDataPlane(
        PulsarAccess(admin_url=pulsar5_broker.admin_url, service_url=pulsar5_broker.service_url),
        call_timeout_seconds=PATIENT_SECONDS,
    )
    here, there = (f"public/default/{way}-{secrets.token_hex(4)}" for way in ("here", "hier"))
    for topic in (here, there):
        plane.create_topic(f"topic://{topic}", 2)
        plane.set_auto_scaler(f"topic://{topic}", {"enabled": True, "maxSegments": 7})
    with ways(pulsar5_broker) as (cleave, http):
        for line in MIRRORED:
            said = []
            for way, topic in ((cleave, here), (http, there)):
                answer = way(*line.format(topic=topic).split())
                said.append((answer.code, _unnumbered(answer.out + answer.err).replace(topic, "TOPIC")))
            assert said[0] == said[1], line

    for topic in (here, there):
        assert plane.auto_scaler(f"topic://{topic}") == {"enabled": True, "maxSegments": 7}
        plane.delete_topic(f"topic://{topic}")
    plane.close()


def _done(way: CommandLine, line: str, topic: str) -> dict[str, object]:
    """The operation, but for what is another for each way and topic."""
    document = json.loads(
        _unnumbered(way.ok(*line.format(topic=topic).split(), "--json")).replace(topic, "TOPIC")
    )
    assert document.pop("origin") == ("api" if isinstance(way, OverHttp) else "manual")
    found: dict[str, object] = document
    return found


def _unnumbered(text: str) -> str:
    return re.sub(r'("operation_id": |operation |^ +)\d+', r"\1 0", text, flags=re.MULTILINE)
