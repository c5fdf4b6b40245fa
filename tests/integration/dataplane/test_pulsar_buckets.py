"""Entry buckets on a real broker that knows nothing of them: several readers of one segment, and who takes over from whom."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psutil
import pulsar
import pytest
import requests

from controller.dataplane.log_client import LogMessage, LogReader, OutgoingMessage
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.bucket_reader import BucketReader
from controller.dataplane.pulsar.bucket_slots import HASHES, ordering_key
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.domain.errors import CleaveError, FencedOut, LostRace, Unsupported
from controller.domain.hash_range import FULL_RANGE, HashRange
from controller.domain.key_hash import key_hash
from tests.support.brokers import SharedBroker, pulsar_client
from tests.support.pulsar_namespaces import make_namespace
from tests.support.waiting import wait_until

LOW, HIGH = FULL_RANGE.halves()
HOLDER = """
import sys
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.domain.hash_range import HashRange
admin_url, service_url, log, bucket = sys.argv[1:]
logs = PulsarLogClient(PulsarAccess(admin_url=admin_url, service_url=service_url))
reader = logs.open_reader(
    log, "s", owner="dead", live_owners=(), on_arrival=lambda: None, bucket=HashRange.parse(bucket)
)
print("attached", flush=True)
sys.stdin.read()
"""


@dataclass
class Segment:
    """One topic with the subscription `s`, and clients of it; each stands for a process."""

    access: PulsarAccess
    plane: PulsarDataPlane
    log: str
    clients: list[PulsarLogClient] = field(default_factory=list)
    sequence: int = 0

    def client(self, **settings: float) -> PulsarLogClient:
        """A client, closed at the end of the test."""
        self.clients.append(PulsarLogClient(self.access, call_timeout_seconds=30.0, **settings))  # type: ignore[arg-type]
        return self.clients[-1]

    def send(self, logs: PulsarLogClient, bucket: HashRange, *payloads: bytes) -> None:
        """One batch of messages without a key."""
        self.sequence += 1
        batch = [OutgoingMessage(payload, bucket_hash=bucket.start) for payload in payloads]
        logs.append(self.log, batch, producer="p", sequence=self.sequence, bucket=bucket)

    def reader(
        self,
        logs: PulsarLogClient,
        bucket: HashRange | None,
        owner: str = "a",
        live: tuple[str, ...] = ("a", "b"),
        on_arrival: Callable[[], None] = lambda: None,
    ) -> LogReader:
        """Open one; the client closes it."""
        return logs.open_reader(
            self.log, "s", owner=owner, live_owners=live, on_arrival=on_arrival, bucket=bucket
        )

    def entries(self) -> int:
        """How many are stored."""
        path = self.log.replace("://", "/")
        answer = requests.get(f"{self.access.admin_urls[0]}/admin/v2/{path}/internalStats", timeout=30)
        return int(answer.json()["numberOfEntries"])

    def settles_at(self, backlog: int) -> None:
        """What is not acknowledged becomes so many messages."""
        wait_until(lambda: self.plane.backlog(self.log, "s") == backlog, message=f"a backlog of {backlog}")


@pytest.fixture(scope="module")
def namespace(pulsar_broker: SharedBroker) -> str:
    """Set as `cleave doctor --fix` sets it, deduplication included."""
    access = PulsarAccess(admin_url=pulsar_broker.admin_url, service_url=pulsar_broker.service_url)
    return make_namespace(access, f"buckets-{secrets.token_hex(4)}")


@pytest.fixture
def segment(pulsar_broker: SharedBroker, namespace: str) -> Iterator[Segment]:
    """See `Segment`."""
    access = PulsarAccess(admin_url=pulsar_broker.admin_url, service_url=pulsar_broker.service_url)
    plane = PulsarDataPlane(access, call_timeout_seconds=30.0)
    log = f"persistent://{namespace}/{secrets.token_hex(4)}"
    plane.create_segment(log, ["s"])
    segment = Segment(access, plane, log)
    yield segment
    for client in segment.clients:
        client.close()
    plane.close()


def read(reader: LogReader, count: int) -> list[LogMessage]:
    """The next `count` messages, waiting for their arrival."""
    found: list[LogMessage] = []

    def complete() -> bool:
        found.extend(reader.read(count - len(found)))
        return len(found) == count

    wait_until(complete, message=f"{count} messages")
    return found


def payloads(messages: list[LogMessage]) -> list[bytes]:
    return [message.payload for message in messages]


def ends(act: Callable[[], object], kind: type[CleaveError]) -> str:
    """What the error says that `act` raises before long."""

    def fails() -> str:
        try:
            act()
        except kind as raised:
            return str(raised)
        return ""

    return wait_until(fails, message=kind.__name__)


def opened(open_it: Callable[[], LogReader]) -> LogReader:
    """The reader, as soon as what is in its way is gone."""

    def tried() -> LogReader | None:
        try:
            return open_it()
        except LostRace:
            return None

    return wait_until(tried, timeout_seconds=60, message="the reader")  # type: ignore[return-value]


def test_three_owners_of_sixteen_buckets_read_every_message_once_and_every_key_in_order(
    segment: Segment,
) -> None:
    """20,000 messages of 2,000 keys, one batch repeated, and a stranger's producer that knows no buckets."""
    buckets = FULL_RANGE.divide(16)
    keys = {f"key-{number}".encode(): key_hash(f"key-{number}").bucket_hash for number in range(2000)}
    writer, rounds, strangers = segment.client(), 10, 200
    readers = [
        (bucket, segment.reader(client, bucket, owner))
        for index, owner in enumerate(("a", "b", "c"))
        for client in [segment.client()]
        for bucket in buckets[index::3]
    ]
    batches = [
        (
            bucket,
            number,
            [OutgoingMessage(b"%d" % number, key) for key, mine in keys.items() if bucket.contains(mine)],
        )
        for number in range(rounds)
        for bucket in buckets
    ]
    for bucket, number, batch in batches:
        assert writer.append(segment.log, batch, producer="p", sequence=number, bucket=bucket) == len(batch)
    writer.close()
    repeater = segment.client()
    for bucket, number, batch in batches[-3:]:
        repeater.append(segment.log, batch, producer="p", sequence=number, bucket=bucket)
    with pulsar_client(segment.access.service_url or "") as client:
        producer = client.create_producer(segment.log)
        for number in range(strangers):
            producer.send(b"%d" % (number // 20), partition_key=f"stranger-{number % 20}")

    found: dict[bytes, list[int]] = {}
    got = 0

    def complete() -> bool:
        nonlocal got
        for bucket, reader in readers:
            messages = reader.read(1000)
            for message in messages:
                assert message.key is not None
                assert bucket.contains(key_hash(message.key).bucket_hash), "a stranger's too"
                found.setdefault(message.key, []).append(int(message.payload))
            if messages:
                got += len(messages)
                reader.acknowledge(messages[-1].position)
        return got >= rounds * len(keys) + strangers

    wait_until(complete, timeout_seconds=60, message="all messages")
    segment.settles_at(0)
    assert found == {key: list(range(rounds)) for key in [*keys, *(b"stranger-%d" % i for i in range(20))]}
    assert segment.entries() == rounds * len(buckets) + strangers
    assert not any(list(reader.read(1)) for _, reader in readers)


def test_a_bucket_changes_hands_while_its_neighbour_is_read_without_a_break(segment: Segment) -> None:
    """What the old owner acknowledged, within an entry too, does not come again; the rest does."""
    first, second, heirs = (segment.client() for _ in range(3))
    moving = segment.reader(first, LOW, "a")
    arrived = threading.Event()
    staying = segment.reader(second, HIGH, "b", on_arrival=arrived.set)
    segment.send(heirs, LOW, *(b"%d" % number for number in range(10)))
    delivered = read(moving, 6)
    moving.acknowledge(delivered[3].position)
    with pytest.raises(LostRace, match="'a'"):
        segment.reader(heirs, LOW, "b")

    moving.close()
    segment.send(heirs, HIGH, b"meanwhile")
    assert arrived.wait(30)
    assert payloads(read(staying, 1)) == [b"meanwhile"]
    heir = segment.reader(heirs, LOW, "b", live=("a", "b"))

    assert payloads(read(heir, 6)) == [b"%d" % number for number in range(4, 10)]
    segment.send(heirs, HIGH, b"still")
    assert payloads(read(staying, 1)) == [b"still"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_what_a_dead_process_held_is_claimed_while_others_read_on(
    segment: Segment, how: signal.Signals
) -> None:
    """A broker lets go of a stopped process when somebody claims its range and its connection does not answer."""
    logs = segment.client()
    staying = segment.reader(logs, HIGH, "b")
    access = segment.access
    command = [
        sys.executable,
        "-c",
        HOLDER,
        access.admin_urls[0],
        str(access.service_url),
        segment.log,
        str(LOW),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "attached\n"
            segment.send(logs, LOW, b"1", b"2")
            holder.send_signal(how)
            heir = opened(lambda: segment.reader(logs, LOW, "b", live=("b",)))
            assert payloads(read(heir, 2)) == [b"1", b"2"]
        finally:
            holder.kill()
    segment.send(logs, HIGH, b"3")
    assert payloads(read(staying, 1)) == [b"3"]


def test_a_reader_of_this_process_gives_way(segment: Segment) -> None:
    """To one of the same name, and to one that claims what a dead name held; its neighbour stays."""
    logs = segment.client()
    segment.send(logs, LOW, b"1")
    neighbour = segment.reader(logs, HIGH, "a")
    stale = segment.reader(logs, LOW, "a")
    fresh = segment.reader(logs, LOW, "a")

    assert "stale" in ends(lambda: stale.read(1), FencedOut)
    assert payloads(read(fresh, 1)) == [b"1"]
    heir = segment.reader(logs, LOW, "b", live=("b",))
    ends(lambda: fresh.read(1), LostRace)
    assert payloads(read(heir, 1)) == [b"1"]
    assert list(neighbour.read(1)) == []


def test_one_reader_of_all_and_readers_of_buckets_exclude_each_other(segment: Segment) -> None:
    logs = segment.client()
    alone = segment.reader(logs, None, "a")
    with pytest.raises(LostRace, match="'a'"):
        segment.reader(logs, LOW, "b")
    shared = segment.reader(logs, LOW, "b", live=("b",))
    ends(lambda: alone.read(1), LostRace)
    with pytest.raises(LostRace, match="'b'"):
        segment.reader(logs, None, "a")

    segment.send(logs, LOW, b"1")
    with pulsar_client(segment.access.service_url or "") as stranger:
        with pytest.raises(LostRace, match="'b'"):
            segment.reader(logs, HashRange(0, 5), "a")
        shared.close()
        stranger.subscribe(segment.log, "s", consumer_type=pulsar.ConsumerType.KeyShared)
        with pytest.raises(LostRace, match="not Cleave's"):
            segment.reader(logs, LOW, "b")
    again = segment.reader(logs, None, "a", live=("a",))
    assert payloads(read(again, 1)) == [b"1"]


def test_who_is_gone_but_answers_for_the_broker_keeps_its_bucket_until_it_ends(segment: Segment) -> None:
    """Nothing cuts off one of several. Moving the cursor would, and it would bring back what was acknowledged."""
    gone, logs = segment.client(), segment.client()
    low, high = (segment.reader(gone, bucket, "a") for bucket in (LOW, HIGH))
    segment.send(logs, LOW, b"1")
    segment.send(logs, HIGH, b"2")
    read(low, 1)
    high.acknowledge(read(high, 1)[0].position)
    segment.settles_at(1)

    for wanted in (LOW, None):
        with pytest.raises(LostRace, match=r"'a' at .* counts as gone"):
            segment.reader(logs, wanted, "b", live=("b",))

    low.close()
    assert payloads(read(segment.reader(logs, LOW, "b", live=("b",)), 1)) == [b"1"]
    assert list(high.read(1)) == []


def test_whoever_is_gone_is_cut_off_by_a_reader_of_all_where_nothing_is_undone(segment: Segment) -> None:
    gone, logs = segment.client(), segment.client()
    stale = segment.reader(gone, FULL_RANGE, "a")
    segment.send(logs, LOW, b"1")
    segment.send(logs, HIGH, b"2")
    read(stale, 2)

    heir = segment.reader(logs, None, "b", live=("b",))

    ends(lambda: stale.read(1), LostRace)
    assert payloads(read(heir, 2)) == [b"1", b"2"]


def test_a_connection_that_breaks_ends_the_reading_of_a_bucket(segment: Segment) -> None:
    """Nothing goes on silently; what was acknowledged stays so, behind what was not."""
    logs = segment.client()
    readers = [segment.reader(logs, bucket) for bucket in (LOW, HIGH)]
    for bucket in (LOW, HIGH):
        segment.send(logs, bucket, b"1")
        segment.send(logs, bucket, b"2")
    read(readers[0], 2)
    readers[1].acknowledge(read(readers[1], 2)[0].position)
    segment.settles_at(3)

    path = segment.log.replace("://", "/")
    requests.put(f"{segment.access.admin_urls[0]}/admin/v2/{path}/unload", timeout=30).raise_for_status()

    for reader in readers:
        ends(lambda reader=reader: reader.read(1), LostRace)  # type: ignore[misc]
        reader.close()
    again = [opened(lambda bucket=bucket: segment.reader(logs, bucket)) for bucket in (LOW, HIGH)]  # type: ignore[misc]
    assert payloads(read(again[0], 2)) == [b"1", b"2"]
    assert payloads(read(again[1], 1)) == [b"2"]


def test_a_bucket_of_one_hash_gets_its_own(segment: Segment) -> None:
    """So the slots are reckoned as the broker does it, to one."""
    logs, (below, above) = segment.client(), FULL_RANGE.cut(4711)
    single, above = above.cut(4712)
    readers = {bucket: segment.reader(logs, bucket) for bucket in (below, single, above)}

    for bucket in readers:
        segment.send(logs, bucket, str(bucket).encode())

    for bucket, reader in readers.items():
        assert payloads(read(reader, 1)) == [str(bucket).encode()]


def test_one_message_at_a_time(segment: Segment) -> None:
    """Nothing stands still when a reader keeps one message only."""
    logs = segment.client(bucket_prefetch_messages=1)
    readers = [segment.reader(logs, bucket) for bucket in (LOW, HIGH)]
    for bucket in (LOW, HIGH, LOW, HIGH):
        segment.send(logs, bucket, *(b"%d" % number for number in range(20)))

    for reader in readers:
        for number in [*range(20), *range(20)]:
            (message,) = read(reader, 1)
            assert message.payload == b"%d" % number
            reader.acknowledge(message.position)
    segment.settles_at(0)


def test_an_entry_that_says_it_belongs_elsewhere_is_left_for_whoever_reads_that(segment: Segment) -> None:
    logs = segment.client()
    reader = segment.reader(logs, LOW)
    with pulsar_client(segment.access.service_url or "") as client:
        producer = client.create_producer(segment.log, batching_enabled=False)
        producer.send(b"astray", ordering_key=ordering_key(LOW), properties={HASHES: "9000-9fff"})
    segment.send(logs, LOW, b"1")

    (message,) = read(reader, 1)
    assert message.payload == b"1"
    reader.acknowledge(message.position)
    segment.settles_at(1)
    assert isinstance(reader, BucketReader)
    assert reader.misplaced == 1
    reader.close()
    assert payloads(read(segment.reader(logs, None), 1)) == [b"astray"]


def test_a_stranger_s_batch_of_several_keys_gives_nobody_a_key_that_another_reads(segment: Segment) -> None:
    """The broker gives the whole of it to one reader. What lies elsewhere stays until somebody reads the topic as a whole."""
    low, high = (
        segment.reader(segment.client(), bucket, owner) for bucket, owner in ((LOW, "a"), (HIGH, "b"))
    )
    keys = {f"key-{number}": key_hash(f"key-{number}").bucket_hash for number in range(40)}
    with pulsar_client(segment.access.service_url or "") as client:
        producer = client.create_producer(
            segment.log,
            batching_enabled=True,
            batching_type=pulsar.BatchingType.Default,
            batching_max_messages=3 * len(keys),
            batching_max_publish_delay_ms=60_000,
        )
        stored: list[object] = []
        for number in range(3):
            for key in keys:
                producer.send_async(b"%d" % number, lambda *told: stored.append(told), partition_key=key)
        wait_until(lambda: len(stored) == 3 * len(keys), message="the batch is stored")
        assert segment.entries() == 1
        one_by_one = client.create_producer(segment.log, batching_enabled=False)
        for key in keys:
            one_by_one.send(b"alone", partition_key=key)

    found: dict[HashRange, list[bytes]] = {LOW: [], HIGH: []}

    def complete() -> bool:
        for bucket, reader in ((LOW, low), (HIGH, high)):
            messages = reader.read(1000)
            for message in messages:
                key = (message.key or b"").decode()
                assert bucket.contains(keys[key]), f"{key} goes to two readers"
                found[bucket].append(message.payload)
            if messages:
                reader.acknowledge(messages[-1].position)
        return sum(payload == b"alone" for some in found.values() for payload in some) == len(keys)

    wait_until(complete, message="all that came alone")
    astray = 3 * len(keys) + len(keys) - sum(map(len, found.values()))
    assert astray in {3 * sum(not bucket.contains(one) for one in keys.values()) for bucket in (LOW, HIGH)}
    assert isinstance(low, BucketReader)
    assert isinstance(high, BucketReader)
    assert low.misplaced + high.misplaced == astray
    segment.settles_at(3 * len(keys))  # a batch counts whole

    low.close()
    high.close()
    whole = segment.reader(segment.client(), None)
    left = read(whole, astray)
    assert sorted(message.payload for message in left) == sorted(b"%d" % (n % 3) for n in range(astray))
    whole.acknowledge(left[-1].position)
    segment.settles_at(0)


def test_each_entry_of_a_batch_says_where_it_belongs(segment: Segment) -> None:
    """Also of a batch of three entries. The messages have no keys that would tell."""
    logs = segment.client()
    low, high = segment.reader(logs, LOW), segment.reader(logs, HIGH)
    long = [b"%d" % number * 300_000 for number in range(8)]
    segment.send(logs, HIGH, *long)
    segment.send(logs, HIGH, b"a", b"b", b"c")
    segment.send(logs, LOW, b"low")

    assert payloads(read(high, 11)) == [*long, b"a", b"b", b"c"]
    assert payloads(read(low, 1)) == [b"low"]
    assert list(low.read(1)) == []
    with pulsar_client(segment.access.service_url or "") as client:
        everything = client.create_reader(segment.log, pulsar.MessageId.earliest)
        marked = [everything.read_next(30_000).properties().get(HASHES) for _ in range(12)]
    whole = ["8000-8000", None, None]
    assert marked == [*whole, *whole, "8000-8000", None, *whole, "0000-0000"]


def test_a_reader_that_is_passed_over_ends_and_the_next_one_goes_on(segment: Segment) -> None:
    """Here the library keeps messages to itself, which looks to the broker like messages that got lost."""
    logs = segment.client(stall_seconds=0.05)
    reader = segment.reader(logs, LOW)
    assert isinstance(reader, BucketReader)
    reader._intake = None
    assert list(reader.read(1)) == []  # nothing is there, so nothing is missed
    segment.send(logs, LOW, b"1")

    assert "delivers nothing" in ends(lambda: reader.read(1), LostRace)

    reader.close()
    assert payloads(read(segment.reader(logs, LOW), 1)) == [b"1"]


def test_the_end_is_the_end_for_all_four_readers(segment: Segment) -> None:
    """Each writes it down, which breaks the others' connections; that is no loss to anybody."""
    logs, buckets = segment.client(), FULL_RANGE.divide(4)
    readers = [segment.reader(segment.client(), bucket, f"r-{bucket}") for bucket in buckets]
    for bucket in buckets:
        segment.send(logs, bucket, b"last")
    segment.plane.terminate_segment(segment.log)
    for reader in readers[:-1]:
        reader.acknowledge(read(reader, 1)[0].position)
        assert not reader.is_drained(), "another bucket is not read to its end"
    readers[-1].acknowledge(read(readers[-1], 1)[0].position)

    with ThreadPoolExecutor(len(readers)) as threads:
        assert all(threads.map(lambda reader: wait_until(reader.is_drained), readers))
    for reader in readers:
        assert list(reader.read(1)) == []
        assert reader.is_drained()
        reader.close()
    assert segment.reader(logs, buckets[0]).is_drained()


@pytest.mark.parametrize("bucket", [None, LOW], ids=["whole", "bucket"])
def test_what_waits_when_the_topic_is_closed_is_acknowledged_afterwards(
    segment: Segment, bucket: HashRange | None
) -> None:
    """The broker's word that the topic has ended takes no acknowledgement from what is in hand, or in the library's queue."""
    logs, batches = segment.client(bucket_prefetch_messages=100, prefetch_messages=100), 12
    reader = segment.reader(logs, bucket)
    for number in range(batches):
        segment.send(logs, LOW, *(b"%d" % (50 * number + one) for one in range(50)))
    first = read(reader, 1)
    segment.plane.terminate_segment(segment.log)

    rest = read(reader, 50 * batches - 1)
    assert payloads([*first, *rest]) == [b"%d" % number for number in range(50 * batches)]
    assert not reader.is_drained(), "nothing is acknowledged"
    assert segment.plane.backlog(segment.log, "s") == 50 * batches
    reader.acknowledge(rest[-1].position)
    wait_until(reader.is_drained, message="the end")
    reader.close()

    assert segment.plane.backlog(segment.log, "s") == 0
    assert segment.reader(logs, bucket).is_drained()


def test_who_closes_behind_a_cut_is_gone_when_it_returns_and_loses_nothing(segment: Segment) -> None:
    """The acknowledgement may be on its way, which the library does not tell; the heir is told to claim at once."""
    writer, logs = segment.client(), segment.client()
    segment.send(writer, LOW, b"1", b"2")
    segment.send(writer, LOW, b"3")
    before = _sockets(segment)
    reader = segment.reader(logs, LOW)
    assert isinstance(reader, BucketReader)
    found = read(reader, 3)

    reader.acknowledge(found[1].position)
    for descriptor in _sockets(segment) - before:
        with socket.socket(fileno=os.dup(descriptor)) as cut:
            cut.shutdown(socket.SHUT_RDWR)
    reader.close()

    cursors = logs._cursors
    holders = cursors.attachments(segment.log, "s", cursors.deadline()).holders
    assert not any(one.reader == reader.mark for one in holders)
    heir = segment.reader(writer, LOW, "b")  # though "a" lives, nobody is in its way
    left = wait_until(lambda: segment.plane.backlog(segment.log, "s"))
    again = payloads(read(heir, left))
    assert again in ([b"1", b"2", b"3"], [b"3"])


def _sockets(segment: Segment) -> set[int]:
    """Descriptors of this process's connections to the broker, for messages."""
    port = int((segment.access.service_url or "").rpartition(":")[2])
    connections = psutil.Process().net_connections("tcp")
    return {one.fd for one in connections if one.raddr and one.raddr.port == port}


def test_on_an_older_broker_only_a_bucket_of_one_hash_is_refused(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What 4.0.6 does is told in ADR 9; here a new broker gives its version."""
    monkeypatch.setattr(Cursors, "version", lambda _cursors, _deadline: "4.0.6")
    logs = segment.client()

    with pytest.raises(Unsupported, match=r"4\.0\.6.*update"):
        segment.reader(logs, HashRange(4711, 4711))
    segment.send(logs, LOW, b"1")
    assert payloads(read(segment.reader(logs, LOW), 1)) == [b"1"]


@pytest.mark.parametrize("bucket", [None, LOW], ids=["the whole", "a bucket"])
def test_what_is_delivered_again_is_acknowledged_again(segment: Segment, bucket: HashRange | None) -> None:
    """The connection breaks while an acknowledgement is on its way, and the cursor is back before it. What the reading before had
    acknowledged must not keep the next one from saying so again.
    """
    logs = segment.client()
    segment.send(logs, LOW, *(b"%d" % number for number in range(10)))
    reader = segment.reader(logs, bucket)
    reader.acknowledge(read(reader, 10)[-1].position)
    segment.plane.seek(segment.log, "s", 0)
    ends(lambda: reader.read(1), LostRace)
    reader.close()

    again = opened(lambda: segment.reader(logs, bucket))
    found = read(again, 10)
    segment.settles_at(10)
    again.acknowledge(found[-1].position)

    segment.settles_at(0)


def test_a_bucket_that_nobody_claims_for_a_while_costs_no_other_a_message(segment: Segment) -> None:
    """More of it waits than the broker keeps aside for its subscription, which may stop the reading of all until it is claimed."""
    *claimed, gap = FULL_RANGE.divide(4)
    readers = {bucket: segment.reader(segment.client(), bucket, "a") for bucket in claimed}
    aside, each = 2_500 * len(claimed), 500
    with pulsar_client(segment.access.service_url or "") as client:
        flood = client.create_producer(segment.log, block_if_queue_full=True, max_pending_messages=2_000)
        for bucket, count in (
            *((one, each) for one in claimed),
            (gap, aside),
            *((one, each) for one in claimed),
        ):
            for number in range(count):
                flood.send_async(b"%d" % number, None, ordering_key=ordering_key(bucket))
        flood.flush()
    for reader in readers.values():
        assert payloads(read(reader, each)) == [b"%d" % number for number in range(each)]

    readers[gap] = segment.reader(segment.client(), gap, "b")

    found = {bucket: read(reader, aside if bucket == gap else each) for bucket, reader in readers.items()}
    for bucket, messages in found.items():
        assert payloads(messages) == [b"%d" % number for number in range(len(messages))]
        readers[bucket].acknowledge(messages[-1].position)
    segment.settles_at(0)


def disconnected_at_the_end(segment: Segment) -> LogReader:
    """Read a log of two buckets to its end. Return the reader that the other reader disconnected when it found the log drained."""
    logs = segment.client()
    segment.send(logs, LOW, b"1")
    segment.send(logs, HIGH, b"2")
    low, high = segment.reader(logs, LOW), segment.reader(logs, HIGH)
    for reader in (low, high):
        reader.acknowledge(read(reader, 1)[-1].position)
    segment.plane.terminate_segment(segment.log)
    segment.settles_at(0)
    wait_until(low.is_drained, message="the log is drained")
    wait_until(high.may_wait, message="the other reader knows that it is disconnected")
    assert high.read(1) == ()
    return high


def test_a_reader_disconnected_at_the_end_asks_the_broker_once_whether_it_has_finished(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = disconnected_at_the_end(segment)
    requests_to_broker: list[str] = []
    ask = Cursors._ask

    def counted(cursors: Cursors, log: str, what: str, deadline: Deadline) -> Mapping[str, Any]:
        requests_to_broker.append(what)
        return ask(cursors, log, what, deadline)

    monkeypatch.setattr(Cursors, "_ask", counted)
    for _ in range(5):
        assert reader.read(1) == ()
    assert requests_to_broker == []
    assert reader.is_drained()


def test_a_finished_reader_ends_when_its_cursor_is_moved_back(segment: Segment) -> None:
    reader = disconnected_at_the_end(segment)

    segment.plane.seek(segment.log, "s", 0)

    assert "moved" in ends(reader.is_drained, LostRace)


def test_the_cursor_of_an_empty_log_is_not_moved_at_its_end(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[str] = []
    monkeypatch.setattr(Cursors, "_move_behind", lambda _cursors, log, *_: moves.append(log))
    logs = segment.client()
    low, high = segment.reader(logs, LOW), segment.reader(logs, HIGH)
    segment.plane.terminate_segment(segment.log)

    wait_until(low.is_drained, message="the log is drained")

    assert high.is_drained()
    assert moves == []
