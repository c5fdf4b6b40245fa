"""The systems that `bench_pulsar_controllers` measures: a controller, its broker, and an application's client process.

`NativeSystem` is 5.0.0-M1 with its own controller, `CleaveSystem` Cleave with a worker process (which also collects load, if brokers must
be read for consumers or load). Both create topics of one segment with one stream subscription, return the active segments, and split a
segment. The caller measures.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.talking_process import TalkingProcess
from controller.bootstrap import Application
from controller.client.retry import retry_for
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.demo.planes import NAMESPACE, make_namespace
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.process import ChildProcess
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.devstack.serving import SECRET, token_for
from controller.domain.layout import SegmentLayout
from controller.domain.operation import OperationState, Origin
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import ReshapeKind
from controller.postgres.listener import Listener
from controller.services import segment_admin, subscription_admin, topic_admin
from controller.services.operation_wait import wait_for
from controller.settings import PROJECT_ROOT, Settings
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store
from controller.store.topics import layouts, topics

SUBSCRIPTION = "s"
CALL_SECONDS = 30.0
LOOK_SECONDS = 0.005
"""Between two looks at a broker's layout: each takes it a millisecond or two, on the processors that do the split."""
CLUSTER_PATIENCE_SECONDS = 60.0
NATIVE, PULSAR, SCALABLE = "native", "pulsar", "pulsar_scalable"


class System(ABC):
    """One running controller; `client` is the application's process."""

    namespace = "public/default"

    def __init__(self, name: str, client: TalkingProcess) -> None:
        self.name, self.client = name, client

    @abstractmethod
    def create(self, topic: str, parameters: Mapping[str, int] | None = None) -> None:
        """Create a topic of one segment with `SUBSCRIPTION`; `parameters` of its policy by Cleave's names. Returns when it is ready."""

    @abstractmethod
    def layout(self, topic: str) -> SegmentLayout:
        """Return the present layout, as clients get it."""

    def wait_change(self) -> None:
        """Wait until the layout may have changed: for a notification if there is one, else a short time."""
        time.sleep(LOOK_SECONDS)

    @abstractmethod
    def split(self, topic: str, segment_id: int) -> None:
        """Request a split as an operator does. Returns when the controller has answered."""

    @abstractmethod
    def retire(self, topic: str) -> None:
        """Delete the topic with its data."""


class NativeSystem(System):
    """Pulsar 5's own controller, called over its REST API, with its defaults unless `parameters` override them."""

    def __init__(self, client: TalkingProcess, keeper: PulsarScalableDataPlane) -> None:
        super().__init__(NATIVE, client)
        self._keeper = keeper

    def create(self, topic: str, parameters: Mapping[str, int] | None = None) -> None:
        """Create the topic over the REST API, as `System` requires."""
        retry_for(lambda: self._keeper.create_topic(topic, 1), seconds=CLUSTER_PATIENCE_SECONDS)
        [log] = self._keeper.list_segments(topic)
        self._keeper.create_subscription(log, SUBSCRIPTION)
        if parameters:
            self._keeper.set_auto_scaler(topic, {"enabled": True, **_in_pulsars_names(parameters)})

    def layout(self, topic: str) -> SegmentLayout:
        """Return the broker's layout."""
        return self._keeper.read_layout(topic)

    def split(self, topic: str, segment_id: int) -> None:
        """Split the segment; the broker answers when the split is done."""
        self._keeper.ask_reshape(topic, ReshapeKind.SPLIT, [segment_id], 1)

    def retire(self, topic: str) -> None:
        """Delete the topic with its data."""
        self._keeper.delete_topic(topic)


class CleaveSystem(System):
    """Cleave on one data plane; `keeper` reads the broker's own layout if the broker keeps the layout."""

    def __init__(
        self, name: str, client: TalkingProcess, app: Application, keeper: PulsarScalableDataPlane | None
    ) -> None:
        super().__init__(name, client)
        self.app, self._keeper = app, keeper
        self._numbers = itertools.count()
        self._changes: Listener | None = None
        if keeper is None:
            self.namespace, self._changes = NAMESPACE, Listener(app.store.address, ["cleave_layout"])

    def create(self, topic: str, parameters: Mapping[str, int] | None = None) -> None:
        """Create the topic as `System` requires. Returns when the worker has performed the operation.

        Without `parameters` a surplus consumer gets a segment of its own whatever the load, since this reaction is measured.
        """
        policy = (
            PolicyOverride(**parameters)
            if parameters
            else PolicyOverride(split_vs_rebucket_min_msg_rate_in=0.0)
        )
        self._finish(
            topic_admin.create_topic(
                self.app.store, self.app.planes, topic, self._request(), data_plane=self.name, policy=policy
            )
        )
        if self._keeper is None:
            self._finish(
                subscription_admin.create_subscription(self.app.store, topic, SUBSCRIPTION, self._request())
            )
        else:
            [log] = self._keeper.list_segments(topic)
            self._keeper.create_subscription(log, SUBSCRIPTION)

    def layout(self, topic: str) -> SegmentLayout:
        """Return the stored layout; if the broker keeps the layout, the broker's, which its clients follow."""
        if self._keeper is not None:
            return self._keeper.read_layout(topic)
        with self.app.store.transaction() as tx:
            return layouts.load_layout(tx, topics.find_topic(tx, topic).topic_id)

    def wait_change(self) -> None:
        """Wait for a notification of PostgreSQL, as clients do, for a limited time. If the broker keeps the layout, only wait a short
        time.
        """
        if self._changes is not None:
            self._changes.wait(LOOK_SECONDS * 10)
        else:
            super().wait_change()

    def close(self) -> None:
        """Close the listener."""
        if self._changes is not None:
            self._changes.close()

    def split(self, topic: str, segment_id: int) -> None:
        """Write the intent, as the REST API and the command do; the worker performs it."""
        planner = segment_admin.splitting(segment_id)
        segment_admin.submit(self.app.store, self.app.planes, topic, planner, self._request())

    def retire(self, topic: str) -> None:
        """Delete the topic with its data."""
        self._finish(topic_admin.delete_topic(self.app.store, topic, self._request()))

    def _request(self) -> Request:
        return Request(f"{self.name}-{next(self._numbers)}", Origin.MANUAL, "benchmark", "benchmark")

    def _finish(self, intent: Intent) -> None:
        ended = wait_for(self.app.store, intent.operation.operation_id, timeout_seconds=CALL_SECONDS)
        if ended.state is not OperationState.DONE:
            raise RuntimeError(f"operation {ended.operation_id} ({ended.kind}) is {ended.state}")


def v5_process(running: ExitStack, broker: PulsarStandalone, directory: Path) -> TalkingProcess:
    """Start a process with Pulsar's Java client on a 5.0.0-M1 broker."""
    arguments = [broker.service_url, str(directory)]
    return running.enter_context(TalkingProcess("benchmarks.v5_side", arguments, directory / "v5_side.log"))


def scalable_plane(running: ExitStack, broker: PulsarStandalone) -> PulsarScalableDataPlane:
    """Return the data plane of the scalable topics of a 5.0.0-M1 broker, over its REST API."""
    access = PulsarAccess(admin_url=broker.admin_url, service_url=broker.service_url)
    return running.enter_context(closing(PulsarScalableDataPlane(access, call_timeout_seconds=CALL_SECONDS)))


def cleave_system(
    running: ExitStack,
    broker: PulsarStandalone,
    url: str,
    directory: Path,
    *,
    v5: TalkingProcess | None = None,
    collects: bool = False,
    settings: Mapping[str, str] | None = None,
) -> CleaveSystem:
    """Start a worker on that broker and the migrated database, which collects load if `collects`. Return the system.

    With `v5`, it uses the broker's scalable topics and that client; else `persistent://` topics and a client process that is started
    here. `settings` are those of the processes, by their names in the environment. `running` stops everything.
    """
    port = free_port()
    running.callback(release_port, port)
    named = {
        "CLEAVE_DATABASE_URL": url,
        "CLEAVE_PULSAR_ADMIN_URL": broker.admin_url,
        "CLEAVE_PULSAR_SERVICE_URL": broker.service_url,
        "CLEAVE_LANDING_URL": str(directory / "landing"),
        "CLEAVE_API_SECRET": SECRET,
        "CLEAVE_SERVE_PORT": str(port),
        **(settings or {}),
    }
    env = {key: value for key, value in os.environ.items() if not key.startswith("CLEAVE_")} | named
    child = ChildProcess(
        [sys.executable, "-m", "controller.commands.cli", "worker", *([] if collects else ["--no-collect"])],
        log=directory / "worker.log",
        cwd=PROJECT_ROOT,
        env=env,
    )
    running.callback(child.stop)
    child.start()
    app = running.enter_context(closing(Application(_settings(named), Store(url, pool_size=8))))
    if v5 is not None:
        return running.enter_context(
            closing(CleaveSystem(SCALABLE, v5, app, scalable_plane(running, broker)))
        )
    make_namespace(PulsarAccess(admin_url=broker.admin_url))
    client = TalkingProcess(
        "benchmarks.cleave_side",
        [broker.service_url, broker.admin_url],
        directory / "cleave_side.log",
        env | {"CLEAVE_URL": f"http://{LOOPBACK}:{port}", "CLEAVE_TOKEN": token_for()},
    )
    return running.enter_context(closing(CleaveSystem(PULSAR, running.enter_context(client), app, None)))


def _settings(named: Mapping[str, str]) -> Settings:
    fields: dict[str, Any] = {key.removeprefix("CLEAVE_").lower(): value for key, value in named.items()}
    return Settings(**fields, SPARK_MASTER="none")


_PULSARS_NAMES = {
    "split_msg_rate_in": "splitMsgRateInThreshold",
    "merge_msg_rate_in": "mergeMsgRateInThreshold",
    "split_cooldown_seconds": "splitCooldownSeconds",
}


def _in_pulsars_names(parameters: Mapping[str, int]) -> dict[str, int]:
    return {_PULSARS_NAMES[parameter]: value for parameter, value in parameters.items()}
