"""Samples of keys on a real broker, where entries are large, uneven or encrypted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from controller.dataplane.optional_abilities import KeySample
from controller.dataplane.pulsar import key_samples
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.domain.errors import Unsupported
from controller.domain.key_hash import key_hash
from tests.integration.dataplane.pulsar_setup import PulsarSetup

pytestmark = [pytest.mark.integration, pytest.mark.pulsar]


@pytest.fixture
def plane(setup: PulsarSetup) -> Iterator[PulsarDataPlane]:
    plane = PulsarDataPlane(setup.access, call_timeout_seconds=25.0)
    yield plane
    plane.close()


@pytest.fixture
def log(setup: PulsarSetup, plane: PulsarDataPlane) -> str:
    name = plane.backing_topic(f"topic://{setup.namespace}/sampled", "0000-ffff-0")
    plane.create_segment(name, ())
    return name


@pytest.fixture
def client(setup: PulsarSetup) -> Iterator[pulsar.Client]:
    client = pulsar.Client(setup.access.service_url)
    yield client
    client.close()


def test_of_large_messages_the_sample_is_small(
    plane: PulsarDataPlane, log: str, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_samples, "SAMPLE_BYTES", 20_000)
    producer = client.create_producer(log, batching_enabled=False)
    for _ in range(20):
        producer.send(b"x" * 4_000, partition_key="k")

    found = plane.sample_keys(log, most=1_000)

    assert found.hashes in ((key_hash("k").segment_hash,) * 4, (key_hash("k").segment_hash,) * 5)


def test_a_batch_beyond_what_is_asked_for_is_not_read_to_its_end(
    plane: PulsarDataPlane, log: str, client: pulsar.Client
) -> None:
    """Reading on and on would hold up the others; the newest that were read are the sample."""
    producer = client.create_producer(
        log, batching_enabled=True, batching_max_messages=500, batching_max_publish_delay_ms=60_000
    )
    for _ in range(499):
        producer.send_async(b"x", lambda _result, _message_id: None, partition_key="k")
    producer.flush()

    assert len(plane.sample_keys(log, most=10).hashes) == 10


@pytest.mark.parametrize(("in_batches", "known"), [(False, 3), (True, 1)])
def test_of_encrypted_messages_the_key_is_known_and_of_a_batch_its_firsts(
    plane: PulsarDataPlane, log: str, client: pulsar.Client, tmp_path: Path, in_batches: bool, known: int
) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(
        ["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True
    )
    producer = client.create_producer(
        log,
        batching_enabled=in_batches,
        batching_max_publish_delay_ms=60_000,
        encryption_key="k",
        crypto_key_reader=pulsar.CryptoKeyReader(str(public), str(private)),
    )
    for _ in range(3):
        producer.send_async(b"x", lambda _result, _message_id: None, partition_key="k")
    producer.flush()

    assert plane.sample_keys(log, most=100) == KeySample((key_hash("k").segment_hash,) * known, 0)


def test_without_the_binary_address_nothing_can_be_sampled(setup: PulsarSetup, log: str) -> None:
    plane = PulsarDataPlane(PulsarAccess(admin_url=setup.access.admin_url))
    with pytest.raises(Unsupported, match="CLEAVE_PULSAR_SERVICE_URL"):
        plane.sample_keys(log, most=10)
    plane.close()
