"""Reads one entry bucket of a topic, in parallel to readers of its other buckets: a Key_Shared consumer with
a sticky range.

The reader differs from a reader of a whole topic in four ways.

- It acknowledges single messages, or a whole entry at once, because messages of other buckets lie in between.
- Entries of different slots may arrive out of order if other programs produce too. The reader puts
  undelivered messages in their place, and ends if a message arrives too late.
- A message of another bucket (`bucket_filter`) is neither delivered nor acknowledged. The broker delivers it only
  to the reader of these slots, so the segment is not drained until a reader reads the whole segment, or the
  subscription is moved behind the message.
- The broker cannot disconnect a single consumer, so a reader that closes makes sure that it is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pulsar

from controller import client_metrics, telemetry
from controller.dataplane.log_client import Position
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.bucket_filter import BucketFilter
from controller.dataplane.pulsar.message_runs import Entry, Run
from controller.dataplane.pulsar.messages import ends_its_entry
from controller.dataplane.pulsar.reader import PulsarReader
from controller.domain.errors import CleaveError, NotFound
from controller.domain.hash_range import HashRange

log = telemetry.get_logger(__name__)

BUCKET_PREFETCH_MESSAGES = 1000
"""Number of messages that are prefetched, like `PREFETCH_MESSAGES`. A process reads many buckets, and each
has its own permits.
"""
_POLL_SECONDS = 0.02


class BucketReader(PulsarReader):
    """A `LogReader` of `bucket`, the only reader of this bucket of a topic for a subscription. Created by
    `PulsarLogClient.open_reader`.
    """

    def __init__(self, *arguments: Any, bucket: HashRange, **named: Any) -> None:
        """Create a reader of `bucket` without a connection. The other arguments are those of `PulsarReader`."""
        super().__init__(*arguments, bucket=bucket, **named)
        self._bounds = bucket
        self._in_parts: set[Entry] = set()  # entries that must not be acknowledged as a whole
        self._filter = BucketFilter(bucket)

    def close(self) -> None:
        """Release the bucket, and wait until the broker's statistics no longer show this consumer. If they still do
        when the call's time is over, a warning is logged, and the method returns. A reader that was never attached
        returns at once. Unacknowledged messages are delivered to the bucket's next reader. Errors of the requests are
        not raised.
        """
        deadline = self._cursors.deadline()
        super().close()
        if self._is_attached:
            self._wait_until_gone(deadline)

    def _runs_to_deliver(self, run: Run) -> Iterable[Run]:
        """Return the parts of the run that belong to the bucket. Count the other parts in `misplaced`."""
        own_runs, foreign_runs = self._filter.sort(run)
        for foreign_run in foreign_runs:
            self._hold_back(foreign_run)
        return own_runs

    def _put_in_place(self, run: Run) -> bool:
        """Insert a run among those that are not delivered, and return True. The messages of its entry will be
        acknowledged one by one.

        Return False, and insert nothing, if the run's first message or a later one was delivered already, or
        if a part of the run waits for delivery.
        """
        if run.first <= self._read or not self._arrived.insert(run):
            return False
        self._in_parts.add(run.entry)
        return True

    def _hold_back(self, run: Run) -> None:
        """Count the messages of the run, which belong to another bucket, in `misplaced`; they stay unacknowledged,
        and their entry is never acknowledged as a whole. The first time in this reader, log a warning.
        """
        self._in_parts.add(run.entry)
        is_first = self.misplaced == 0
        self.misplaced += len(run)
        client_metrics.MISPLACED_MESSAGES.inc(len(run))
        if is_first:
            log.warning(
                "entry contains messages of another bucket; they stay unacknowledged, so the segment is not drained. Make their "
                "producer batch by key; read the whole segment, or seek the subscription behind the messages",
                backing_topic=self._backing_topic,
                subscription=self._subscription,
                bucket=str(self._bounds),
                entry=f"{run.entry[0]}:{run.entry[1]}",
                producer=run.messages[0].producer_name(),
            )

    def _settle(self, consumer: pulsar.Consumer, settled: Sequence[Run]) -> None:
        """Acknowledge the runs at the broker. There must be at least one run, and the runs must be in the order of
        their positions.

        A batch of which all messages have been read is acknowledged as a whole; other messages are acknowledged one
        by one. An entry that contains a message of another bucket, or that arrived in parts, is never acknowledged as
        a whole. Raises the errors of the library.
        """
        last = settled[-1]
        following = self._following()
        is_at_end = following is not None and following[:2] != last.entry
        in_parts = self._in_parts
        if not is_at_end and not ends_its_entry(last.last_id):
            in_parts = in_parts | {last.entry}
        settled_entry: Entry | None = None
        for run in settled:
            if run.entry == settled_entry:
                continue
            if run.entry in in_parts or not run.is_batched:
                for message in run.messages:
                    consumer.acknowledge(message.message_id())
            else:
                settled_entry = run.entry
                consumer.acknowledge(pulsar.MessageId(run.last_id.partition(), *run.entry, -1))

    def _following(self) -> Position | None:
        """Return the position of the first received message that is not acknowledged; None if there is none."""
        if self._unacknowledged:
            return self._unacknowledged.first
        return self._arrived.first if self._arrived else None

    def _wait_until_gone(self, deadline: Deadline) -> None:
        """Request the statistics repeatedly until they no longer show this consumer, or the subscription or the topic
        is missing. A request that fails otherwise counts as still attached. At the deadline, log a warning and
        return. Raises nothing.
        """
        pause = threading.Event()
        while True:
            try:
                attached = self._cursors.attachments(self._backing_topic, self._subscription, deadline)
                if all(holder.reader != self.mark for holder in attached.holders):
                    return
            except NotFound:
                return
            except CleaveError as error:
                log.debug(
                    "cannot check the attached readers", backing_topic=self._backing_topic, error=str(error)
                )
            if not deadline.left_seconds:
                log.warning(
                    "closed reader may still be attached",
                    backing_topic=self._backing_topic,
                    bucket=str(self._bounds),
                )
                return
            pause.wait(_POLL_SECONDS)
