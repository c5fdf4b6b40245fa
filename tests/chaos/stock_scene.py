"""A topic that is reshaped all the time under standard clients, which are killed and stopped with the workers and the broker.

The producers are those of `clients/`. The consumers are pattern consumers that know nothing of Cleave, in Java, Go and Python. Each key
has to come in order only if the subscription is declared as read by standard clients; otherwise the run is a control, whose breaks
show that the judgement finds some.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.client.history import Record, read_history
from controller.client.history_check import Example, Verdict
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.services import subscription_admin
from tests.chaos.ordered_scene import FEWEST, OrderedScene, TrafficLife
from tests.support.bench import Bench
from tests.support.consumer_changes import ConsumerChanges
from tests.support.stock_clients import GO, JAVA, PYTHON, Break, Programs, StockScene, breaks

SUBSCRIPTION = "billing"
WORK_MS = 3
"""On each message: a consumer that has most of the segments falls behind, and the others are ready for their children."""
KEEP_ALIVE_SECONDS = 4
"""Interval at which the broker of a run checks that its clients answer. It drops a client that was silent for two intervals."""
_SILENT_SECONDS = 3 * KEEP_ALIVE_SECONDS
_SHUT = "SELECT count(*) FROM cleave.gate WHERE state <> 'open'"
_LANGUAGES: Mapping[str, str] = {"p1": JAVA, "p2": GO, "c1": JAVA, "c2": GO, "c3": PYTHON}
"""By the name of a place."""


@dataclass(frozen=True, slots=True)
class StockVerdict:
    """The result of a run."""

    verdict: Verdict
    breaks: int
    """Messages that were delivered for the first time before their predecessor."""
    breaks_at_gates: list[Break]
    """The breaks that a broker without gates cannot have made."""
    unexplained: list[Example]
    """Duplicates that neither a death nor a join explains."""
    behind_gates: Mapping[str, int]
    """Number of strikes, by name, that came while a gate was shut."""


class StockOrderedScene(OrderedScene):
    """`run`, then `judge_order`. Whatever is started ends with `running`."""

    def __init__(
        self,
        bench: Bench,
        directory: Path,
        running: ExitStack,
        programs: Programs,
        *,
        seed: int,
        rate: int,
        kind: str = "Failover",
        acknowledgement: str = "individual",
        broker: PulsarStandalone,
        kills_broker: bool = False,
        subscription: Mapping[str, Any] | None = None,
    ) -> None:
        """`subscription`: fields of the subscription, such as `{"consumers": "stock"}`; without them the run is a control. `kind` and
        `acknowledgement` are the consumers'. With Exclusive there is one consumer.
        """
        assert bench.pulsar is not None
        self._kind, self._acknowledgement = kind, acknowledgement
        self._subscription = dict(subscription or {})
        self._behind_gates: Counter[str] = Counter()
        self._changes = ConsumerChanges(bench.topic_name, SUBSCRIPTION, broker.log)
        self._clients = StockScene(
            programs, bench.topic_name, bench.pulsar.service_url, "", directory / "histories"
        )
        running.callback(self._clients.close)
        super().__init__(
            bench,
            directory,
            running,
            seed=seed,
            rate=rate,
            consumers=1 if kind == "Exclusive" else 3,
            broker=broker if kills_broker else None,
            look_every=5,
            most_unread=3_000,
        )

    @property
    def strikes(self) -> tuple[Callable[[], None], ...]:
        """All that befalls those who take part."""
        strikes: tuple[Callable[[], None], ...] = (
            self._kill_consumer, self._pause_consumer, self._outlast_grace, self._kill_producer, self._pause_producer,
            self._kill_worker, self._kill_workers, self._pause_worker, self._collect,
        )  # fmt: skip
        return (
            strikes if self._broker is None else (*strikes, self._kill_broker, self._kill_broker_and_workers)
        )

    def judge_order(self) -> StockVerdict:
        """End the producers, let the consumers finish, and compare."""
        verdict, _ = self.judge()
        broken = breaks(self._records())
        logs = [self._directory / f"{name}.log" for name in self._workers]
        return StockVerdict(
            verdict,
            len(broken),
            self._changes.breaks_at_gates(broken, logs),
            self._changes.unexplained(verdict, self._records()),
            self._behind_gates,
        )

    def _records(self) -> Iterator[Record]:
        return read_history(*self.paths)

    def _flows(self) -> bool:
        """A broker may give a consumer no segment of two."""
        of_consumers = [one.traffic.count for one in self._consumers.values()]
        return any(of_consumers) and all(one.traffic.count for one in self._producers.values())

    def _unread_at_most(self, most: int) -> bool:
        for one in self._consumers.values():
            assert one.traffic.count >= 0  # fails for a consumer that has ended
        return super()._unread_at_most(most)

    def _make_topic(self) -> None:
        self.bench.topic_with(FEWEST, ())
        request = self.bench.request()
        store, topic = self.bench.store, self.bench.topic_name
        self.bench.finish(
            subscription_admin.create_subscription(store, topic, SUBSCRIPTION, request, **self._subscription)
        )

    def _outlast_grace(self) -> None:
        """Stop a consumer until the broker has dropped it. Its segments are with others when it wakes."""
        with self._stopped_consumer():
            began = time.monotonic()
            while time.monotonic() < began + _SILENT_SECONDS:
                self._reshape()

    def _kill_workers(self) -> None:
        """All workers, so that no gate is kept for a while."""
        self._wait_for_a_gate("kill_workers")
        for worker in self._workers.values():
            worker.kill()
        self._workers = {name: self._start_worker(name) for name in self._workers}

    def _kill_broker(self) -> None:
        """By SIGKILL, right after a reshape."""
        assert self._broker is not None
        self._wait_for_a_gate("kill_broker")
        self._broker.kill()
        self._changes.broker_killed()
        self._broker.start()

    def _kill_broker_and_workers(self) -> None:
        """All at once, by SIGKILL."""
        assert self._broker is not None
        self._wait_for_a_gate("kill_broker_and_workers")
        for worker in self._workers.values():
            worker.kill()
        self._broker.kill()
        self._changes.broker_killed()
        self._broker.start()
        self._workers = {name: self._start_worker(name) for name in self._workers}

    def _wait_for_a_gate(self, strike: str) -> None:
        """Reshape the topic until a gate is shut. A control run has no gates, and reshapes it once."""
        self._reshape()
        while self._subscription and not self.bench.scalar(_SHUT):
            self._reshape()
        self._behind_gates[strike] += bool(self.bench.scalar(_SHUT))

    @contextmanager
    def _stopped_consumer(self) -> Iterator[None]:
        with self._changes.paused(), super()._stopped_consumer():
            yield

    def _start(self, role: str, name: str, *, life: int = 1) -> TrafficLife:
        self._clients.address = self._addresses
        language = _LANGUAGES[name[:2]]
        if role == "produce":
            process = self._clients.produce(language, name, rate=self._rate // 2)
        else:
            process = self._clients.consume(
                language,
                name,
                SUBSCRIPTION,
                kind=self._kind,
                acknowledgement=self._acknowledgement,
                work_ms=WORK_MS,
            )
        return TrafficLife(process, [process.history])
