"""Messages that only applications can read: encrypted within their buckets' limits on a real broker, and what readers without the key say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from controller.client.checkpoint_consumer import CheckpointConsumer, Start
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.log_client import LogMessage, OutgoingMessage
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.encryption import decrypting
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.requirements import Namespaces
from controller.domain.errors import InvalidInput, Terminal
from controller.domain.hash_range import FULL_RANGE
from controller.domain.key_hash import key_hash
from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.brokers import pulsar_client
from tests.support.waiting import wait_until

LOW, HIGH = FULL_RANGE.halves()
SECRET = b"nobody's business"
CANNOT_DECRYPT = r"is encrypted with key 'orders-1' and cannot be decrypted here: set CLEAVE_PULSAR_ENCRYPTION_PRIVATE_KEY_FILE"


@dataclass(frozen=True)
class KeyPair:
    """Two PEM files."""

    public: Path
    private: Path


@pytest.fixture(scope="module")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], KeyPair]:
    """Makes a new one."""
    directory = tmp_path_factory.mktemp("keys")

    def make(name: str) -> KeyPair:
        key = rsa.generate_private_key(65537, 2048)
        pair = KeyPair(directory / f"{name}.pub", directory / f"{name}.pem")
        pem = serialization.Encoding.PEM
        pair.private.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        pair.public.write_bytes(
            key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        return pair

    return make


@pytest.fixture(scope="module")
def pair(make_pair: Callable[[str], KeyPair]) -> KeyPair:
    """The application's key."""
    return make_pair("orders")


@dataclass(frozen=True)
class Applications:
    """Clients with different keys, closed at the end of the test."""

    writing: PulsarLogClient
    reading: PulsarLogClient
    without_key: PulsarLogClient
    with_another_key: PulsarLogClient


@pytest.fixture
def applications(
    setup: PulsarSetup, pair: KeyPair, make_pair: Callable[[str], KeyPair]
) -> Iterator[Applications]:
    """See `Applications`."""
    writes = {"encryption_key": "orders-1", "encryption_public_key_file": str(pair.public)}
    made = [
        PulsarLogClient(replace(setup.access, **keys), call_timeout_seconds=30.0)  # type: ignore[arg-type]
        for keys in (
            writes,
            {"encryption_private_key_file": str(pair.private)},
            {},
            {"encryption_private_key_file": str(make_pair("other").private)},
        )
    ]
    yield Applications(*made)
    for one in made:
        one.close()


def numbers(messages: Sequence[LogMessage]) -> list[tuple[bytes | None, bytes]]:
    """Keys and payloads."""
    return [(message.key, message.payload) for message in messages]


def raw_entries(access: PulsarAccess, log: str) -> list[Any]:
    """The entries of a log as they are stored."""
    path = log.replace("://", "/")
    told = requests.get(f"{access.admin_urls[0]}/admin/v2/{path}/internalStats", timeout=30).json()
    count = int(told["numberOfEntries"])
    with pulsar_client(str(access.service_url)) as client:
        reader = client.create_reader(
            log, pulsar.MessageId.earliest, **decrypting(PulsarAccess(admin_url=access.admin_url))
        )
        return [reader.read_next(10_000) for _ in range(count)]


def test_encrypted_batches_keep_to_their_buckets_and_every_key_its_order_through_a_split(
    setup: PulsarSetup, applications: Applications, servers: Servers
) -> None:
    setup.create(1, "billing")
    sent = [(f"key-{number % 40}".encode(), b"%d of %s" % (number // 40, SECRET)) for number in range(400)]
    with (
        Producer(HttpSource(servers), applications.writing, setup.topic) as producer,
        StreamConsumer(servers, applications.reading, setup.topic, "billing", "c-1") as one,
        StreamConsumer(servers, applications.reading, setup.topic, "billing", "c-2") as other,
    ):
        for number, (key, payload) in enumerate(sent):
            producer.send(payload, key)
            if number == 200:
                producer.flush()
                setup.cleave.ok("segments", "split", setup.topic, "0")
        producer.flush()
        found: list[tuple[bytes | None, bytes]] = []

        def complete() -> bool:
            for consumer in (one, other):
                batch = consumer.receive(0.05)
                if batch is not None:
                    found.extend(numbers(batch.messages))
                    assert consumer.acknowledge(batch)
            return len(found) >= len(sent)

        wait_until(complete, timeout_seconds=60, message="all are read")

    for key in {key for key, _ in sent}:
        assert [row for row in found if row[0] == key] == [row for row in sent if row[0] == key]
    for segment in setup.layout.active:
        entries = raw_entries(setup.access, setup.log_of(segment.segment_id))
        assert 0 < len(entries) < 200, "messages go in batches"
        assert not any(SECRET in entry.data() for entry in entries), "and unreadable"
        for entry in entries:
            bucket = entry.ordering_key().split(".")[0].split("-")
            slot = key_hash(entry.ordering_key().encode()).bucket_hash
            assert int(bucket[0], 16) <= slot <= int(bucket[1], 16), "which bucket it is of anybody can see"


@pytest.mark.parametrize("client", ["without_key", "with_another_key"])
@pytest.mark.parametrize("bucket", [None, HIGH], ids=["whole", "bucket"])
def test_who_has_no_key_reads_up_to_there_and_acknowledges_nothing_beyond(
    setup: PulsarSetup, applications: Applications, client: str, bucket: Any
) -> None:
    setup.create(1, "billing")
    log, hashed = setup.log_of(0), HIGH.start
    clear, secret = OutgoingMessage(b"clear", b"k", hashed), OutgoingMessage(SECRET, b"k", hashed)
    applications.without_key.append(log, [clear], producer="p", sequence=1, bucket=bucket)
    applications.writing.append(log, [secret, secret], producer="q", sequence=1, bucket=bucket)
    applications.without_key.append(log, [clear], producer="p", sequence=2, bucket=bucket)
    blind: PulsarLogClient = getattr(applications, client)

    reader = blind.open_reader(
        log, "billing", owner="a", live_owners=(), on_arrival=lambda: None, bucket=bucket
    )
    before: list[LogMessage] = []

    def raises() -> bool:
        try:
            before.extend(reader.read(10))
        except Terminal:
            return True
        return False

    wait_until(raises, message="the reader says what it cannot read")
    assert [message.payload for message in before] == [b"clear"]
    reader.acknowledge(before[-1].position)
    with pytest.raises(Terminal, match=CANNOT_DECRYPT):
        reader.read(10)
    reader.close()

    after: list[LogMessage] = []
    reader = applications.reading.open_reader(
        log, "billing", owner="a", live_owners=(), on_arrival=lambda: None, bucket=bucket
    )
    wait_until(lambda: after.extend(reader.read(10)) or len(after) >= 3, message="the rest is read")  # type: ignore[func-returns-value]
    assert [message.payload for message in after] == [SECRET, SECRET, b"clear"]


def test_consumers_of_every_kind_raise_it_and_lose_nothing(
    setup: PulsarSetup, applications: Applications, servers: Servers
) -> None:
    setup.create(1, "billing")
    setup.cleave.ok("subscriptions", "create", setup.topic, "shared", "--kind", "queue")
    with Producer(HttpSource(servers), applications.writing, setup.topic) as producer:
        producer.send(SECRET, "k")
    blind, reading = applications.without_key, applications.reading
    with StreamConsumer(servers, blind, setup.topic, "billing", "c") as stream:
        with pytest.raises(Terminal, match=CANNOT_DECRYPT):
            stream.receive(60.0)
        told = [one.reason for one in stream.why() if "encrypted" in one.reason]
        assert len(told) == 1, "of one bucket; the others have nothing"
    with (
        CheckpointConsumer(servers, blind, setup.topic, Start.EARLIEST) as checkpoints,
        pytest.raises(Terminal, match=CANNOT_DECRYPT),
    ):
        checkpoints.receive(60.0)
    with (
        QueueConsumer(servers, blind, setup.topic, "shared", "c") as queue,
        pytest.raises(Terminal, match=CANNOT_DECRYPT),
    ):
        queue.receive(60.0)

    with StreamConsumer(servers, reading, setup.topic, "billing", "c") as stream:
        batch = stream.receive(60.0)
        assert batch is not None
        assert numbers(batch.messages) == [(b"k", SECRET)]
    with QueueConsumer(servers, reading, setup.topic, "shared", "c") as queue:
        message = queue.receive(60.0)
        assert message is not None
        assert message.payload == SECRET


def test_with_a_key_that_is_none_nothing_goes_out_in_the_clear(
    setup: PulsarSetup, pair: KeyPair, tmp_path: Path
) -> None:
    setup.create(1)
    log, no_key = setup.log_of(0), tmp_path / "no-key.pem"
    no_key.write_text("no key")
    for file in (no_key, pair.private):
        access = replace(setup.access, encryption_key="orders-1", encryption_public_key_file=str(file))
        logs = PulsarLogClient(access, call_timeout_seconds=30.0)
        try:
            with pytest.raises(InvalidInput, match="CLEAVE_PULSAR_ENCRYPTION_PUBLIC_KEY_FILE"):
                logs.append(log, [OutgoingMessage(SECRET)], producer="p", sequence=1)
        finally:
            logs.close()
    assert raw_entries(setup.access, log) == []


def test_a_namespace_that_requires_encryption_is_told_of_and_takes_encrypted_messages(
    setup: PulsarSetup, applications: Applications, pair: KeyPair
) -> None:
    setup.create(1, "billing")
    path = f"{setup.access.admin_urls[0]}/admin/v2/namespaces/{setup.namespace}/encryptionRequired"
    assert requests.post(path, json=True, timeout=30).ok
    told = setup.cleave("doctor", "--namespace", setup.namespace)
    assert "producers that send in the clear are refused" in told.out

    encrypting = replace(setup.access, encryption_key="orders-1", encryption_public_key_file=str(pair.public))
    look = Namespaces(encrypting)
    try:
        assert not [one for one in look.check(setup.namespace) if "encryption" in one.demand.name]
    finally:
        look.close()
    sent = applications.writing.append(setup.log_of(0), [OutgoingMessage(SECRET)], producer="p", sequence=1)
    assert sent == 1
