"""Reading one entry bucket of a topic, beside readers of its other buckets: a Key_Shared consumer with a sticky range.

It differs from a reader that has the topic to itself in four ways. Messages are acknowledged one by one, or a whole
entry at once, since the other buckets' lie in between. Entries of different slots may come out of order, when strangers
produce too; what was not handed out yet is put in its place, and what would come too late ends the reading. What belongs
to another bucket (see `belonging`) is neither handed out nor acknowledged. The broker gives it to nobody but the reader of
these slots, so the segment does not end until somebody reads it as a whole, or moves the subscription behind it. And the broker can cut
off nobody alone, so a reader that closes makes sure that it is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pulsar

from controller import client_metrics, telemetry
from controller.dataplane.base import Position
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.belonging import Belonging
from controller.dataplane.pulsar.messages import ends_its_entry
from controller.dataplane.pulsar.reader import PulsarReader
from controller.dataplane.pulsar.runs import Entry, Run
from controller.domain.errors import CleaveError, NotFound
from controller.domain.hash_range import HashRange

log = telemetry.get_logger(__name__)

BUCKET_PREFETCH_MESSAGES = 1000
"""As `PREFETCH_MESSAGES`. A process reads many buckets, and each has permits of its own."""
_LOOK_SECONDS = 0.02


class BucketReader(PulsarReader):
    """A `LogReader` of `bucket`; `PulsarLogClient.open_reader` makes it."""

    def __init__(self, *arguments: Any, bucket: HashRange, **named: Any) -> None:
        super().__init__(*arguments, bucket=bucket, **named)
        self._bounds = bucket
        self._in_parts: set[Entry] = set()  # entries that must not be acknowledged as a whole
        self._belonging = Belonging(bucket)

    def close(self) -> None:
        """Let go of the bucket. Returns when the broker's statistics show that this consumer is gone, or when the call's
        time is over.
        """
        deadline = self._cursors.deadline()
        super().close()
        if self._is_attached:
            self._see_gone(deadline)

    def _to_hand_out(self, run: Run) -> Iterable[Run]:
        ours, others = self._belonging.sort(run)
        for one in others:
            self._hold_back(one)
        return ours

    def _put_in_place(self, found: Run) -> bool:
        """Among those that are not handed out."""
        if found.first <= self._read or not self._arrived.insert(found):
            return False
        self._in_parts.add(found.entry)
        return True

    def _hold_back(self, run: Run) -> None:
        self._in_parts.add(run.entry)
        is_first = self.misplaced == 0
        self.misplaced += len(run)
        client_metrics.MISPLACED_MESSAGES.inc(len(run))
        if is_first:
            log.warning(
                "an entry holds messages of another bucket; they stay unacknowledged, so the segment does not end. Have their "
                "producer batch by key; read the segment as a whole, or seek the subscription behind them",
                backing_topic=self._backing_topic,
                subscription=self._subscription,
                bucket=str(self._bounds),
                entry=f"{run.entry[0]}:{run.entry[1]}",
                producer=run.messages[0].producer_name(),
            )

    def _settle(self, consumer: pulsar.Consumer, settled: Sequence[Run]) -> None:
        """An entry that is read to its end is acknowledged at once, any other message by message."""
        last = settled[-1]
        following = self._following()
        is_at_end = following is not None and following[:2] != last.entry
        in_parts = self._in_parts
        if not is_at_end and not ends_its_entry(last.last_id):
            in_parts = in_parts | {last.entry}
        whole: Entry | None = None
        for run in settled:
            if run.entry == whole:
                continue
            if run.entry in in_parts or not run.is_batched:
                for message in run.messages:
                    consumer.acknowledge(message.message_id())
            else:
                whole = run.entry
                consumer.acknowledge(pulsar.MessageId(run.last_id.partition(), *run.entry, -1))

    def _following(self) -> Position | None:
        """The first that is in hand and not acknowledged."""
        if self._unacknowledged:
            return self._unacknowledged.first
        return self._arrived.first if self._arrived else None

    def _see_gone(self, deadline: Deadline) -> None:
        patience = threading.Event()
        while True:
            try:
                found = self._cursors.attachments(self._backing_topic, self._subscription, deadline)
                if all(one.reader != self.mark for one in found.holders):
                    return
            except NotFound:
                return
            except CleaveError as error:
                log.debug("could not look", backing_topic=self._backing_topic, error=str(error))
            if not deadline.left_seconds:
                log.warning(
                    "a closed reader may still be attached",
                    backing_topic=self._backing_topic,
                    bucket=str(self._bounds),
                )
                return
            patience.wait(_LOOK_SECONDS)
