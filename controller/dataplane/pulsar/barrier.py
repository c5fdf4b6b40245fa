"""The barrier of a gate: entries in front of a log's messages that no client shows to an application.

Each entry is an empty message, encrypted with a public key whose private key was never stored, so no client can decrypt
the entry. By default a client neither shows nor acknowledges such an entry (`ConsumerCryptoFailureAction.FAIL`). The
admin API reports the producer's name and the encryption of an entry; this module recognizes a barrier by both. Cleave's
own readers recognize a barrier as well, and acknowledge it.

One entry would suffice if brokers observed the rate of the gate exactly. A busy broker (seen with 4.2.4) exceeds the
rate in 1 of 300 to 500 loads of a topic: it counts a sent entry with a number that the dispatch of another topic, on the
same thread, may just have set to 0, and then sends one more entry. A message of an application passes only if this
happens after each entry of the barrier in turn.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat, takewhile
from typing import TYPE_CHECKING, Any

from controller.dataplane.pulsar.admin import AdminCalls, Answer, Deadline
from controller.dataplane.pulsar.stored_entries import entry_ask, last_stored, place_told, places_forwards
from controller.domain.pulsar_names import full_name

if TYPE_CHECKING:
    import pulsar

    from controller.dataplane.pulsar.binary import Connections

BARRIER = "cleave.barrier"
"""Name of the barrier's producer, and of the key with which the barrier is encrypted."""
ENTRIES = 8
"""Number of entries of a barrier."""
MOST_ENTRIES = 4 * ENTRIES
"""Maximum number of entries that count as the barrier. Without deduplication, a repeated call or a crash of the broker may
store entries twice.
"""
_PRODUCER, _ENCRYPTED = "X-Pulsar-producer-name", "X-Pulsar-Is-Encrypted"
_FIRST_SEQUENCE = 1
"""Sequence number of the first entry. A broker that deduplicates drops a second entry with the same number."""
_PUBLIC_KEY = """-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA0ZcVJoIRlRmGTnAXow60
dpJBgQ/YyiPalXE5Mt4LFkA5WRhMiGxf69tDR8+RlAEL2vIbcYT+yVPmTNKoRvZh
nppOR9UzYvhHxIFQUu4ZIWZL/XdEnusU5bahBKIRMtA9EXhi+6R24xdviMyAJUVq
41hJkBGIWImWIqXvCJzaey0xkCK+P3mOSzzPR5gwhENRnG2ZEV0zRooIxFjVieUm
ShPF+7nrnDe+vLDCGNWvqmgiteihck3PiGiJtGP98vJVzFJaJHBhHcKBzQ8Bfiml
0c07NR2agur/r0iNEcCciYUJL1q+ZPaHokAeDZDj1Os7j8M3T9Eyud+oXsMJwc9D
WwIDAQAB
-----END PUBLIC KEY-----
"""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Places (ledger, entry) of the first and the last entry of a barrier, and the number of entries."""

    first: tuple[int, int]
    last: tuple[int, int]
    entries: int


def is_barrier(message: pulsar.Message) -> bool:
    """Return True if the message is part of a barrier. The message must have been read without decryption."""
    return bool(message.producer_name() == BARRIER) and message.encryption_context() is not None


def barrier_of(
    admin: AdminCalls, backing_topic: str, internal: Mapping[str, Any], deadline: Deadline
) -> Barrier | None:
    """Return the barrier with which the topic begins: the first stored entry and the entries that follow it directly,
    as far as they belong to a barrier, at most `MOST_ENTRIES`. None if no entry is stored, or if the first stored
    entry does not belong to a barrier. The barrier may be incomplete (fewer than `ENTRIES` entries).

    `internal` contains the topic's internal statistics. Each response contains a whole entry. The function therefore
    reads one entry, then the rest of a barrier, then single entries, so that it usually reads at most one message of
    an application. Raises DataPlaneTimeout at the deadline, and the other errors of `AdminCalls.ask`.
    """
    places = islice(places_forwards(internal), MOST_ENTRIES)
    entries: list[tuple[int, int]] = []
    for size in chain((1, ENTRIES - 1), repeat(1)):
        wave = list(islice(places, size))
        answers = admin.demand_all([entry_ask(backing_topic, place) for place in wave], deadline)
        ours = list(takewhile(lambda read: _is_stored_barrier(read[1]), zip(wave, answers, strict=True)))
        entries += [place for place, _ in ours]
        if len(ours) < size:
            break
    return Barrier(entries[0], entries[-1], len(entries)) if entries else None


def holds_nothing_else(internal: Mapping[str, Any], barrier: Barrier) -> bool:
    """Return True if the topic's internal statistics show no trace of a message of an application: the barrier's last entry is
    the topic's last, no more entries than the barrier's are stored or were added since the broker loaded the topic, no cursor
    has acknowledged an entry after the barrier, and no cursor has a property (a producer, for deduplication) other than the
    barrier's producer.
    """
    cursors = internal["cursors"].values()
    marks = [place_told(cursor["markDeletePosition"]) for cursor in cursors]
    # The deduplication cursor has a property for each producer.
    producers = {name for cursor in cursors for name in cursor.get("properties") or ()}
    return (
        last_stored(internal) == barrier.last
        and max(internal["numberOfEntries"], internal["entriesAddedCounter"]) == barrier.entries
        # A load of the topic may move a mark to the beginning of a new ledger, whose entry is -1.
        and all(mark <= barrier.last or mark[1] < 0 for mark in marks)
        and producers <= {BARRIER}
    )


def _is_stored_barrier(answer: Answer) -> bool:
    """Return True if the response to the read of an entry shows an entry of a barrier."""
    return answer.headers.get(_PRODUCER) == BARRIER and answer.headers.get(_ENCRYPTED) == "true"


@contextlib.contextmanager
def unreadably_encrypting() -> Iterator[Mapping[str, Any]]:
    """Provide the arguments of `create_producer` for a producer whose messages no client can decrypt. The producer must be
    created within the block.

    A namespace that requires encryption admits such a producer.
    """
    import pulsar

    with tempfile.NamedTemporaryFile("w", suffix=".pem") as key:  # the library reads the key from a file
        key.write(_PUBLIC_KEY)
        key.flush()
        yield {"encryption_key": BARRIER, "crypto_key_reader": pulsar.CryptoKeyReader(key.name, "")}


def append_barrier(connections: Connections, backing_topic: str, deadline: Deadline) -> None:
    """Append a barrier of `ENTRIES` entries to the topic, behind the topic's present entries, and wait until all
    entries of the barrier are stored. A broker that deduplicates stores only the entries that earlier calls did not
    store; any other broker stores them all again.

    Raises SegmentTerminated; SegmentNotFound; DataPlaneUnavailable; DataPlaneTimeout at the deadline; and other
    errors of the library as Cleave's. After an error, a part of the barrier may be stored.
    """
    import pulsar

    from controller.dataplane.pulsar.library_errors import mapped, mapped_result

    act, topic = f"append a barrier to {backing_topic}", full_name(backing_topic)
    results: list[pulsar.Result] = []

    def append(client: pulsar.Client) -> pulsar.Producer:
        """Send the entries, wait for their results, and return the open producer. Errors of entries are in `results`."""
        with unreadably_encrypting() as encrypting:
            producer = client.create_producer(
                topic,
                producer_name=BARRIER,
                send_timeout_millis=max(1, int(deadline.left_seconds * 1000)),
                **encrypting,
            )
            with contextlib.suppress(pulsar.PulsarException):  # `results` has the errors
                for number in range(ENTRIES):
                    producer.send_async(
                        b"", lambda result, _: results.append(result), sequence_id=_FIRST_SEQUENCE + number
                    )
                producer.flush()
            return producer

    try:
        connections.close_aside(connections.open(act, deadline, append))
    except pulsar.PulsarException as error:
        raise mapped(error, act) from error
    failed = [result for result in results if result != pulsar.Result.Ok]
    if failed or len(results) < ENTRIES:
        raise mapped_result(failed[0] if failed else pulsar.Result.Timeout, act)
