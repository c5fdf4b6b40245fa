"""The aggregation of one installation: selects login, window and engine, then performs one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.clock import Clock
from controller.domain.load_window import LoadWindow
from controller.landing.area import LandingArea
from controller.landing.history import RateHistory
from controller.postgres.session_settings import BULK_STATEMENT_SECONDS
from controller.services.load_aggregation.engine_choice import choose_engine
from controller.services.load_aggregation.key_counts_of_run import KeyCountIntake
from controller.services.load_aggregation.run import AggregationResult, aggregate
from controller.store.postgres.engine import Store


@dataclass(frozen=True)
class LoadAggregation:
    """Settings of the aggregation: where the samples are read, where the rates are stored, and which engine
    computes them. Spark computes them if it can run with `spark_master` and `spark_conf`, otherwise PostgreSQL.
    """

    loader_dsn: str
    """Address of the database, with the loader's login."""
    area: LandingArea
    history: RateHistory
    key_counts: KeyCountIntake
    spark_master: str
    spark_conf: Mapping[str, str]
    window_seconds: float
    clock: Clock

    def run(self, run_id: str, window_end_ms: int | None = None) -> AggregationResult:
        """Aggregate one window: compute the rates, store the load records that change, publish the rates to
        `history`, and return the result. The window is `window_seconds` long and ends at `window_end_ms`
        (milliseconds since the Unix epoch; None or 0: now). The run uses a database connection of its own. `run_id`
        identifies the run: if a run of this id, this window or a later window was merged before, nothing is stored,
        and `applied` of the result is False.

        Raises InvalidInput if `window_seconds` is not a valid length or the address of the database is not valid;
        StoreUnavailable; Retryable if the storage cannot read a file and no other file is usable; OSError if the
        storage does not answer; and the errors of the engine. A run may be repeated after an error.
        """
        window = LoadWindow.ending_at(window_end_ms or self.clock.now_ms(), self.window_seconds)
        store = Store(
            self.loader_dsn,
            application_name="cleave-load-aggregation",
            pool_size=1,
            statement_seconds=BULK_STATEMENT_SECONDS,
        )
        try:
            engine = choose_engine(self.spark_master, self.spark_conf, store)
            return aggregate(
                store, self.area, self.history, engine, window, run_id=run_id, key_counts=self.key_counts
            )
        finally:
            store.dispose()
