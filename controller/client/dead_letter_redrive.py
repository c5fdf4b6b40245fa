"""Puts dead letters back into their topic, as new messages for every subscription of the topic.

A batch of letters is acknowledged in the dead-letter log only after the messages are stored in the topic. If the process stops in
between, the letters of the batch are put back again; none is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.client.dead_letters import DeadLetter, reading_dead_letters
from controller.client.layout_source import LayoutSource
from controller.client.producer import Producer
from controller.dataplane.log_client import LogClient
from controller.domain.errors import InvalidInput

CHUNK = 500
"""Messages that are put back before they are acknowledged; the maximum number of duplicates if the process
stops in between.
"""
PART_LIMIT = 1000
"""Maximum number of messages that one call of the action puts back; the caller repeats the call."""


def put_back(source: LayoutSource, logs: LogClient, backing_topic: str, topic: str, count: int) -> int:
    """Append up to `count` dead letters of the log `backing_topic` to the topic, the oldest first, and acknowledge them in batches
    of `CHUNK` after they are stored. Return the number of messages, which is less than `count` if no more letters arrive. Disconnects
    another reader of the log.

    Raises the errors of the data plane and of `Producer.flush`. After an error, the letters of the last batch may be stored without being
    acknowledged. Raises InvalidInput for a letter that a producer refuses, such as a letter of more than MAX_MESSAGE_BYTES that an earlier
    version stored. All earlier letters are then stored and acknowledged. The refused letter stays the first letter of the log until an
    application acknowledges the letter.
    """
    stored = 0
    with (
        reading_dead_letters(logs, backing_topic) as reader,
        Producer(source, logs, topic, name="redrive") as producer,
    ):
        while stored < count:
            batch = reader.read(min(CHUNK, count - stored))
            if not batch:
                break
            sent, refusal = _sent(producer, batch)
            producer.flush()
            if sent:
                reader.acknowledge(batch[sent - 1])
            if refusal is not None:
                position = batch[sent].message.position
                raise InvalidInput(
                    f"the dead letter at {position} in {backing_topic} cannot be put back: {refusal}; read and acknowledge it with an application (`client.dead_letters`), then redrive again"
                ) from refusal
            stored += sent
    return stored


def _sent(producer: Producer, letters: Sequence[DeadLetter]) -> tuple[int, InvalidInput | None]:
    """Send the letters up to the first one that the producer refuses. Return the number of sent letters, and the reason of
    the refusal, None if all letters were sent. Raises the other errors of `Producer.send`.
    """
    for sent, letter in enumerate(letters):
        try:
            # embedded logs may hold an empty key, which a producer refuses
            producer.send(letter.payload, letter.key or None, letter.message.metadata)
        except InvalidInput as error:
            return sent, error
    return len(letters), None
