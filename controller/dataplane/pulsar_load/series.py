"""From the counters on a page to counters that rise: a page counts *out* by subscription, and subscriptions go.

A broker shows what each subscription was sent; one that is deleted or made anew takes its share out of the sum, and a
sum that falls gives no rate. So the count of a subscription that
is gone is carried on, and the topic begins a new series (another source name). A collector that starts later does not
know of the carry, and under the new name it finds no earlier sample to compare with. All of it is in memory only.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.dataplane.pulsar_load.page import TopicCounters


@dataclass(frozen=True, slots=True)
class Series:
    """A topic on one broker: its latest counters, and what subscriptions that are gone had."""

    counters: TopicCounters
    carried_msgs: int = 0
    carried_bytes: int = 0
    since_ms: int | None = None
    """When the carry last grew; None: nothing is carried."""

    def next(self, now: TopicCounters, instant_ms: int) -> Series:
        """The series after reading `now` at that instant."""
        was = self.counters
        if (now.msg_in or 0) < (was.msg_in or 0) or (now.byte_in or 0) < (was.byte_in or 0):
            return Series(now)  # the log was loaded anew, here or elsewhere: everything counts from 0 again
        msgs, size = self.carried_msgs, self.carried_bytes
        for name, (msgs_was, bytes_was) in was.out.items():
            msgs_now, bytes_now = now.out.get(name, (0, 0))
            if msgs_now < msgs_was or bytes_now < bytes_was:
                msgs, size = msgs + msgs_was, size + bytes_was
        if (msgs, size) == (self.carried_msgs, self.carried_bytes):
            return Series(now, msgs, size, self.since_ms)
        return Series(now, msgs, size, instant_ms)

    @property
    def msg_out(self) -> int:
        """Messages delivered, over all subscriptions the log has had."""
        return self.carried_msgs + sum(messages for messages, _ in self.counters.out.values())

    @property
    def byte_out(self) -> int:
        """Bytes delivered, likewise."""
        return self.carried_bytes + sum(size for _, size in self.counters.out.values())
