"""Settings: every value an operator may set, read from the environment (prefix CLEAVE_) or a `.env` file.

One field a parameter, with unit, bound and reason. Policies are not settings: they live in PostgreSQL at three levels
and change without a restart. Nothing here connects to anything.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from controller.domain.errors import InvalidInput
from controller.domain.proxies import Proxy
from controller.postgres.address import DatabaseAddress

SHORTEST_STATEMENT_SECONDS = 5.0
"""A worker waits at least this long for one statement, however short its leases are."""


class Settings(BaseSettings):
    """What `cleave`, the worker, the collector and the Airflow tasks read at start."""

    model_config = SettingsConfigDict(
        env_prefix="CLEAVE_", env_file=".env", extra="ignore", frozen=True, allow_inf_nan=False
    )

    database_url: SecretStr = SecretStr("postgresql://localhost/cleave")
    """Cleave's own database (never Airflow's), as a user in role cleave_controller. Several hosts as libpq has them:
    `postgresql://user:password@host1,host2/cleave?target_session_attrs=read-write`.
    """
    loader_url: SecretStr | None = None
    """The same database as a user in role cleave_spark_loader; the controller's URL where unset."""
    embedded_url: SecretStr | None = None
    """Database of the embedded data plane; the controller's own where unset."""
    pulsar_admin_url: str | None = None
    """Web address of the Pulsar cluster (`http://broker:8080`, several separated by commas); none leaves it out."""
    pulsar_service_url: str | None = None
    """Its binary address (`pulsar://` or `pulsar+ssl://`); only producers and consumers of this process need it."""
    pulsar_token: SecretStr | None = None
    """Token of a role that administers the tenants whose topics Cleave keeps."""
    pulsar_token_file: str | None = None
    """A file with the token, read for each call so that it may be renewed; wins over the token itself."""
    pulsar_ca_file: str | None = None
    """PEM bundle the brokers' certificates are checked against; the system's where unset."""
    pulsar_cert_file: str | None = None
    """Client certificate, PEM; together with its key."""
    pulsar_key_file: str | None = None
    """The key of the client certificate, PEM."""
    pulsar_verify_hostname: bool = True
    """Whether a broker's certificate must name the address it was reached at."""
    pulsar_encryption_key: str | None = None
    """What producers of this process call the key they encrypt messages with; together with the key."""
    pulsar_encryption_public_key_file: str | None = None
    """The key to encrypt with, PEM. Only applications need it."""
    pulsar_encryption_private_key_file: str | None = None
    """The key to decrypt with, PEM. Only applications that read need it."""
    pulsar_broker_url: str | None = None
    """Web address of each broker by pattern, `https://{host}:8443`; as the cluster lists them where unset."""
    pulsar_page_seconds: float = Field(8.0, gt=0.1, le=600.0)
    """Time a broker has for its whole metrics page; less than the time between two samples."""
    pulsar_pages_from_segments: int = Field(200, ge=0)
    """So many segments and more are sampled from metrics pages, fewer by each topic's statistics; 0: always pages."""
    landing_url: str = "landing"
    """Where the collector appends samples: a path or any Hadoop URL."""
    history_url: str | None = None
    """Where load records are kept by day for replay; `<landing_url>-history` where unset."""

    api_url: str | None = None
    """Where a worker or `cleave serve` answers: commands then ask there instead of the database (`cleave --api-url` wins)."""
    api_token: SecretStr | None = None
    """Token of `cleave token` that commands show there; of role reader to see, operator or admin to change."""
    api_token_file: str | None = None
    """A file with the token, which wins over the token itself."""
    api_proxy: SecretStr | None = None
    """Proxy through which commands ask there, `http://host:port`. Unset: none, whatever `HTTP_PROXY` and the like say."""

    api_secret: SecretStr | None = None
    """Signs the tokens of applications and people; 32 characters or more, the same for every worker. Unset: none served."""
    serve_host: str = "127.0.0.1"
    """Address on which a worker serves its consumers and its operators."""
    serve_port: int = Field(0, ge=0, le=65_535)
    """Port of it; 0 takes a free one, which `cleave doctor` and `inspect.leases` tell."""
    serve_url: str | None = None
    """Where consumers reach this worker, if not at that address: behind a proxy, or under another name."""
    serve_cert_file: str | None = None
    """Certificate that this worker shows, PEM, with those between it and the authority; with its key: HTTPS instead of HTTP."""
    serve_key_file: str | None = None
    """The key of the certificate, PEM."""
    serve_connections: int = Field(10_000, ge=1, le=1_000_000)
    """Requests and streams that a worker serves at once; each consumer and each watch holds a stream. Beyond it the answer is 503.
    Watches may take half of them, other calls three quarters, consumers' streams seven eighths, so that heartbeats always have room.
    The process needs 1,500 open files more than this.
    """
    serve_connections_of_subject: int | None = Field(None, ge=1, le=1_000_000)
    """The most of them that one subject may hold, with the same parts for watches and calls; a quarter of all where unset. A subject is
    what a token says with `sub` (`cleave token --subject`).
    """
    serve_data_plane: str = "embedded"
    """Data plane of topics that are created over HTTP with no other one named, as by Pulsar's admin client."""
    serve_wait_seconds: float = Field(55.0, ge=0.0, le=3600.0)
    """Pulsar's admin calls answer when what they ask for is done, and with 503 after so long; the operation goes on. Pulsar's own
    client waits 60 s.
    """
    scalable_topics_enabled: bool = True
    """False answers Pulsar's admin calls of scalable topics with 503, as a broker on which they are off."""
    consumer_grace_seconds: float = Field(60.0, ge=2.0, le=3600.0)
    """A consumer that lost its connection, or hangs, may come back within this time and finds its entry buckets as they were. The time of a
    consumer that hangs counts from when it was last heard.
    """

    consumer_release_seconds: float = Field(0.0, ge=0.0, le=86_400.0)
    """A consumer that does not let go of a bucket for so long loses it, and what it has in hand is delivered again; 0: it is
    waited for.
    """
    bucket_gap_seconds: float = Field(20.0, gt=0.0, le=86_400.0)
    """A bucket that nobody reads for so long is an alarm, in the log, the metrics, `inspect.bucket_gaps` and `cleave doctor`: one that
    its owner does not let go of, and one whose owner is not connected. Shorter than the grace period, or the latter never is.
    """

    worker_lease_seconds: float = Field(15.0, gt=1.0, le=600.0)
    """A dead worker's shards move after this long."""
    worker_shards: int = Field(16, ge=1, le=4096)
    """Shards the topics are dealt over; the same number for every worker of one database."""
    worker_parallel_operations: int = Field(2, ge=1, le=64)
    """Operations a worker runs at once; more than 2 gain nothing on the embedded plane, a slow broker wants more."""
    worker_load_lane: bool = False
    """True gives the worker the load lane too: reaction in seconds, Airflow's passes then find the work done."""
    worker_merge_lane: bool = False
    """True gives the worker the merge lane too, for installations without Airflow."""
    worker_sweep_seconds: float = Field(30.0, gt=0.0)
    """The slow safety sweep, should a notification be lost."""
    mirror_interval_seconds: float = Field(2.0, ge=0.1)
    """How often the worker looks at each topic whose layout its broker keeps (Pulsar 5)."""
    operation_claim_seconds: float = Field(30.0, gt=5.0, le=3600.0)
    """How long a runner may hold an operation without renewing; longer than any data-plane call."""
    operation_deadline_seconds: float = Field(120.0, gt=1.0)
    """An operation that has not reached its fence by then is aborted."""
    call_timeout_seconds: float = Field(5.0, gt=0.1, le=60.0)
    """The longest one data-plane call may take."""
    reshape_timeout_seconds: float = Field(20.0, gt=0.1, le=600.0)
    """The longest a split or merge by a broker that keeps the layout (Pulsar 5) may take. It blocks its topic for as long
    again after a time-out, since it may be under way. Shorter than `operation_claim_seconds`.
    """

    key_sample_messages: int = Field(2_000, ge=0, le=100_000)
    """Newest messages of a segment that are looked at to see where its load lies; 0: none, and cuts are of equal width."""
    key_sample_from_load: float = Field(0.7, ge=0.0, le=1.0)
    """Share of its capacity from which on a segment is sampled, under the profile `adaptive`."""
    key_sample_every_seconds: float = Field(60.0, ge=1.0, le=3600.0)
    """A segment is sampled once in so long."""
    key_sketch_seconds: float = Field(600.0, ge=1.0, le=86_400.0)
    """What was sampled plays a part in decisions for so long."""

    collect_interval_seconds: float = Field(10.0, gt=0.1)
    """Time between two samples of every watched segment."""
    collect_consumers_interval_seconds: float = Field(1.0, ge=0.1)
    """Time between two looks at who consumes, on data planes that see it; a large fleet is looked at in turns."""
    rate_window_seconds: float = Field(60.0, gt=0.1)
    """Rates are averages over this window."""
    retention_minutes: float = -1.0
    """Sealed segments are collected this long after they were sealed and drained; negative keeps them for ever."""
    embedded_retention_seconds: float = Field(86_400.0, ge=-1.0)
    """Messages of the embedded logs that every subscription has acknowledged go when they are so old; -1: never."""
    pass_batch_topics: int = Field(500, ge=1, le=100_000)
    """Topics one batch of a fleet pass evaluates in a transaction."""

    landing_keep_days: int = Field(7, ge=1)
    """Days of raw samples and of counts of keys to keep; older ones are deleted by the maintenance."""
    history_keep_days: int = Field(400, ge=1)
    """Days of rates to keep for replay, and of cycles of bundle balancing with their proposals."""
    backtest_keep_days: int = Field(90, ge=1)
    """Days of backtests to keep; what a candidate policy was promoted or refused on is kept for good."""
    audit_keep_days: int = Field(400, ge=30)
    """Days of the audit of HTTP to keep."""

    pulsar_cluster: str = "standalone"
    """Pulsar's own name of the cluster, for the balancing of its bundles."""
    bundle_reports_url: str | None = None
    """Where reports of brokers land; `<landing_url>-bundles` where unset."""
    bundle_balance: dict[str, bool | int | float | str] = {}
    """Parameters of bundle balancing that differ from their defaults, as JSON: `{"shedder": "threshold"}`."""
    bundle_window_seconds: float = Field(180.0, gt=1.0)
    """Reports of so long count for the load of bundles; the collector's interval fits in several times."""
    bundle_split_algorithms: list[str] = ["all"]
    """Algorithms a person may split a bundle by, as JSON; Pulsar's `supportedNamespaceBundleSplitAlgorithms`. `all` names each."""
    bundle_max_splits: int = Field(10, ge=0)
    """Splits one application of proposals carries out."""
    bundle_max_unloads: int = Field(16, ge=0)
    """Moves one application of proposals carries out."""

    bundle_inputs_keep_days: int = Field(3, ge=1)
    """Days a cycle can be replayed; then what it was decided on is forgotten. 2,000 bundles are about 0.3 GB a day."""

    spark_master: str = Field("local[2]", validation_alias="SPARK_MASTER")
    """Where the aggregation runs: local[n], spark://host:port, yarn, k8s://..., sc://host:port (Spark
    Connect) or none.
    """
    spark_conf: dict[str, str] = Field({}, repr=False)
    """Spark's own settings for it, as JSON: `{"spark.cores.max": "4"}`. Over Connect those of a session only."""
    backtest_parallel_tasks: int = Field(2, ge=1, le=10_000)
    """Tasks of a backtest side by side on Spark: as many as the master has cores for it."""
    airflow_url: str | None = None
    """Airflow's address, for `cleave doctor`; with a token or a user the worker posts asset events there, too."""
    airflow_token: SecretStr | None = None
    """Bearer token for it. Airflow's tokens run out: a user and password are asked for a new one each time."""
    airflow_username: str | None = None
    """User who may read assets and create asset events."""
    airflow_password: SecretStr | None = None
    """The user's password."""
    airflow_proxy: SecretStr | None = None
    """Proxy through which Airflow is asked, `http://host:port`. Unset: none, whatever `HTTP_PROXY` and the like say."""

    @field_validator("database_url", "loader_url", "embedded_url")
    @classmethod
    def _is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            try:
                DatabaseAddress.of(value.get_secret_value())
            except InvalidInput as error:
                raise ValueError(error.message) from None
        return value

    @field_validator("api_proxy", "airflow_proxy")
    @classmethod
    def _is_proxy(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            try:
                Proxy.of(value.get_secret_value())
            except InvalidInput as error:
                raise ValueError(error.message) from None
        return value

    @property
    def worker_statement_seconds(self) -> float:
        """The longest wait of a worker for one statement: half a lease, so that a frozen database is left within one."""
        return max(SHORTEST_STATEMENT_SECONDS, self.worker_lease_seconds / 2)

    @cached_property
    def loader_dsn(self) -> str:
        """URL of the loader's login, secrets included: never log it."""
        return (self.loader_url or self.database_url).get_secret_value()

    @cached_property
    def embedded_dsn(self) -> str:
        """URL of the embedded data plane, secrets included: never log it."""
        return (self.embedded_url or self.database_url).get_secret_value()

    @cached_property
    def history_location(self) -> str:
        """Where load records are kept by day."""
        return self.history_url or f"{self.landing_url.rstrip('/')}-history"

    @property
    def key_counts_location(self) -> str:
        """Where counts of keys land that producers hand in."""
        return f"{self.landing_url.rstrip('/')}-key-counts"

    @property
    def spark_label(self) -> str:
        """Spark's master without the token of a Connect server, for messages."""
        return self.spark_master.partition(";")[0].rstrip("/")

    @property
    def bundle_reports_location(self) -> str:
        """Where reports of brokers land."""
        return self.bundle_reports_url or f"{self.landing_url.rstrip('/')}-bundles"

    @property
    def database_label(self) -> str:
        """The database's address without its password, for messages."""
        return DatabaseAddress.of(self.database_url.get_secret_value()).label


def load_settings(**overrides: object) -> Settings:
    """Read the settings; a wrong one is InvalidInput naming the variable and what is wrong with it."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except SettingsError as error:  # a text that is no JSON, where one is asked for
        field = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), None)
        name = "of Cleave" if field is None else f"CLEAVE_{field.upper()}"
        raise InvalidInput(
            f"Setting {name}: this is no JSON. Correct it in the environment or in .env."
        ) from None  # the cause quotes the text, and that may hold a secret
    except ValidationError as error:
        first = error.errors()[0]
        name = "CLEAVE_" + "_".join(str(part) for part in first["loc"]).upper()
        raise InvalidInput(
            f"Setting {name}: {first['msg']}. Correct it in the environment or in .env."
        ) from None  # pydantic's error quotes the value, and a traceback would print it with its password


PROJECT_ROOT = Path(__file__).resolve().parent.parent
