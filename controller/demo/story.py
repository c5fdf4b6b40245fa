"""The demo's day: when consumers join and leave, the observations, and the operations that must have been seen at the
end.

The processes of `traffic` send and receive the messages. This module does not act on the topic: it only observes (as
the inspector, through the inspect views), and reports each expected operation that did not happen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.client.history import SUFFIX, Event, read_history
from controller.client.history_check import Kind, Verdict, check
from controller.demo.day_clock import DayClock, Gate
from controller.demo.load_profile import LoadProfile
from controller.demo.planes import NAMESPACE, SERVICE_URL
from controller.demo.policy import policy_at
from controller.demo.stack import Stack
from controller.demo.traffic import wait_file
from controller.devstack.failure import DevstackFailed
from controller.devstack.process import ChildProcess, run_checked, wait_until
from controller.domain.decision import COLD
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store

TOPIC, SUBSCRIPTION = f"topic://{NAMESPACE}/orders", "billing"
STANDARD_SUBSCRIPTION = "shipping"
"""Subscription of the standard Java consumers, which contain no code of Cleave."""
STANDARD_CONSUMERS = 2
PATTERN = f"{TOPIC.replace('topic://', 'persistent://')}-segment-.*"
"""Pattern to which the standard consumers subscribe: all segments of the topic."""
PRODUCERS = 2
TRAFFIC = (sys.executable, "-m", "controller.demo.traffic")
CROWD = 7
"""Number of consumers at the busiest time: more than the segments that load alone creates, so that some segments are
created for consumers.
"""
CROWD_COMES_AT, CROWD_GOES_AT = 0.50, 0.60
"""Shares of the day at which the consumers join and leave."""
LOAD_REASONS = frozenset({"msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut"})
BY_LOAD, BY_CONSUMERS, MERGED = "a split by load", "a split by consumers", "a merge"
OPERATIONS = "SELECT * FROM inspect.operations WHERE topic = :t ORDER BY operation_id"
_CONSUMED = {
    SUBSCRIPTION: f"*.consumed{SUFFIX}",
    STANDARD_SUBSCRIPTION: f"{STANDARD_SUBSCRIPTION}/*.consumed{SUFFIX}",
}
"""Pattern of the records of a subscription's consumers."""
PATIENCE_SECONDS = 300.0
"""Longest time that the day waits for each of these operations; on an idle machine it hardly waits."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One observation; `at_seconds` counts from the beginning of the day."""

    at_seconds: float
    messages_per_second: float
    load: dict[int, float]
    segments: int
    consumers: int
    share: float = 0.0
    """Share of the day, 0..1; it does not change while the day waits for an operation."""


@dataclass(slots=True)
class DayRecord:
    """The observations of a day."""

    began_at: float = 0.0
    """Beginning of the day, in seconds since the Unix epoch."""
    moments: list[Moment] = field(default_factory=list)
    operations: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    policy: dict[str, int | float | str] = field(default_factory=lambda: policy_at(1.0))
    """The policy of the topic."""
    waits: dict[str, float | None] = field(default_factory=dict)
    """Seconds for which each consumer of the crowd waited for its first message; None: it got no message."""
    splits_before_crowd: int = 0
    """Number of splits by consumers before the crowd came: the standard consumers cause them. They do not count as seen."""

    def count(self, reasons: Collection[str]) -> int:
        """Return the number of committed automatic operations with one of these reasons."""
        return sum(
            row["origin"] == "auto" and row["committed_at"] is not None and row["reason"] in reasons
            for row in self.operations
        )

    def has_seen(self, sight: str) -> bool:
        """Return True if the operation was seen. `sight` is BY_LOAD, BY_CONSUMERS or MERGED."""
        return {
            BY_LOAD: self.count(LOAD_REASONS),
            BY_CONSUMERS: self.count({"consumer-count"}) - self.splits_before_crowd,
            MERGED: self.count({COLD}),
        }[sight] > 0

    @property
    def missing(self) -> list[str]:
        """The expected operations that were not seen."""
        return [sight for sight in (BY_LOAD, BY_CONSUMERS, MERGED) if not self.has_seen(sight)]


class Story:
    """One day of traffic on one topic."""

    def __init__(
        self,
        stack: Stack,
        *,
        day_seconds: float,
        profile: LoadProfile,
        trace: Path | None,
        say: Callable[[str], None],
    ) -> None:
        """Prepare the clock, and the connection for observations. `day_seconds` is the length of the day without the
        waits for operations. `trace` is the file from which `profile` was read, for the producers; None: the synthetic
        day. `say` shows a line of progress.
        """
        self._stack = stack
        self._trace = trace
        self._say = say
        self.clock_file = stack.directory / "clock"
        self.clock = DayClock(
            self.clock_file,
            day_seconds=day_seconds,
            gates=[
                Gate(profile.busiest_share, BY_LOAD),
                Gate(CROWD_GOES_AT - 0.001, BY_CONSUMERS),
                Gate(0.999, MERGED),
            ],
            patience_seconds=PATIENCE_SECONDS,
        )
        self._reader = Store(stack.reader_url, application_name="cleave-demo", pool_size=1)
        self._consumers: dict[str, ChildProcess] = {}
        self._standard_consumers: list[ChildProcess] = []
        self._producers: dict[str, ChildProcess] = {}
        self._replaced: set[str] = set()
        self._offsets: dict[Path, tuple[int, int]] = {}
        self.records = stack.directory / "records"
        self.seen = DayRecord(policy=policy_at(stack.plane.load_share))

    def tell(self, show: Callable[[Moment], None]) -> DayRecord:
        """Run the day: configure the topic, start producers and consumers, and call `show` with each observation. Return the record of the
        day when every message is consumed, or 60 s after the end of the day if messages are missing then.

        All processes are stopped at the end, also after an error. Raises the errors of `Stack.watch_over`, and
        DevstackFailed if the topic cannot be configured.
        """
        self.records.mkdir(parents=True, exist_ok=True)
        try:
            self._prepare()
            self.seen.began_at = time.time()
            self.clock.tick(self.seen.has_seen)
            for _ in range(PRODUCERS):
                self._start_producer()
            for moment in self._observations(time.monotonic()):
                self._follow_crowd(moment.share)
                self.seen.moments.append(moment)
                show(moment)
                if moment.share >= 1.0 and not any(p.running for p in self._producers.values()):
                    break
            self._drain()
        finally:
            for child in (
                *self._producers.values(),
                *self._consumers.values(),
                *self._standard_consumers,
            ):
                child.stop()
        self._read_metadata()
        for name in self.seen.waits:
            path = wait_file(self.records, name)
            self.seen.waits[name] = float(path.read_text(encoding="ascii")) if path.exists() else None
        return self.seen

    def _prepare(self) -> None:
        """Set the policy, create the topic and its subscription, and start the first consumer and the standard
        consumers.
        """
        parameters = [f"{parameter}={value}" for parameter, value in self.seen.policy.items()]
        self._cleave("policy", "set", "cluster", *parameters)
        self._cleave("topics", "create", TOPIC, "--data-plane", self._stack.plane.name)
        self._cleave("subscriptions", "create", TOPIC, SUBSCRIPTION)
        self._start_consumers(1)
        self._start_standard_consumers()
        self._say("policy: " + ", ".join(parameters))

    def _cleave(self, *arguments: str) -> None:
        """Run the `cleave` command as an operator would. Raises DevstackFailed with its output if it fails."""
        run_checked(
            [sys.executable, "-m", "controller.commands.cli", *arguments],
            cwd=self._stack.directory,
            env=self._stack.env,
        )

    def _start_producer(self) -> None:
        """Start a producer under an unused name: a restarted producer would not know which messages it had sent."""
        trace = ["--trace", str(self._trace)] if self._trace else []
        name = f"shop-{len(self._producers)}"
        self._producers[name] = self._traffic(
            "produce", TOPIC, name, str(self.records), "--clock", str(self.clock_file),
            "--share", str(self._stack.plane.load_share / PRODUCERS), *trace,
            name=name,
        )  # fmt: skip

    def _replace_producers(self) -> None:
        """Start another producer for each producer that has ended with an error, once for each."""
        for name, child in list(self._producers.items()):
            if child.ended_by_itself and child.exit_code != 0 and name not in self._replaced:
                self._replaced.add(name)
                self._say(f"producer {name} ended with {child.exit_code}; another producer replaces it")
                self._start_producer()

    def _start_consumers(self, count: int) -> None:
        """Start consumers until `count` consumers run; those that run already continue."""
        for number in range(count):
            name = f"billing-{number}"
            if name not in self._consumers:
                self._consumers[name] = self._traffic(
                    "consume", TOPIC, SUBSCRIPTION, name, str(self.records), name=name, kept=True
                )

    def _start_standard_consumers(self) -> None:
        """Create a subscription with gates and start its consumers, on a plane with a broker. Report if this machine cannot run them."""
        try:
            command = self._stack.plane.standard_consumer(self._stack.directory / "java")
        except DevstackFailed as error:
            self._say(f"no standard Java consumers: {error}")
            return
        if command is None:
            return
        self._cleave("subscriptions", "create", TOPIC, STANDARD_SUBSCRIPTION, "--consumers", "stock")
        (self.records / STANDARD_SUBSCRIPTION).mkdir(exist_ok=True)
        service_url = self._stack.plane_settings[SERVICE_URL]
        for number in range(STANDARD_CONSUMERS):
            name = f"{STANDARD_SUBSCRIPTION}-{number}"
            history = self.records / STANDARD_SUBSCRIPTION / f"{name}.consumed{SUFFIX}"
            arguments = [
                service_url,
                PATTERN,
                name,
                history,
                STANDARD_SUBSCRIPTION,
                "Failover",
                "individual",
                0,
            ]
            child = self._stack.spawn(
                name, [str(part) for part in (*command, *arguments)], kept=True, env=self._stack.client_env
            )
            self._standard_consumers.append(child)
        self._say(f"{STANDARD_CONSUMERS} standard Java consumers read {STANDARD_SUBSCRIPTION}")

    def _stop_consumers(self, remaining: int) -> None:
        """Request the end of all consumers except the first `remaining`, by name. Does not wait."""
        for name in sorted(self._consumers)[remaining:]:
            self._consumers.pop(name).ask_to_end()

    def _traffic(self, *arguments: str, name: str, kept: bool = False) -> ChildProcess:
        """Start a process of `controller.demo.traffic` with these arguments; with `kept` the stack restarts it."""
        command = [*TRAFFIC, *arguments, "--plane", self._stack.plane.name]
        return self._stack.spawn(name, command, kept=kept, env=self._stack.client_env)

    def _follow_crowd(self, share: float) -> None:
        """Start consumers until there are `CROWD` of them, if `share` is between `CROWD_COMES_AT` and `CROWD_GOES_AT`, and request the end
        of all but one from then on. When they come, note the splits by consumers until then.
        """
        if CROWD_COMES_AT <= share < CROWD_GOES_AT and len(self._consumers) < CROWD:
            self.seen.splits_before_crowd = self.seen.count({"consumer-count"})
            self._start_consumers(CROWD)
            self.seen.waits = dict.fromkeys(name for name in self._consumers if name != "billing-0")
            self._say(f"{CROWD} consumers read {SUBSCRIPTION}")
        elif share >= CROWD_GOES_AT and len(self._consumers) > 1:
            self._stop_consumers(1)
            self._say("all consumers but one have left")

    def _observations(self, began: float) -> Iterator[Moment]:
        """Yield an observation about every second, without end. Before each, restart processes that have ended, and
        advance the clock. `began` is the beginning of the day in `time.monotonic` seconds.

        Raises the errors of `Stack.watch_over`.
        """
        last_total, last_at = 0, time.monotonic()
        while True:
            time.sleep(1.0)
            self._stack.watch_over()
            self._replace_producers()
            load = self._rows(
                "SELECT segment_id, coalesce(msg_rate_in, 0) AS rate FROM inspect.load_now WHERE topic = :t",
                t=TOPIC,
            )
            consumers = self._rows(
                "SELECT consumers FROM inspect.subscriptions WHERE topic = :t AND subscription = :s",
                t=TOPIC,
                s=SUBSCRIPTION,
            )
            self.seen.operations = self._rows(OPERATIONS, t=TOPIC)
            share = self.clock.tick(self.seen.has_seen)
            total, now = self.produced(), time.monotonic()
            yield Moment(
                at_seconds=now - began,
                messages_per_second=(total - last_total) / (now - last_at),
                load={row["segment_id"]: row["rate"] for row in load},
                segments=len(load),
                consumers=consumers[0]["consumers"] if consumers else 0,
                share=share,
            )
            last_total, last_at = total, now

    def _rows(self, statement: str, **parameters: object) -> list[dict[str, Any]]:
        with self._reader.transaction() as tx:
            return inspection.rows(tx, statement, **parameters)

    def produced(self) -> int:
        """Return the number of messages recorded as stored so far."""
        return self._lines(f"*.produced{SUFFIX}", Event.SENT)

    def consumed(self, subscription: str = SUBSCRIPTION) -> int:
        """Return the number of messages recorded as received so far by the subscription, redeliveries included."""
        return self._lines(_CONSUMED[subscription], Event.DELIVERED)

    def _lines(self, pattern: str, event: Event) -> int:
        """Return the number of complete lines of one event in all files that match `pattern`. Only the lines added since the last call are
        read; the lines before were counted then, so a file must always be read for the same event.
        """
        for path in self.records.glob(pattern):
            offset, lines = self._offsets.get(path, (0, 0))
            with path.open("rb") as record:
                record.seek(offset)
                added = record.read()
            complete = added[: added.rfind(b"\n") + 1]
            self._offsets[path] = (offset + len(complete), lines + complete.count(f"\t{event}\t".encode()))
        return sum(self._offsets[path][1] for path in self.records.glob(pattern))

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The subscriptions that are read."""
        return (SUBSCRIPTION, STANDARD_SUBSCRIPTION) if self._standard_consumers else (SUBSCRIPTION,)

    def verdict(self, subscription: str = SUBSCRIPTION) -> Verdict:
        """Return the result of checking the records of all messages so far: those sent, and those that the subscription's consumers
        received.
        """
        produced = self.records.glob(f"*.produced{SUFFIX}")
        return check(read_history(*produced, *self.records.glob(_CONSUMED[subscription])))

    def _drain(self, patience_seconds: float = 60.0) -> None:
        """Wait until every subscription has consumed all produced messages, at most `patience_seconds`; no error is
        raised if messages are missing then. A message that is delivered twice does not replace a message that is not
        delivered yet.
        """
        wait_until(
            lambda: all(map(self._is_consumed, self.subscriptions)),
            seconds=patience_seconds,
            poll_seconds=0.5,
        )

    def _is_consumed(self, subscription: str) -> bool:
        """Return True if the subscription has received each produced message at least once."""
        is_enough = self.consumed(subscription) >= self.produced()
        return is_enough and not self.verdict(subscription).counts[Kind.LOST]

    def _read_metadata(self) -> None:
        """Read operations, layout changes and segments of the topic into `seen`, and close the connection."""
        statements = {
            "operations": OPERATIONS,
            "changes": "SELECT * FROM inspect.layout_changes WHERE topic = :t ORDER BY epoch",
            "segments": "SELECT DISTINCT l.segment_id, l.hash_range, l.range_start, l.range_end, "
            "l.created_epoch, l.sealed_epoch"
            " FROM inspect.layout_changes c CROSS JOIN LATERAL inspect.layout_at(c.topic, c.epoch) l WHERE "
            "c.topic = :t",
        }
        with self._reader.transaction() as tx:
            for name, statement in statements.items():
                setattr(self.seen, name, inspection.rows(tx, statement, t=TOPIC))
        self._reader.dispose()
