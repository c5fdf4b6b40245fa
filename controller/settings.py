"""Settings: the values that an operator may set, read from the environment (prefix CLEAVE_) or a `.env` file.

Each field has its unit, bounds and meaning. Policies are not settings: PostgreSQL stores them at three levels, and they change without a
restart. This module opens no connections.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from controller.domain.errors import InvalidInput
from controller.domain.http_proxies import Proxy
from controller.postgres.address import DatabaseAddress

SHORTEST_STATEMENT_SECONDS = 5.0
"""Minimum time that a worker waits for one statement, independent of its lease time."""


class Settings(BaseSettings):
    """Settings that `cleave`, the worker, the collector and the Airflow tasks read at their start."""

    model_config = SettingsConfigDict(
        env_prefix="CLEAVE_", env_file=".env", extra="ignore", frozen=True, allow_inf_nan=False
    )

    database_url: SecretStr = SecretStr("postgresql://localhost/cleave")
    """Cleave's own database (never Airflow's), as a user in role cleave_controller. Several hosts in the form of libpq:
    `postgresql://user:password@host1,host2/cleave?target_session_attrs=read-write`.
    """
    loader_url: SecretStr | None = None
    """The same database as a user in role cleave_spark_loader. Default: the controller's URL."""
    embedded_url: SecretStr | None = None
    """Database of the embedded data plane. Default: the controller's database."""
    pulsar_admin_url: str | None = None
    """Web address of the Pulsar cluster (`http://broker:8080`, several separated by commas). Unset: no Pulsar cluster."""
    pulsar_service_url: str | None = None
    """Binary address of the Pulsar cluster (`pulsar://` or `pulsar+ssl://`). Workers pass it to applications, and need
    it to sample keys and for subscriptions of standard clients; commands need it to create such subscriptions and for
    dead letters.
    """
    pulsar_token: SecretStr | None = None
    """Token of a Pulsar role that administers the tenants of Cleave's topics."""
    pulsar_token_file: str | None = None
    """File with the token. It is read for each call, so that it may be renewed, and takes precedence over the token itself."""
    pulsar_ca_file: str | None = None
    """PEM bundle of certificate authorities for the brokers' certificates. Default: the system's."""
    pulsar_cert_file: str | None = None
    """Client certificate, PEM; set it together with its key."""
    pulsar_key_file: str | None = None
    """Key of the client certificate, PEM."""
    pulsar_verify_hostname: bool = True
    """True if a broker's certificate must name the address at which the broker is reached."""
    pulsar_encryption_key: str | None = None
    """Name of the key with which producers of this process encrypt messages; set it together with the key."""
    pulsar_encryption_public_key_file: str | None = None
    """Key for encryption, PEM. Only applications need it."""
    pulsar_encryption_private_key_file: str | None = None
    """Key for decryption, PEM. Only applications that consume need it."""
    pulsar_broker_url: str | None = None
    """Pattern of each broker's web address, `https://{host}:8443`. Default: the addresses that the cluster lists."""
    pulsar_page_seconds: float = Field(8.0, gt=0.1, le=600.0)
    """Seconds that a broker has for its whole metrics page; less than the time between two samples."""
    pulsar_pages_from_segments: int = Field(200, ge=0)
    """Number of segments from which on metrics pages are sampled; fewer segments are sampled by each topic's statistics. 0: always pages."""
    landing_url: str = "landing"
    """Landing area to which the collector writes samples: a path or any Hadoop URL."""
    history_url: str | None = None
    """Directory of daily load records for replay. Default: `<landing_url>-history`."""

    api_url: str | None = None
    """Address of a worker or `cleave serve` that commands use instead of the database. `cleave --api-url` takes precedence."""
    api_token: SecretStr | None = None
    """Token of `cleave token` for that address: role reader to read, operator or admin to change."""
    api_token_file: str | None = None
    """File with the token; takes precedence over the token itself."""
    api_proxy: SecretStr | None = None
    """Proxy for commands to that address, `http://host:port`. Unset: no proxy; `HTTP_PROXY` and similar variables are ignored."""

    api_secret: SecretStr | None = None
    """Secret that signs the tokens of applications and people; 32 characters or more, the same for every worker. Unset: no HTTP API."""
    serve_host: str = "127.0.0.1"
    """Address on which a worker serves consumers and operators."""
    serve_port: int = Field(0, ge=0, le=65_535)
    """Port for `serve_host`; 0 selects a free port, which `cleave doctor` and `inspect.leases` show."""
    serve_url: str | None = None
    """Address at which consumers reach this worker, if it differs: behind a proxy, or under another name."""
    serve_cert_file: str | None = None
    """Certificate of this worker, PEM, with the intermediate certificates. Together with its key it enables HTTPS instead of HTTP."""
    serve_key_file: str | None = None
    """Key of the certificate, PEM."""
    serve_connections: int = Field(10_000, ge=1, le=1_000_000)
    """Maximum number of requests and streams that a worker serves at once; each consumer and each watch holds a stream.
    Beyond the maximum the answer is 503. Watches may use half of it, other calls three quarters, consumers' streams
    seven eighths, which leaves capacity for heartbeats. The process needs 1,500 open files more than this.
    """
    serve_connections_of_subject: int | None = Field(None, ge=1, le=1_000_000)
    """Maximum number of them for one token subject, with the same shares for watches and calls. Default: a quarter of all. The subject is the
    claim `sub` of a token (`cleave token --subject`).
    """
    serve_data_plane: str = "embedded"
    """Data plane of topics that are created over HTTP without a data plane, as by Pulsar's admin client."""
    serve_wait_seconds: float = Field(55.0, ge=0.0, le=3600.0)
    """Seconds after which a call of Pulsar's admin API is answered with 503 while its operation continues. Pulsar's own client waits 60 s.
    """
    scalable_topics_enabled: bool = True
    """False: Pulsar's admin calls of scalable topics are answered with 503, as by a broker on which scalable topics are disabled."""
    consumer_grace_seconds: float = Field(60.0, ge=2.0, le=3600.0)
    """Grace period in seconds: a consumer that is disconnected, or hangs, keeps its entry buckets for this time. For a
    consumer that hangs, the time begins at its last heartbeat.
    """

    consumer_release_seconds: float = Field(0.0, ge=0.0, le=86_400.0)
    """Seconds after which a consumer loses a bucket that it has not released; its unacknowledged messages are delivered again. 0: no limit.
    """
    bucket_gap_seconds: float = Field(20.0, gt=0.0, le=86_400.0)
    """Seconds after which a bucket without a reader is an alarm in the log, the metrics, `inspect.bucket_gaps` and `cleave doctor`: a bucket
    that its owner has not released, or whose owner is disconnected. Must be shorter than the grace period to report the latter.
    """

    worker_lease_seconds: float = Field(15.0, gt=1.0, le=600.0)
    """Seconds after which the topic shards of a dead worker move to other workers."""
    worker_shards: int = Field(16, ge=1, le=4096)
    """Number of topic shards; the same for every process of one database. To change it, first stop all workers: a worker with another number
    waits until twice the lease time after their end.
    """
    worker_parallel_operations: int = Field(2, ge=1, le=64)
    """Maximum number of operations that a worker runs at once. More than 2 gain nothing on the embedded plane; a slow broker needs more."""
    worker_load_lane: bool = False
    """True: the worker also evaluates the load lane. It reacts within seconds, and Airflow's passes find the work done."""
    worker_merge_lane: bool = False
    """True: the worker also evaluates the merge lane, for installations without Airflow."""
    worker_sweep_seconds: float = Field(30.0, gt=0.0)
    """Seconds between sweeps, which find work whose notification was lost."""
    mirror_interval_seconds: float = Field(2.0, ge=0.1)
    """Seconds between two reads of each topic whose layout the broker keeps (Pulsar 5)."""
    operation_claim_seconds: float = Field(30.0, gt=5.0, le=3600.0)
    """Seconds that a runner's claim lasts without renewal; longer than any data-plane call."""
    operation_deadline_seconds: float = Field(120.0, gt=1.0)
    """Seconds after which an operation that has not reached its fence is aborted."""
    call_timeout_seconds: float = Field(5.0, gt=0.1, le=60.0)
    """Timeout of one data-plane call in seconds."""
    reshape_timeout_seconds: float = Field(20.0, gt=0.1, le=600.0)
    """Timeout in seconds of a split or merge by a broker that keeps the layout (Pulsar 5). After a timeout the topic is
    blocked for the same time again, because the call may be in progress. Shorter than `operation_claim_seconds`.
    """

    key_sample_messages: int = Field(2_000, ge=0, le=100_000)
    """Number of a segment's newest messages that are read to build its key histogram. 0: no histogram, and splits cut at equal widths."""
    key_sample_from_load: float = Field(0.7, ge=0.0, le=1.0)
    """Load relative to its capacity from which on a segment's keys are sampled, under the profile `adaptive`."""
    key_sample_every_seconds: float = Field(60.0, ge=1.0, le=3600.0)
    """Seconds between two key samples of a segment."""
    key_sketch_seconds: float = Field(600.0, ge=1.0, le=86_400.0)
    """Seconds for which decisions use a key histogram."""

    collect_interval_seconds: float = Field(10.0, gt=0.1)
    """Seconds between two samples of every watched segment."""
    collect_consumers_interval_seconds: float = Field(1.0, ge=0.1)
    """Seconds between two observations of consumers, on data planes that report them; a large fleet is observed in parts."""
    rate_window_seconds: float = Field(60.0, gt=0.1)
    """Seconds over which rates are averaged."""
    retention_minutes: float = -1.0
    """Minutes after which sealed, drained segments are deleted; a negative value keeps them for ever."""
    embedded_retention_seconds: float = Field(86_400.0, ge=-1.0)
    """Age in seconds at which messages of embedded logs that every subscription has acknowledged are deleted; -1: never."""
    pass_batch_topics: int = Field(500, ge=1, le=100_000)
    """Number of topics that a fleet pass evaluates in one transaction."""

    landing_keep_days: int = Field(7, ge=1)
    """Days for which samples and key counts are kept; maintenance deletes older ones."""
    history_keep_days: int = Field(400, ge=1)
    """Days for which rates for replay, and cycles of bundle balancing with their proposals, are kept."""
    backtest_keep_days: int = Field(90, ge=1)
    """Days for which backtests are kept; a backtest on which a candidate was promoted or refused is kept for ever."""
    audit_keep_days: int = Field(400, ge=30)
    """Days for which the audit of HTTP requests is kept."""

    pulsar_cluster: str = "standalone"
    """Pulsar's name of the cluster, for bundle balancing."""
    bundle_reports_url: str | None = None
    """Landing area of broker reports. Default: `<landing_url>-bundles`."""
    bundle_balance: dict[str, bool | int | float | str] = {}
    """Parameters of bundle balancing that differ from their defaults, as JSON: `{"shedder": "threshold"}`."""
    bundle_window_seconds: float = Field(180.0, gt=1.0)
    """Seconds of reports from which the load of bundles is computed; several times the collector's interval."""
    bundle_split_algorithms: list[str] = ["all"]
    """Algorithms for bundle splits by hand, as JSON; Pulsar's `supportedNamespaceBundleSplitAlgorithms`. `all` means every algorithm."""
    bundle_max_splits: int = Field(10, ge=0)
    """Maximum number of bundle splits of one application of proposals. Repeated applications of one cycle count as one.
    """
    bundle_max_unloads: int = Field(16, ge=0)
    """Maximum number of bundle moves of one application of proposals. Repeated applications of one cycle count as one.
    """

    bundle_inputs_keep_days: int = Field(3, ge=1)
    """Days for which a cycle can be replayed; then its inputs are deleted. 2,000 bundles need about 0.3 GB a day."""

    spark_master: str = Field("local[2]", validation_alias="SPARK_MASTER")
    """Spark master of aggregations and backtests: local[n], spark://host:port, yarn, k8s://..., sc://host:port (Spark
    Connect) or none. Bundles need Spark; without it PostgreSQL aggregates the load of topics.
    """
    spark_conf: dict[str, str] = Field({}, repr=False)
    """Spark settings of the aggregation, as JSON: `{"spark.cores.max": "4"}`. With Connect, only settings of a session."""
    backtest_parallel_tasks: int = Field(2, ge=1, le=10_000)
    """Number of concurrent tasks of a backtest on Spark: the cores that the master provides."""
    airflow_url: str | None = None
    """Airflow's address, for `cleave doctor`. With a token or a user the worker also posts asset events."""
    airflow_token: SecretStr | None = None
    """Bearer token for Airflow. Airflow's tokens expire; with a user and password, Cleave requests a new token when needed."""
    airflow_username: str | None = None
    """Airflow user with the rights to read assets and create asset events."""
    airflow_password: SecretStr | None = None
    """Password of the Airflow user."""
    airflow_proxy: SecretStr | None = None
    """Proxy for requests to Airflow, `http://host:port`. Unset: no proxy; `HTTP_PROXY` and similar variables are ignored."""

    @field_validator("database_url", "loader_url", "embedded_url")
    @classmethod
    def _is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        """Return the URL unchanged. Raises ValueError, without secrets in the message, unless the URL is an address of PostgreSQL."""
        if value is not None:
            try:
                DatabaseAddress.of(value.get_secret_value())
            except InvalidInput as error:
                raise ValueError(error.message) from None
        return value

    @field_validator("api_proxy", "airflow_proxy")
    @classmethod
    def _is_proxy(cls, value: SecretStr | None) -> SecretStr | None:
        """Return the URL unchanged. Raises ValueError, without secrets in the message, unless the URL is an address of a proxy."""
        if value is not None:
            try:
                Proxy.of(value.get_secret_value())
            except InvalidInput as error:
                raise ValueError(error.message) from None
        return value

    @property
    def worker_statement_seconds(self) -> float:
        """Longest wait in seconds of a worker for one statement: half the lease time, so that a worker leaves a frozen database within
        one lease time, but at least `SHORTEST_STATEMENT_SECONDS`.
        """
        return max(SHORTEST_STATEMENT_SECONDS, self.worker_lease_seconds / 2)

    @cached_property
    def loader_dsn(self) -> str:
        """URL of the loader's login, or of the controller's login if no loader is set. It contains the password; never log it."""
        return (self.loader_url or self.database_url).get_secret_value()

    @cached_property
    def embedded_dsn(self) -> str:
        """URL of the database of the embedded data plane, by default Cleave's own database. It contains the password; never log it."""
        return (self.embedded_url or self.database_url).get_secret_value()

    @cached_property
    def history_location(self) -> str:
        """Directory of daily load records."""
        return self.history_url or f"{self.landing_url.rstrip('/')}-history"

    @property
    def key_counts_location(self) -> str:
        """Landing area of key counts that producers report."""
        return f"{self.landing_url.rstrip('/')}-key-counts"

    @property
    def spark_label(self) -> str:
        """Spark's master without the token of a Connect server, for messages."""
        return self.spark_master.partition(";")[0].rstrip("/")

    @property
    def bundle_reports_location(self) -> str:
        """Landing area of broker reports."""
        return self.bundle_reports_url or f"{self.landing_url.rstrip('/')}-bundles"

    @property
    def database_label(self) -> str:
        """The database's address without its password, for messages."""
        return DatabaseAddress.of(self.database_url.get_secret_value()).label


def load_settings(**overrides: object) -> Settings:
    """Read the settings from `overrides` (by field name; unknown names are ignored), the environment, and `.env` in the current
    directory, in this order of precedence.

    Raises InvalidInput with the variable and the error for an invalid value, never with the value itself.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except SettingsError as error:  # the value must be JSON and is not
        field = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), None)
        name = "of Cleave" if field is None else f"CLEAVE_{field.upper()}"
        raise InvalidInput(
            f"Setting {name}: the value is not JSON. Correct it in the environment or in .env."
        ) from None  # the cause quotes the value, which may be a secret
    except ValidationError as error:
        first = error.errors()[0]
        name = "CLEAVE_" + "_".join(str(part) for part in first["loc"]).upper()
        raise InvalidInput(
            f"Setting {name}: {first['msg']}. Correct it in the environment or in .env."
        ) from None  # pydantic's error quotes the value, and a traceback would print it with its password


PROJECT_ROOT = Path(__file__).resolve().parent.parent
