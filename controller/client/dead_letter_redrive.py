"""Puts dead letters back into their topic, as new messages for every subscription of the topic.

A batch of letters is acknowledged in the dead-letter log only after the messages are stored in the topic. If the process stops in
between, the letters of the batch are put back again; none is lost.
"""

from __future__ import annotations

from controller.client.dead_letters import reading_dead_letters
from controller.client.layout_source import LayoutSource
from controller.client.producer import Producer
from controller.dataplane.log_client import LogClient

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
    acknowledged.
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
            for letter in batch:
                # embedded logs may hold an empty key, which a producer refuses
                producer.send(letter.payload, letter.key or None, letter.message.metadata)
            producer.flush()
            reader.acknowledge(batch[-1])
            stored += len(batch)
    return stored
