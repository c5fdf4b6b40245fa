"""Composition root: the only module that knows every concrete class.

Commands, tasks and servers build an `Application` and pass its parts to services. Connections open lazily: building an application uses no
network, so `--help` and DAG imports stay fast. Modules that only one process needs are imported where they are used, so that a short command
does not load the libraries of the worker and the collector.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from controller.clock import STEADY_CLOCK, SystemClock
from controller.dataplane.base import Counters, DataPlane
from controller.dataplane.load_settings import LoadSettings
from controller.dataplane.log_client import LogClient
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.registry import PlaneSettings, build_log_client, build_planes
from controller.domain.bearer_token import bearer_token
from controller.domain.decision import Lane
from controller.domain.errors import InvalidInput, Unsupported
from controller.domain.names import demand_name
from controller.postgres.address import DatabaseAddress
from controller.postgres.session_settings import STATEMENT_SECONDS
from controller.settings import SHORTEST_STATEMENT_SECONDS, Settings, load_settings
from controller.store.postgres.engine import Store
from controller.store.shards import Shards

if TYPE_CHECKING:
    from controller.landing.area import LandingArea
    from controller.postgres.listener import Listener
    from controller.services.asset_events import AirflowLogin, AirflowRest, AssetEventPoster
    from controller.services.collection.consumer_watch import ConsumerWatch
    from controller.services.collection.lease import LeasedCollection
    from controller.services.collection.load_collector import LoadCollector
    from controller.services.computing.computers import Computation
    from controller.services.consumer_sessions.leader import SessionLeader
    from controller.services.key_count_landing import KeyCountLanding
    from controller.services.load_aggregation import AggregationResult
    from controller.services.operation_runner import RunnerContext
    from controller.services.policy_backtest import Compute, PolicyBacktest
    from controller.services.policy_candidates.trials import Trials, Variant
    from controller.services.reconciler import Suspects
    from controller.services.watches.layout_feed import LayoutFeed
    from controller.services.watches.topic_feed import TopicFeed
    from controller.services.worker.sensors import Sensor
    from controller.services.worker.shard_leases import ShardLeases
    from controller.services.worker.work_loop import WorkLoop
    from controller.services.worker.worker import BackgroundService, Worker
    from controller.store.backtests import BacktestAnswer

OTHER_CONNECTIONS = 13
"""Connections for concurrent work besides operations: evaluation, search for due work, mirroring, key samples, drains,
verification of topics, defaults of approvals, sessions, layout feeds and requests. Leases have a connection of their
own.
"""
API_TRANSACTIONS = 24
"""Connections for the HTTP calls of people and their audit."""
OPERATIONS_TOGETHER = 64
"""New reshapes that a thread claims at once on a data plane with set-wise calls; on other planes it claims one."""


@dataclass(frozen=True)
class Application:
    """Settings, store and data planes of one process."""

    settings: Settings
    store: Store

    @cached_property
    def planes(self) -> Mapping[str, DataPlane]:
        """The configured data planes by name, built at the first use. Raises InvalidInput for settings that are invalid or contradict each
        other.
        """
        return build_planes(plane_settings(self.settings))

    def log_client(self, data_plane: str) -> LogClient:
        """Return a new log client of a data plane; the caller closes the client. Raises Unsupported if the plane is unknown or not
        configured, has no log client (`pulsar_scalable`), or lacks a library or the brokers' binary address. Raises InvalidInput if the
        settings contradict each other.
        """
        return build_log_client(data_plane, plane_settings(self.settings))

    def runner(
        self,
        runner_id: str | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        incarnation: str | None = None,
    ) -> RunnerContext:
        """Return the context of an operation runner of this process. `runner_id` None: a unique name of this process. The runner stops
        before its next claim or step once `should_stop` returns True. A worker passes its own incarnation; None: a new incarnation. Raises
        InvalidInput if a claim would not outlive a data-plane call, and for settings that are invalid or contradict each other.
        """
        from controller.services.operation_runner import RunnerContext
        from controller.services.operation_runner.context import new_incarnation

        return RunnerContext(
            store=self.store,
            planes=self.planes,
            runner_id=runner_id or process_name(),
            lease_seconds=self.settings.operation_claim_seconds,
            should_stop=should_stop,
            incarnation=incarnation or new_incarnation(),
        )

    def close(self) -> None:
        """Close the connections of the store, and of the data planes if these were used."""
        if "planes" in self.__dict__:
            for plane in self.planes.values():
                plane.close()
        self.store.dispose()


def plane_settings(settings: Settings) -> PlaneSettings:
    """Return the addresses, secrets and time limits of the data planes from the settings. Raises InvalidInput if the settings contradict
    each other.
    """
    return PlaneSettings(
        embedded_url=settings.embedded_dsn,
        call_timeout_seconds=settings.call_timeout_seconds,
        reshape_timeout_seconds=settings.reshape_timeout_seconds,
        journal_url=settings.database_url.get_secret_value(),
        pulsar=pulsar_access(settings),
        pulsar_load=LoadSettings(
            page_seconds=settings.pulsar_page_seconds,
            pages_from=settings.pulsar_pages_from_segments,
            broker_url=settings.pulsar_broker_url,
        ),
    )


def pulsar_access(settings: Settings) -> PulsarAccess | None:
    """Return the access to the Pulsar cluster; None if no cluster is configured. Raises InvalidInput for a service address without an
    admin address.
    """
    if settings.pulsar_admin_url is None:
        if settings.pulsar_service_url is not None:
            raise InvalidInput(
                "CLEAVE_PULSAR_SERVICE_URL is set and CLEAVE_PULSAR_ADMIN_URL is not; set both, or neither"
            )
        return None
    token = settings.pulsar_token
    return PulsarAccess(
        admin_url=settings.pulsar_admin_url,
        service_url=settings.pulsar_service_url,
        token=token.get_secret_value() if token else None,
        token_file=settings.pulsar_token_file,
        ca_file=settings.pulsar_ca_file,
        cert_file=settings.pulsar_cert_file,
        key_file=settings.pulsar_key_file,
        verify_hostname=settings.pulsar_verify_hostname,
        encryption_key=settings.pulsar_encryption_key,
        encryption_public_key_file=settings.pulsar_encryption_public_key_file,
        encryption_private_key_file=settings.pulsar_encryption_private_key_file,
    )


def addresses_of(settings: Settings, data_plane: str) -> dict[str, str | None]:
    """Return the addresses at which applications reach the logs of a data plane, without credentials: `database_url` for the plane
    `embedded`; `admin_url` and `service_url`, None if they are not set, for every other plane. Raises InvalidInput for an invalid database
    URL.
    """
    if data_plane == "embedded":
        return {"database_url": DatabaseAddress.of(settings.embedded_dsn).without_login.uri}
    return {"admin_url": settings.pulsar_admin_url, "service_url": settings.pulsar_service_url}


def process_name() -> str:
    """Return a name of this process for claims and leases: host, process id and a random part. Each call returns another name."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"


@contextmanager
def application(
    settings: Settings | None = None, *, name: str = "cleave", statement_seconds: float = STATEMENT_SECONDS
) -> Iterator[Application]:
    """Yield an application, and close its connections at the end of the block. `settings` None: the settings of the environment and `.env`,
    for which InvalidInput is raised if one is invalid.

    `name` is the application name of its database connections; a statement without an answer after `statement_seconds` fails. Nothing
    connects before the first use.
    """
    settings = settings or load_settings()
    store = Store(
        settings.database_url.get_secret_value(),
        application_name=name,
        pool_size=settings.worker_parallel_operations + OTHER_CONNECTIONS,
        statement_seconds=statement_seconds,
    )
    app = Application(settings, store)
    try:
        yield app
    finally:
        app.close()


@dataclass(frozen=True, slots=True)
class ConsumerServices:
    """The services behind a worker's HTTP API.

    `app` has the store and the data planes of the worker, for the calls of consumers. `api` answers the calls of people
    and has connections of its own, so that these calls do not delay the worker. The server closes `api`.
    """

    leader: SessionLeader
    layouts: LayoutFeed
    topics: TopicFeed
    key_counts: KeyCountLanding
    suspects: Suspects
    app: Application
    api: Application


class ConsumerServer(Protocol):
    """A server for the consumers of the topics that a worker leads."""

    @property
    def address(self) -> str:
        """The address at which consumers reach the server."""

    def serve(self, services: ConsumerServices) -> BackgroundService:
        """Set the services, and return the background services to run in threads of the worker."""


def build_worker(
    app: Application,
    worker_id: str | None = None,
    served: ConsumerServer | None = None,
    *,
    collects: bool = False,
) -> Worker:
    """Build a worker that evaluates topics, runs operations, holds leases and runs the background services. The worker also serves
    consumers if `served` is given, and collects load if `collects`.

    `worker_id` None: a unique name of this process. Starts nothing, but passes the services to `served`. Raises InvalidInput for an invalid
    `worker_id`, and for settings that are invalid or contradict each other.
    """
    from controller.postgres.listener import Listener
    from controller.services.operation_runner.context import new_incarnation
    from controller.services.worker.schema_version import SchemaVersion
    from controller.services.worker.sensors import default_sensors
    from controller.services.worker.shard_leases import ShardLeases
    from controller.services.worker.worker import Worker
    from controller.store.postgres import migrations

    settings, incarnation = app.settings, new_incarnation()
    worker_id = demand_name("worker", worker_id) if worker_id else process_name()
    sensors = default_sensors(
        load_lane=settings.worker_load_lane,
        merge_lane=settings.worker_merge_lane,
        call_timeout_seconds=settings.call_timeout_seconds,
    )
    listener = Listener(
        app.store.address, sorted({channel for sensor in sensors for channel in sensor.channels})
    )
    leases = ShardLeases(
        Store(
            app.store.address,
            application_name="cleave-leases",
            pool_size=1,
            statement_seconds=max(SHORTEST_STATEMENT_SECONDS, settings.worker_lease_seconds / 3),
        ),
        worker_id,
        shard_count=settings.worker_shards,
        ttl_seconds=settings.worker_lease_seconds,
        clock=SystemClock(),
        address=None if served is None else served.address,
        incarnation=incarnation,
        schema=SchemaVersion(migrations.newest_known()),
    )

    def demand_schema() -> None:
        with app.store.transaction() as tx:
            migrations.demand_current(tx)

    runner = partial(app.runner, worker_id, incarnation=incarnation)
    loop = _work_loop(app, worker_id, sensors, listener, leases, runner)
    background_services = _background_services(app, leases, loop.rescan)
    background_services += () if served is None else _serving(app, leases, served)
    background_services += (
        (build_collection(app, holder=worker_id, incarnation=incarnation),) if collects else ()
    )
    return Worker(loop, leases, listener, background_services, worker_id, demand_schema)


def build_server(app: Application, served: ConsumerServer) -> tuple[BackgroundService, ...]:
    """Build the services of a server that leads no topic and redirects consumers' sessions to workers, and pass them to `served`. Return
    the background services to run in threads. Raises InvalidInput for settings that are invalid or contradict each other.
    """
    from controller.services.worker.shard_leases import ShardLeases

    settings = app.settings
    none_held = ShardLeases(
        app.store,
        process_name(),
        shard_count=settings.worker_shards,
        ttl_seconds=settings.worker_lease_seconds,
        clock=SystemClock(),
    )
    return _serving(app, none_held, served)


def _serving(app: Application, leases: ShardLeases, served: ConsumerServer) -> tuple[BackgroundService, ...]:
    """Build the session leader, the feeds of watches, and the services that answer requests, and pass them to the server. The leader leads
    the topics in the shards that `leases` hold. Return the background services to run in threads, which include the server. Raises
    InvalidInput for settings that are invalid or contradict each other.
    """
    from controller.postgres.listener import Listener
    from controller.services.key_count_landing import KeyCountLanding
    from controller.services.reconciler import Suspects
    from controller.services.watches import feeds, layout_feed, topic_feed

    settings = app.settings
    leader = _session_leader(app, leases)
    watch_listener = Listener(
        app.store.address, (*layout_feed.CHANNELS, topic_feed.CHANNEL), application_name="cleave-watches"
    )
    layouts = layout_feed.LayoutFeed(
        app.store, watch_listener.interrupt, shard_count=settings.worker_shards, clock=SystemClock()
    )
    topics = topic_feed.TopicFeed(app.store, watch_listener.interrupt, clock=SystemClock())
    feed_loop = feeds.Feeds(watch_listener, (layouts, topics), clock=SystemClock())
    key_counts = KeyCountLanding(
        app.store,
        partial(key_count_area, settings),
        worker=file_name_part(process_name()),
    )
    suspects = Suspects(app.store, app.planes, SystemClock())
    services = ConsumerServices(
        leader,
        layouts,
        topics,
        key_counts=key_counts,
        suspects=suspects,
        app=app,
        api=Application(
            settings, Store(app.store.address, application_name="cleave-api", pool_size=API_TRANSACTIONS)
        ),
    )
    return leader, feed_loop, key_counts, suspects, served.serve(services)


def _session_leader(app: Application, leases: ShardLeases) -> SessionLeader:
    """Return the leader of the topics in the shards that `leases` hold, with connections of its own. Raises InvalidInput for settings that
    contradict each other.
    """
    from controller.postgres.listener import Listener
    from controller.services.consumer_sessions import leader as sessions
    from controller.services.consumer_sessions.timing import ConsumerTiming

    settings = app.settings
    return sessions.SessionLeader(
        Store(
            app.store.address,
            application_name="cleave-leader",
            pool_size=1,
            statement_seconds=settings.worker_statement_seconds,
        ),
        Listener(app.store.address, sessions.CHANNELS, application_name="cleave-sessions"),
        leases,
        shard_count=settings.worker_shards,
        timing=ConsumerTiming(
            settings.consumer_grace_seconds,
            settings.consumer_release_seconds or math.inf,
            settings.bucket_gap_seconds,
        ),
        clock=SystemClock(),
    )


def key_count_area(settings: Settings) -> LandingArea:
    """Return the landing area of key counts."""
    from controller.landing.area import LandingArea
    from controller.landing.schemas import KEY_COUNT_SCHEMA

    return LandingArea(settings.key_counts_location, KEY_COUNT_SCHEMA)


def file_name_part(process: str) -> str:
    """Return the name of the process as a part of file names: colons become hyphens, and hyphens at the beginning are removed."""
    return process.replace(":", "-").lstrip("-")


def _work_loop(
    app: Application,
    worker_id: str,
    sensors: Sequence[Sensor],
    listener: Listener,
    leases: ShardLeases,
    build_runner: Callable[..., RunnerContext],
) -> WorkLoop:
    """Build the worker's loop, which evaluates, runs operations and sweeps deletion entries when it is woken, for topics in the shards that
    `leases` hold. `build_runner` is called with `should_stop` and returns the context of the loop's runner, which stops with the loop.
    """
    from controller.services import autoscaler
    from controller.services.deletion_sweeper import sweep
    from controller.services.operation_runner import run_due
    from controller.services.worker.work_loop import WorkLoop

    settings = app.settings

    def evaluate(lanes: Collection[Lane], topic_ids: Collection[int] | None, shards: Shards) -> int:
        result = autoscaler.run_pass(
            app.store,
            app.planes,
            lanes,
            decided_by=f"worker {worker_id}",
            limit=settings.pass_batch_topics,
            shards=shards,
            topic_ids=topic_ids,
            demand_right_to_act=lambda tx: leases.demand_held(tx, shards),
        )
        return len(result.operation_ids)

    def run_operations(shards: Shards) -> int:
        return run_due(runner, limit=OPERATIONS_TOGETHER, shards=shards)

    def sweep_deletion_entries() -> None:
        sweep(app.store, app.planes, should_stop=runner.should_stop)

    loop = WorkLoop(
        app.store,
        listener,
        sensors,
        evaluate=evaluate,
        run_operations=run_operations,
        sweep_deletion_entries=sweep_deletion_entries,
        shards=lambda: leases.held,
        sweep_seconds=settings.worker_sweep_seconds,
        clock=SystemClock(),
        parallel_operations=settings.worker_parallel_operations,
    )
    runner = build_runner(should_stop=lambda: loop.is_stopping)
    return loop


def _background_services(
    app: Application, leases: ShardLeases, rescan: Callable[[], None]
) -> tuple[BackgroundService, ...]:
    """Build the background services, except services that these settings and data planes leave without work. Starts none. The verifier
    calls `rescan` after it has verified topics. Raises InvalidInput for settings that are invalid or contradict each other.
    """
    from controller.services.approval_answers import ApprovalClock
    from controller.services.drain_watch import DrainWatch
    from controller.services.gate_keeper import GateKeeper
    from controller.services.key_sampler import KeySampler
    from controller.services.lock_limiter import LockLimiter
    from controller.services.log_trimmer import LogTrimmer
    from controller.services.mirror import MirrorLoop
    from controller.services.reconciler import Verifier, reconcile

    settings = app.settings
    events = build_asset_events(app, lambda: leases.held)
    optional = (
        GateKeeper(app.store, app.planes, lambda: leases.held, SystemClock()),
        MirrorLoop(
            app.store, app.planes, lambda: leases.held, interval_seconds=settings.mirror_interval_seconds
        ),
        LogTrimmer(app.planes, retention_seconds=settings.embedded_retention_seconds),
        LockLimiter(app.planes),
        KeySampler(
            app.store,
            app.planes,
            lambda: leases.held,
            SystemClock(),
            messages=settings.key_sample_messages,
            from_load=settings.key_sample_from_load,
            every_seconds=settings.key_sample_every_seconds,
            fresh_seconds=settings.key_sketch_seconds,
        ),
    )
    return (
        ApprovalClock(app.store, interval_seconds=settings.worker_sweep_seconds),
        DrainWatch(
            app.store,
            app.planes,
            lambda: leases.held,
            SystemClock(),
            reconcile=partial(reconcile, app.store, app.planes),
        ),
        Verifier(app.store, app.planes, lambda: leases.held, rescan),
        *(service for service in optional if service.is_needed),
        *([events] if events is not None else []),
    )


def build_asset_events(app: Application, shards: Callable[[], Shards]) -> AssetEventPoster | None:
    """Build the sender of layout changes to Airflow. None unless the address of Airflow is set, with a token or with a user and a password.
    Layout changes of topics in the shards that `shards` returns are posted. Raises InvalidInput for a malformed token.
    """
    from controller.postgres.listener import Listener
    from controller.services import asset_events
    from controller.services.asset_events import AssetEventPoster

    rest = build_airflow_rest(app.settings)
    if rest is None:
        return None
    listener = Listener(app.store.address, asset_events.CHANNELS, application_name="cleave-asset-events")
    return AssetEventPoster(app.store, listener, rest, shards=shards)


def build_airflow_rest(settings: Settings) -> AirflowRest | None:
    """Build a client of Airflow's REST API; None unless the address is set, with a token or with a user and a password. Raises InvalidInput
    for a malformed token.
    """
    from controller.services.asset_events import AirflowRest

    login = airflow_login(settings)
    return None if login is None or not login.is_set else AirflowRest(login)


def airflow_login(settings: Settings) -> AirflowLogin | None:
    """Return the address of Airflow with its login: the token, the user and the password (both None unless both are set), and the proxy.
    None if no address is set. The login may be incomplete (`AirflowLogin.is_set`). Raises InvalidInput for a malformed token.
    """
    from controller.services.asset_events import AirflowLogin

    if settings.airflow_url is None:
        return None
    token, username, password = settings.airflow_token, settings.airflow_username, settings.airflow_password
    has_user = username is not None and password is not None
    return AirflowLogin(
        settings.airflow_url,
        bearer_token(token.get_secret_value(), "CLEAVE_AIRFLOW_TOKEN") if token else None,
        username if has_user else None,
        password.get_secret_value() if password is not None and has_user else None,
        settings.airflow_proxy.get_secret_value() if settings.airflow_proxy else None,
    )


def build_collection(
    app: Application, prefix: str = "", *, holder: str | None = None, incarnation: str | None = None
) -> LeasedCollection:
    """Build the collection of samples and consumers of the topics whose names begin with `prefix`. Of all processes with the same prefix
    and data planes, only the process that holds a lease collects. `holder` and `incarnation` name the process in the lease; `holder` None:
    a unique name of this process. A worker passes its own incarnation; another process passes None.
    """
    from controller.services.collection.lease import CollectionLease, LeasedCollection

    settings = app.settings
    ttl_seconds = max(settings.worker_lease_seconds, 3 * settings.collect_interval_seconds)
    lease = CollectionLease(
        app.store,
        holder or process_name(),
        incarnation,
        prefix=prefix,
        data_planes=app.planes,
        ttl_seconds=ttl_seconds,
        clock=SystemClock(),
    )
    collector = build_collector(app, prefix, takes_turn=lease.take)
    return LeasedCollection(
        collector, build_consumer_watch(app, prefix, has_turn=lambda: lease.is_held), lease
    )


def build_collector(
    app: Application, prefix: str = "", takes_turn: Callable[[], int | None] = lambda: 1
) -> LoadCollector:
    """Build a collector of the topics whose names begin with `prefix`. The collector skips a tick at which `takes_turn` returns None."""
    from controller.landing.area import LandingArea
    from controller.services.collection.load_collector import LoadCollector

    settings = app.settings
    return LoadCollector(
        app.store,
        app.planes,
        LandingArea(settings.landing_url),
        name=file_name_part(process_name()),
        interval_seconds=settings.collect_interval_seconds,
        clock=STEADY_CLOCK,
        prefix=prefix,
        takes_turn=takes_turn,
    )


def load_intake(app: Application) -> Callable[[str, Sequence[Counters], int | None], tuple[int, list[str]]]:
    """Return the function that lands samples that brokers send (`services.load_intake.take`). Its arguments are the source, the samples,
    and the time of the request.
    """
    from controller.landing.area import LandingArea
    from controller.services.load_intake import take

    return partial(take, app.store, LandingArea(app.settings.landing_url))


def build_consumer_watch(
    app: Application, prefix: str = "", has_turn: Callable[[], bool] = lambda: True
) -> ConsumerWatch:
    """Build a watch over the consumers of the topics whose names begin with `prefix`. The watch skips a round at which `has_turn` returns
    False.
    """
    from controller.services.collection.consumer_watch import ConsumerWatch
    from controller.store.topics.watched_logs import SEALED_FOR_SECONDS

    return ConsumerWatch(
        app.store,
        app.planes,
        interval_seconds=app.settings.collect_consumers_interval_seconds,
        sealed_for_seconds=SEALED_FOR_SECONDS,
        clock=SystemClock(),
        prefix=prefix,
        has_turn=has_turn,
    )


def run_aggregation(settings: Settings, run_id: str, window_end_ms: int | None = None) -> AggregationResult:
    """Aggregate one window of the landing area in the settings: compute the rates, store the load records that change, publish the rates to
    the history, and return the result. The window has the length in the settings and ends at `window_end_ms` (milliseconds since the Unix
    epoch; None or 0: now). `run_id` identifies the run: if a run of this id, this window or a later window was merged before, nothing is
    stored, and `applied` of the result is False.

    Raises InvalidInput if the length of the window or the address of the database is not valid; StoreUnavailable; Retryable if the storage
    cannot read a file and no other file is usable; OSError if the storage does not answer; and the errors of the engine.
    """
    from controller.domain.load_window import LoadWindow
    from controller.landing.area import LandingArea
    from controller.landing.history import RateHistory
    from controller.services.load_aggregation import aggregate_as_loader, counts_since_last_run

    return aggregate_as_loader(
        settings.loader_dsn,
        LandingArea(settings.landing_url),
        RateHistory(settings.history_location),
        LoadWindow.ending_at(window_end_ms or SystemClock().now_ms(), settings.rate_window_seconds),
        run_id=run_id,
        key_counts=partial(counts_since_last_run, key_count_area(settings), settings.key_sketch_seconds),
        spark_master=settings.spark_master,
        spark_conf=settings.spark_conf,
    )


def build_backtest(app: Application, computation: Computation | None = None) -> PolicyBacktest:
    """Build the service that runs backtests on the stored history of rates. `computation` computes the backtests that do not use Spark;
    None: this process computes them.
    """
    from controller.landing.history import RateHistory
    from controller.services import backtest_computation
    from controller.services.policy_backtest import PolicyBacktest

    settings = app.settings

    return PolicyBacktest(
        app.store,
        RateHistory(settings.history_location),
        backtest_computation.compute if computation is None else _costs_by(computation),
        spark_master=settings.spark_master,
        spark_conf=settings.spark_conf,
        parallel=settings.backtest_parallel_tasks,
    )


def _costs_by(computation: Computation) -> Compute:
    """Return a function that computes the costs of a backtest in the process of the computation. It has the arguments of
    `backtest_computation.compute`, and never calls the last, which reports progress.
    """
    from controller.services import backtest_computation

    def compute(*work: Any) -> Any:
        *arguments, _done = work  # another process reports no progress
        return computation.run(backtest_computation.compute, *arguments)

    return compute


def build_trials(app: Application, computation: Computation | None = None) -> Trials:
    """Return a function that runs a backtest of candidates, in which a reshape has a cost, so that the policy with the most reshapes does
    not win. `computation` is used as in `build_backtest`.

    The cost is that of the default policy; otherwise a tuned candidate could lower its own measure. The function raises Unsupported
    without the extra `backtest`.
    """
    from controller.domain.policy import AutoScalePolicy
    from controller.services.policy_backtest import Loads

    backtest = build_backtest(app, computation)
    reseal_seconds = AutoScalePolicy().reseal_price_segment_seconds

    def run(
        variants: Sequence[Variant],
        topics: Iterable[str],
        since: datetime,
        until: datetime,
        *,
        asked_by: str,
        request_key: str,
    ) -> BacktestAnswer:
        try:
            from controller.backtest.score import Prices
            from spark_jobs.policy_backtest import Candidate, Question
        except ImportError as error:
            raise Unsupported(
                f"a backtest needs {error.name}; install it, or this package with the extra 'backtest'"
            ) from None
        question = Question(
            tuple(Candidate(variant.name, variant.rule, variant.parameters) for variant in variants),
            Prices(reseal_seconds=reseal_seconds),
        )
        loads = Loads(since, until, tuple(topics))
        return backtest.run(question, loads, asked_by=asked_by, request_key=request_key)

    return run
