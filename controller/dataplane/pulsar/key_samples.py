"""Samples the keys of a topic's latest messages, with a reader without a subscription, from a number of
entries before the end.

The topic's counters determine this number: messages per entry and bytes per message, on average since its
broker loaded the topic. A sample of large messages is therefore small, and reading takes bounded memory and
time. An encrypted batch counts as one message, with the key of its first.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import pulsar

from controller.dataplane.optional_abilities import LONGEST_KEY_BYTES, KeySample
from controller.dataplane.pulsar import topic_requests
from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.barrier import is_barrier
from controller.dataplane.pulsar.binary import Connections
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.library_errors import mapped
from controller.dataplane.pulsar.messages import ends_its_entry, key_of, position_of
from controller.dataplane.pulsar.stored_entries import NOWHERE, places_backwards
from controller.domain.errors import SegmentTerminated
from controller.domain.key_hash import key_hash
from controller.domain.pulsar_names import full_name

SAMPLE_BYTES = 16 * 1024 * 1024
"""Approximate number of bytes that are read for one sample."""
READ_AT_MOST = 4
"""Largest number of messages to read, as a multiple of the requested number, because entries near the end may
contain more than the average.
"""
IDLE_SECONDS = 1.0
"""Time without a message after which the sample is complete. The id of a message need not show that it is the
last of its entry.
"""


class _Range(NamedTuple):
    """The range to read: from the entry at `first` to the entry at `last`, keeping at most `most`
    messages.
    """

    first: tuple[int, int]
    last: tuple[int, int]
    most: int


class KeySamples:
    """Samples topics of the cluster that `access` names. Safe to share between threads. The constructor
    raises Unsupported if there is no binary address.
    """

    def __init__(self, access: PulsarAccess, admin: AdminCalls) -> None:
        self._admin = admin
        self._connections = Connections(access, call_timeout_seconds=admin.call_timeout_seconds)

    def sample(self, backing_topic: str, most: int) -> KeySample:
        """Return the segment hashes of the keys of the latest messages of the topic, at most `most` (at least 1)
        messages, oldest first, and the number of these messages without a hash: without a key, or with a key longer
        than `LONGEST_KEY_BYTES`. The sample is smaller if messages are large, or if not all messages arrive before
        the time limit. The sample of a topic without entries is empty.

        Opens a reader on a separate client, and closes both in a background thread. Raises SegmentNotFound;
        SegmentTerminated for a terminated topic; DataPlaneTimeout if the requests are not answered or the reader does
        not open within the time limit; the other errors of `AdminCalls.ask`; and other errors of the library as
        Cleave's.
        """
        topic, deadline = full_name(backing_topic), self._admin.deadline()
        read_range = self._range_to_read(topic, most, deadline)
        if read_range is None:
            return KeySample((), 0)
        try:
            # A separate client is used, because the library closes the connection if the topic is terminated
            # meanwhile.
            client, reader = self._connections.open_alone(
                f"sample keys of {topic}",
                deadline,
                lambda client: _open(client, topic, read_range, self._connections.decrypting),
            )
            try:
                return _read(reader, read_range, deadline)
            finally:
                self._connections.close_aside(reader, client)
        except pulsar.PulsarException as error:
            raise mapped(error, f"sample keys of {topic}") from error

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _range_to_read(self, topic: str, most: int, deadline: Deadline) -> _Range | None:
        """Return the range of the topic's last entries that should hold `most` messages; at least one entry. Return
        None if the topic has no entries.

        The number of entries follows from the mean number of messages in an entry, according to the topic's counters.
        If `most` messages of the mean size exceed `SAMPLE_BYTES`, the range is computed for as many messages as fit,
        at least one. The `most` of the returned range is the number of messages for which the range was computed.

        Raises SegmentTerminated for a terminated topic; SegmentNotFound for a missing topic; DataPlaneTimeout at the
        deadline; DataPlaneUnavailable for an incomplete response; and the other errors of `AdminCalls.ask`.
        """
        purpose = f"sample keys of {topic}"
        internal = self._ask(topic_requests.internal_stats(topic), topic, deadline)
        topic_requests.demand_complete(purpose, internal)
        if internal["state"] == "Terminated":
            raise SegmentTerminated(f"{topic} is terminated; sample its successors")
        stats = self._ask(topic_requests.stats(topic, purpose), topic, deadline)
        with topic_requests.reading(purpose, stats):
            messages, size_bytes = int(stats.get("msgInCounter") or 0), int(stats.get("bytesInCounter") or 0)
        per_entry = max(1.0, messages / max(1, int(internal["entriesAddedCounter"])))
        per_message = max(1.0, size_bytes / max(1, messages))
        most = max(1, min(most, int(SAMPLE_BYTES / per_message)))
        places = list(islice(places_backwards(internal, NOWHERE), max(1, round(most / per_entry))))
        return _Range(places[-1], places[0], most) if places else None

    def _ask(self, ask: Ask, topic: str, deadline: Deadline) -> Mapping[str, Any]:
        return topic_requests.existing(ask, self._admin.ask(ask, deadline), topic)


def _open(
    client: pulsar.Client, topic: str, read_range: _Range, decrypting: Mapping[str, Any]
) -> pulsar.Reader:
    """Open a reader that begins with the first entry of the range. The reader needs no subscription."""
    return client.create_reader(
        topic,
        pulsar.MessageId(-1, *read_range.first, -1),
        start_message_id_inclusive=True,
        receiver_queue_size=min(1_000, read_range.most),
        **decrypting,
    )


def _read(reader: pulsar.Reader, read_range: _Range, deadline: Deadline) -> KeySample:
    """Return the segment hashes of the keys of the last `read_range.most` messages up to the end of the range, oldest first, and the number
    of these messages without a hash: without a key, or with a key longer than `LONGEST_KEY_BYTES`.

    Stops at the deadline, after `READ_AT_MOST` times that number of messages, or after `IDLE_SECONDS` without
    a message. Entries of barriers do not count.
    """
    keys: deque[bytes | None] = deque(maxlen=read_range.most)
    longest_wait_seconds = deadline.left_seconds
    with contextlib.suppress(pulsar.Timeout):
        for _ in range(READ_AT_MOST * read_range.most):
            wait_seconds = min(longest_wait_seconds, deadline.left_seconds)
            message = reader.read_next(timeout_millis=max(1, int(wait_seconds * 1000)))
            message_id = message.message_id()
            place = position_of(message_id)[:2]
            if place > read_range.last:
                break
            if not is_barrier(message):
                keys.append(key_of(message, message.properties()))
            if place == read_range.last and (message_id.batch_index() < 0 or ends_its_entry(message_id)):
                break
            longest_wait_seconds = IDLE_SECONDS
    hashes = tuple(
        key_hash(key).segment_hash for key in keys if key is not None and len(key) <= LONGEST_KEY_BYTES
    )
    return KeySample(hashes, len(keys) - len(hashes))
