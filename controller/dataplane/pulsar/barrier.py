"""The barrier of a gate: an entry in front of a log's messages that no client shows to an application.

The barrier is an empty message, encrypted with a key that nobody has: the private half was never stored. By default a client can then neither show nor acknowledge the
entry (`ConsumerCryptoFailureAction.FAIL`). Brokers and the admin API tell the barrier by its producer's name and its encryption.
Cleave's own readers show undecryptable entries to their callers, so they acknowledge a barrier instead.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from controller.dataplane.pulsar.admin import AdminCalls, Answer, Deadline
from controller.dataplane.pulsar.stored import entry_ask, place_told, places_forwards
from controller.domain.pulsar_names import full_name

if TYPE_CHECKING:
    import pulsar

    from controller.dataplane.pulsar.binary import Connections

BARRIER = "cleave.barrier"
"""Name of the barrier's producer, and of the key that the barrier is encrypted with."""
MOST_BARRIERS = 8
"""Barriers that a log may begin with. Without deduplication a broker that crashes may store a barrier twice."""
_PRODUCER, _ENCRYPTED = "X-Pulsar-producer-name", "X-Pulsar-Is-Encrypted"
_SEQUENCE = 1
"""Number of the barrier in its producer's sequence. The broker drops another message of the number if it deduplicates."""
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


def is_barrier(message: pulsar.Message) -> bool:
    """Return True if the message, read without a key for it, is a barrier."""
    return bool(message.producer_name() == BARRIER) and message.encryption_context() is not None


def last_barrier(
    admin: AdminCalls, backing_topic: str, internal: Mapping[str, Any], deadline: Deadline
) -> tuple[int, int] | None:
    """Return (ledger, entry) of the last barrier that the topic begins with; None if the first entry is no barrier.

    `internal` is the topic's internal statistics.
    """
    found = None
    for place in islice(places_forwards(internal), MOST_BARRIERS):
        if not _is_stored_barrier(admin.ask(entry_ask(backing_topic, place), deadline)):
            break
        found = place
    return found


def holds_nothing_else(internal: Mapping[str, Any], barrier: tuple[int, int]) -> bool:
    """Return True if the topic shows no trace of a message but the barriers that it begins with, up to the place `barrier`."""
    before = [place for place in islice(places_forwards(internal), MOST_BARRIERS) if place <= barrier]
    marks = [place_told(one["markDeletePosition"]) for one in internal["cursors"].values()]
    producers = {name for one in internal["cursors"].values() for name in one.get("properties") or ()}
    return (
        place_told(internal["lastConfirmedEntry"]) == barrier
        and max(internal["numberOfEntries"], internal["entriesAddedCounter"]) == len(before)
        and all(
            mark <= barrier or mark[1] < 0 for mark in marks
        )  # a load may move a mark to the new ledger's beginning
        and producers <= {BARRIER}
    )


def _is_stored_barrier(answer: Answer) -> bool:
    return answer.headers.get(_PRODUCER) == BARRIER and answer.headers.get(_ENCRYPTED) == "true"


def append_barrier(connections: Connections, backing_topic: str, deadline: Deadline) -> None:
    """Append a barrier to the topic. Raises SegmentTerminated, SegmentNotFound, DataPlaneUnavailable."""
    import pulsar

    from controller.dataplane.pulsar.binary import mapped

    act, topic = f"append a barrier to {backing_topic}", full_name(backing_topic)

    def append(client: pulsar.Client) -> pulsar.Producer:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as key:  # the library reads a key from a file
            key.write(_PUBLIC_KEY)
            key.flush()
            producer = client.create_producer(
                topic,
                producer_name=BARRIER,
                send_timeout_millis=max(1, int(deadline.left_seconds * 1000)),
                encryption_key=BARRIER,
                crypto_key_reader=pulsar.CryptoKeyReader(key.name, ""),
            )
            try:
                producer.send(b"", sequence_id=_SEQUENCE)
            except BaseException:
                with contextlib.suppress(pulsar.PulsarException):
                    producer.close()
                raise
            return producer

    try:
        connections.close_aside(connections.open(act, deadline, append))
    except pulsar.PulsarException as error:
        raise mapped(error, act) from error
