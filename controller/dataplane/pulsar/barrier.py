"""The barrier of a gate: entries in front of a log's messages that no client shows to an application.

Each entry is an empty message, encrypted with a key that nobody has: the private half was never stored. By default a client can then neither
show nor acknowledge the entry (`ConsumerCryptoFailureAction.FAIL`). Brokers and the admin API tell such an entry by its producer's name and
its encryption. Cleave's own readers show undecryptable entries to their callers, so they acknowledge a barrier instead.

One entry would do if a broker kept to the rate of the gate. A broker (seen with 4.2.4) that has sent an entry counts it with a number that
another topic's dispatch on the same thread may just have set to 0, and then sends one entry more: in 1 of 300 to 500 loads on a busy broker.
For a message to pass, that has to happen after each entry of the barrier in turn.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat, takewhile
from typing import TYPE_CHECKING, Any

from controller.dataplane.pulsar.admin import AdminCalls, Answer, Deadline
from controller.dataplane.pulsar.stored import entry_ask, place_told, places_forwards
from controller.domain.pulsar_names import full_name

if TYPE_CHECKING:
    import pulsar

    from controller.dataplane.pulsar.binary import Connections

BARRIER = "cleave.barrier"
"""Name of the barrier's producer, and of the key that the barrier is encrypted with."""
ENTRIES = 8
"""Entries of a barrier."""
MOST_ENTRIES = 4 * ENTRIES
"""Entries that a barrier may have. Without deduplication a repeated call, or a broker that crashes, may store entries twice."""
_PRODUCER, _ENCRYPTED = "X-Pulsar-producer-name", "X-Pulsar-Is-Encrypted"
_FIRST_SEQUENCE = 1
"""Number of the first entry in its producer's sequence. A broker that deduplicates drops another entry of the same number."""
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
    """Places (ledger, entry) of the first and the last entry, and how many entries there are."""

    first: tuple[int, int]
    last: tuple[int, int]
    entries: int


def is_barrier(message: pulsar.Message) -> bool:
    """Return True if the message, read without a key for it, is part of a barrier."""
    return bool(message.producer_name() == BARRIER) and message.encryption_context() is not None


def barrier_of(
    admin: AdminCalls, backing_topic: str, internal: Mapping[str, Any], deadline: Deadline
) -> Barrier | None:
    """Return the barrier that the topic begins with; None if the first entry is not part of one.

    `internal` is the topic's internal statistics. A message is read at most twice: answers bring whole entries.
    """
    places = islice(places_forwards(internal), MOST_ENTRIES)
    found: list[tuple[int, int]] = []
    for size in chain((1, ENTRIES - 1), repeat(1)):
        wave = list(islice(places, size))
        answers = admin.demand_all([entry_ask(backing_topic, place) for place in wave], deadline)
        ours = list(takewhile(lambda one: _is_stored_barrier(one[1]), zip(wave, answers, strict=True)))
        found += [place for place, _ in ours]
        if len(ours) < size:
            break
    return Barrier(found[0], found[-1], len(found)) if found else None


def holds_nothing_else(internal: Mapping[str, Any], barrier: Barrier) -> bool:
    """Return True if the topic with these internal statistics shows no trace of a message behind the barrier."""
    marks = [place_told(one["markDeletePosition"]) for one in internal["cursors"].values()]
    producers = {name for one in internal["cursors"].values() for name in one.get("properties") or ()}
    return (
        place_told(internal["lastConfirmedEntry"]) == barrier.last
        and max(internal["numberOfEntries"], internal["entriesAddedCounter"]) == barrier.entries
        # A load may move a mark to the beginning of a new ledger.
        and all(mark <= barrier.last or mark[1] < 0 for mark in marks)
        and producers <= {BARRIER}
    )


def _is_stored_barrier(answer: Answer) -> bool:
    return answer.headers.get(_PRODUCER) == BARRIER and answer.headers.get(_ENCRYPTED) == "true"


@contextlib.contextmanager
def unreadably_encrypting() -> Iterator[Mapping[str, Any]]:
    """Arguments of a producer that encrypts with the key that nobody has. A namespace that requires encryption admits the producer."""
    import pulsar

    with tempfile.NamedTemporaryFile("w", suffix=".pem") as key:  # the library reads a key from a file
        key.write(_PUBLIC_KEY)
        key.flush()
        yield {"encryption_key": BARRIER, "crypto_key_reader": pulsar.CryptoKeyReader(key.name, "")}


def append_barrier(connections: Connections, backing_topic: str, deadline: Deadline) -> None:
    """Append a barrier to the topic. Raises SegmentTerminated, SegmentNotFound, DataPlaneUnavailable."""
    import pulsar

    from controller.dataplane.pulsar.binary import mapped, mapped_result

    act, topic = f"append a barrier to {backing_topic}", full_name(backing_topic)
    results: list[pulsar.Result] = []

    def append(client: pulsar.Client) -> pulsar.Producer:
        with unreadably_encrypting() as encrypting:
            producer = client.create_producer(
                topic,
                producer_name=BARRIER,
                send_timeout_millis=max(1, int(deadline.left_seconds * 1000)),
                **encrypting,
            )
            with contextlib.suppress(pulsar.PulsarException):  # `results` tells
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
    failed = [one for one in results if one != pulsar.Result.Ok]
    if failed or len(results) < ENTRIES:
        raise mapped_result(failed[0] if failed else pulsar.Result.Timeout, act)
