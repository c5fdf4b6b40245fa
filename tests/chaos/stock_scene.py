"""A topic that is reshaped all the time under standard Java and Go clients, which are killed and stopped with the workers and the broker.

The producers are those of `clients/`. The consumers are pattern consumers that know nothing of Cleave. Each key has to come in order only if
the subscription is declared as read by standard clients; otherwise the run is a control, whose breaks show that the judgement
finds some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from controller.client.history import Record, read_history
from controller.client.history_check import Verdict
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.services import topic_admin
from tests.chaos.ordered_scene import FEWEST, OrderedScene, TrafficLife
from tests.support.bench import Bench
from tests.support.stock_clients import GO, JAVA, Programs, StockScene, breaks

SUBSCRIPTION = "billing"
WORK_MS = 3
"""On each message: a consumer that has most of the segments falls behind, and the others are ready for their children."""
_LANGUAGES: Mapping[str, str] = {"p1": JAVA, "p2": GO, "c1": JAVA, "c2": GO, "c3": JAVA}
"""By the name of a place."""


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
        broker: PulsarStandalone | None = None,
        subscription: Mapping[str, Any] | None = None,
    ) -> None:
        """`subscription`: fields of the subscription, such as `{"consumers": "stock"}`; without them the run is a control. `kind` and
        `acknowledgement` are the consumers'. With Exclusive there is one consumer.
        """
        assert bench.pulsar is not None
        self._kind, self._acknowledgement = kind, acknowledgement
        self._subscription = dict(subscription or {})
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
            broker=broker,
            look_every=5,
            most_unread=3_000,
        )

    @property
    def strikes(self) -> tuple[Callable[[], None], ...]:
        """All that befalls those who take part."""
        strikes: tuple[Callable[[], None], ...] = (
            self._kill_consumer, self._pause_consumer, self._kill_producer, self._pause_producer,
            self._kill_worker, self._pause_worker, self._collect,
        )  # fmt: skip
        return strikes if self._broker is None else (*strikes, self._kill_broker)

    def judge_order(self) -> tuple[Verdict, int]:
        """End the producers, let the consumers finish, and compare. Beside the verdict the number of messages that were delivered for
        the first time before their predecessor.
        """
        verdict, _ = self.judge()
        return verdict, breaks(self._records())

    def _records(self) -> Iterator[Record]:
        return read_history(*self.paths)

    def _flows(self) -> bool:
        """A broker may give a consumer no segment of two."""
        of_consumers = [one.traffic.count for one in self._consumers.values()]
        return any(of_consumers) and all(one.traffic.count for one in self._producers.values())

    def _make_topic(self) -> None:
        self.bench.topic_with(FEWEST, ())
        request = self.bench.request()
        store, topic = self.bench.store, self.bench.topic_name
        self.bench.finish(
            topic_admin.create_subscription(store, topic, SUBSCRIPTION, request, **self._subscription)
        )

    def _kill_broker(self) -> None:
        """By SIGKILL, right after a reshape."""
        assert self._broker is not None
        self._reshape()
        self._broker.kill()
        self._broker.start()

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
