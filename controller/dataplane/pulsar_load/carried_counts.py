"""Turns the counters of a page into counters that only rise: a page counts *out* by subscription, and
subscriptions may be deleted.

A broker shows the messages sent to each subscription. A subscription that is deleted or created again reduces
the sum, and no rate can be computed from a falling sum. The count of a deleted subscription is therefore
carried on, and the topic begins another series (with another source name). A collector that starts later does
not know the carried count, and finds no earlier sample under the name of the other series. Everything is in
memory only.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.dataplane.pulsar_load.metrics_page import TopicCounters


@dataclass(frozen=True, slots=True)
class Series:
    """The series of a topic on one broker: its latest counters, and the counts of deleted subscriptions."""

    counters: TopicCounters
    carried_msgs: int = 0
    carried_bytes: int = 0
    since_ms: int | None = None
    """Time at which the carried counts last grew; None if there are none."""

    def next(self, latest: TopicCounters, instant_ms: int) -> Series:
        """Return the series after `latest`, the counters that were read at `instant_ms` (milliseconds since the Unix
        epoch). This object does not change.

        If an incoming counter is lower than before (None counts as 0), the log was reloaded, and the result is a new
        series without carried counts. Otherwise, for each subscription one of whose two counts is lower than before
        (a missing subscription has 0), the subscription was deleted or created again. Its previous counts are added
        to the carried counts, and if these grew, `since_ms` becomes `instant_ms`.
        """
        previous = self.counters
        if (latest.msg_in or 0) < (previous.msg_in or 0) or (latest.byte_in or 0) < (previous.byte_in or 0):
            # the log was reloaded, here or elsewhere, so everything counts from 0 again
            return Series(latest)
        msgs, size = self.carried_msgs, self.carried_bytes
        for name, (previous_msgs, previous_bytes) in previous.out.items():
            latest_msgs, latest_bytes = latest.out.get(name, (0, 0))
            if latest_msgs < previous_msgs or latest_bytes < previous_bytes:
                msgs, size = msgs + previous_msgs, size + previous_bytes
        if (msgs, size) == (self.carried_msgs, self.carried_bytes):
            return Series(latest, msgs, size, self.since_ms)
        return Series(latest, msgs, size, instant_ms)

    @property
    def msg_out(self) -> int:
        """Number of delivered messages, over all subscriptions that the log has had."""
        return self.carried_msgs + sum(messages for messages, _ in self.counters.out.values())

    @property
    def byte_out(self) -> int:
        """Number of delivered bytes, over all subscriptions that the log has had."""
        return self.carried_bytes + sum(size for _, size in self.counters.out.values())
