"""A topic under traffic: producers and consumers as processes of their own, and a runner in this one.

What fails meanwhile is the test's business; here is what goes on around it, and the comparison of both ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path as FilePath

from controller.client.history import read_history
from controller.client.history_check import Verdict, check
from controller.dataplane.log_client import LogReader, Position
from controller.devstack.serving import serving_leader
from controller.domain.errors import DataPlaneUnavailable, LostRace, StoreUnavailable
from controller.services.operation_runner import RunnerContext, run_operation
from tests.support.bench import Bench
from tests.support.traffic import TrafficProcess
from tests.support.waiting import wait_until

AWAY = (StoreUnavailable, DataPlaneUnavailable)
ENDS_WITHIN_SECONDS = 300.0
"""For what waits until a server is back on a busy machine."""


class Scene:
    """Two producers and some consumers of one topic; whatever was started ends with `running`."""

    def __init__(self, bench: Bench, directory: FilePath, running: ExitStack, *, rate: int = 0) -> None:
        """`rate`: messages a second of each producer; 0 for as fast as it goes."""
        self.bench = bench
        self._directory, self._running, self._rate = directory, running, rate
        self._uncounted: Exception | None = None
        self._address = ""

    def begin(self, segments: int, *, consumers: int = 1, unread_by: tuple[str, ...] = ()) -> None:
        """The topic, and traffic that flows. `unread_by`: subscriptions beside the consumers', which nobody reads."""
        self.bench.topic_with(segments, ("billing", *unread_by))
        self.producers = [self._start("produce", name) for name in ("p1", "p2")]
        self.consumers = [self._start("consume", f"c{i + 1}") for i in range(consumers)]
        self.advance()

    def advance(self, by: int = 300) -> None:
        """Until everybody has done so much more, whatever happened."""
        everybody = [*self.producers, *self.consumers]
        targets = [one.count + by for one in everybody]

        def there() -> bool:
            assert all(one.running for one in everybody), "see the processes' logs"
            return all(one.count >= target for one, target in zip(everybody, targets, strict=True))

        self._wait_until(there, "traffic flows")

    def drive(self, operation_id: int, context: RunnerContext) -> None:
        """Run it to its end, as a worker does: what is away is waited for."""

        def ended() -> bool:
            try:
                run_operation(context, operation_id)
                return not self.bench.operation(operation_id).state.is_live
            except AWAY:
                return False

        self._wait_until(ended, f"operation {operation_id} ends")

    def judge(self) -> Verdict:
        """End the producers, let the consumers finish, and compare."""
        for producer in self.producers:
            producer.stop()
        self._wait_until(self._is_read, "the backlog is read")
        for consumer in self.consumers:
            assert consumer.running, "see the processes' logs"
            consumer.stop()
        return check(read_history(*(one.history for one in (*self.producers, *self.consumers))))

    def stored(self, subscription: str) -> list[tuple[bytes | None, bytes]]:
        """Key and payload of all that the logs hold for a subscription that nobody has read yet."""
        found: list[tuple[bytes | None, bytes]] = []
        for log in self.bench.plane.list_segments(self.bench.topic_name):
            held: dict[Position, tuple[bytes | None, bytes]] = {}
            wait_until(partial(self._is_read_out, log, subscription, held))
            found.extend(held.values())
        return found

    def _is_read_out(
        self, log: str, subscription: str, held: dict[Position, tuple[bytes | None, bytes]]
    ) -> bool:
        """By one connection; False where that ended, as a broker's death may end it a while after."""
        reader = self.bench.logs.open_reader(
            log, subscription, owner="auditor", live_owners=(), on_arrival=lambda: None
        )
        try:
            wait_until(partial(self._leaves_nothing, log, subscription, reader, held))
        except LostRace:
            return False
        finally:
            reader.close()
        return True

    def _leaves_nothing(
        self, log: str, subscription: str, reader: LogReader, held: dict[Position, tuple[bytes | None, bytes]]
    ) -> bool:
        while messages := reader.read(1000):  # by position: what was not acknowledged for good comes again
            held |= {message.position: (message.key, message.payload) for message in messages}
            reader.acknowledge(messages[-1].position)
        try:
            return self.bench.plane.backlog(log, subscription) == 0
        except AWAY:  # a broker may fail at counting what is left, and counts nothing where nothing is
            return False

    def _is_read(self) -> bool:
        try:
            return self.bench.unread("billing") == 0
        except AWAY as error:  # as above
            self._uncounted = error
            return False

    def _wait_until(self, predicate: Callable[[], bool], message: str) -> None:
        """For what is long away on a busy machine; what never comes is told with where everybody stands."""
        try:
            wait_until(predicate, timeout_seconds=ENDS_WITHIN_SECONDS, message=message)
        except AssertionError as late:
            told = [one.whereabouts() for one in (*self.producers, *self.consumers)]
            raise AssertionError("\n\n".join([f"{late}; not counted: {self._uncounted!r}", *told])) from late

    @property
    def longest_pause_ms(self) -> int:
        """The longest that a producer was without an acknowledgement between its first and its last.

        A producer goes on only when all it has sent is stored, so this is no less than what any range was unwritable
        for: it holds what its client took to find out and to come back, too.
        """
        longest_ns = 0
        for producer in self.producers:
            instants = (record.at_ns for record in read_history(producer.history))
            longest_ns = max([longest_ns, *(after - before for before, after in pairwise(instants))])
        return longest_ns // 1_000_000

    def _leader(self) -> str:
        """Where the consumers ask; it is started with the first process."""
        if not self._address:
            leader = serving_leader(self.bench.url, consumer_grace_seconds=60.0)
            self._address = self._running.enter_context(leader)
        return self._address

    def _start(self, role: str, name: str) -> TrafficProcess:
        traffic = TrafficProcess(
            role,
            name,
            url=self.bench.url,
            topic=self.bench.topic_name,
            directory=self._directory,
            subscription="billing",
            pulsar=self.bench.pulsar,
            rate=self._rate,
            address=self._leader(),
        )
        return self._running.enter_context(traffic)
