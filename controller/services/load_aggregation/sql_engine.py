"""Computes the rates of a run in PostgreSQL (`store/load/sql_rates.py`), where Spark cannot run. Each run logs a warning."""

from __future__ import annotations

from controller import telemetry
from controller.domain.load_window import LoadWindow
from controller.landing.schemas import RATE_SCHEMA
from controller.landing.scratch import Scratch
from controller.services.load_aggregation.engine import Landed
from controller.store.load import sql_rates
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)


class SqlEngine:
    """Computes a run in temporary tables of the loader's session. The memory of this process stays bounded,
    because the database does the work.
    """

    name = "sql"

    def __init__(self, store: Store) -> None:
        """`store` logs in as the loader."""
        self._store = store

    def compute(self, landed: Landed, scratch: Scratch, window: LoadWindow) -> None:
        """Compute the rates of the window from the landed files, in one transaction of the database, and write the
        results to the scratch directory: the rates (`rates`), the last samples of the sources (`heard`) and, if the
        run has key counts, their sums (`sketches`). Nothing stays in the database. Each call logs a warning that
        Spark is not used. Raises StoreUnavailable, the errors of the storage, and pyarrow's errors for broken files.
        After an error the directory may have a part of the results.
        """
        log.warning(
            "aggregating in PostgreSQL instead of Spark; install Java and set SPARK_MASTER for large fleets"
        )
        samples = landed.area.batches(landed.files, sql_rates.COLUMNS)
        with self._store.transaction() as tx:
            rates, last_samples = sql_rates.aggregate(tx, samples, window, RATE_SCHEMA)
            if (key_counts := landed.counted) is not None:
                counts = key_counts.area.batches(key_counts.files, sql_rates.KEY_COUNT_COLUMNS)
                sketches = sql_rates.sum_key_counts(tx, counts, key_counts.since_ms, key_counts.until_ms)
                scratch.write("sketches", sketches)
        scratch.write("rates", rates.cast(RATE_SCHEMA))
        scratch.write("heard", last_samples)
