"""Checks of collectors, the landing area, and the engine and runs of the load aggregation. Each check returns
its result as a sentence.
"""

from __future__ import annotations

from controller.bootstrap import Application
from controller.clock import SystemClock
from controller.doctor.findings import Note, read
from controller.domain.errors import Terminal
from controller.domain.formatting import duration
from controller.questions.overviews import last_load_run
from controller.spark_requirements import NO_SPARK, OLDEST_JAVA, has_pyspark, system_java_home

CLOCK_OFF_SECONDS = 2.0
"""A clock that differs by more than this from the database's clock is reported."""
LANDING_LOOK_BACK_MS = 3_600_000
"""Milliseconds before now in which sample files are listed."""
OLD_AFTER_INTERVALS, OLD_AFTER_SECONDS = 5, 120.0
"""Samples or runs have stopped if the last one is older than this number of intervals and than this number of seconds."""


def collectors(cleave: Application) -> str:
    """Return the names of the running readers of counters, or that none is running. Raises Note if two readers read the
    same counters, or if a clock differs by more than `CLOCK_OFF_SECONDS` from the database's.
    """
    order = "abs(clock_ahead_seconds) DESC, name"
    readers = read(cleave, "inspect.load_readers", "is_live", order=order)
    faults = [
        f"the clock of {reader['name']} is {abs(float(reader['clock_ahead_seconds'])):g} s "
        f"{'ahead of' if reader['clock_ahead_seconds'] > 0 else 'behind'} the database's; set it by NTP"
        for reader in readers
        if abs(reader["clock_ahead_seconds"]) > CLOCK_OFF_SECONDS
    ]
    if competing := sorted(reader["name"] for reader in readers if reader["beside"]):
        faults.append(
            f"{', '.join(competing)} read the same brokers, and only one of them counts; stop the others, or give each a --prefix of its own"
        )
    if faults:
        raise Note("; ".join(faults))
    names = ", ".join(reader["name"] for reader in readers)
    return f"{len(readers)} up: {names}" if readers else "none is up"


def landing(cleave: Application) -> str:
    """Return the number of sample files of the last hour, and the age of the last sample. Raises Note if there are no
    such files, Terminal if their last sample is too old (`OLD_AFTER_INTERVALS`, `OLD_AFTER_SECONDS`), otherwise Note if
    the name of a file is not that of a sample file; OSError if the storage does not answer.
    """
    from controller.landing.area import LandingArea

    now_ms = SystemClock().now_ms()
    files, rejected = LandingArea(cleave.settings.landing_url).files(now_ms - LANDING_LOOK_BACK_MS, now_ms)
    if not files:
        raise Note(
            f"no sample landed at {cleave.settings.landing_url} in the last hour; start `cleave collect`, or read its log"
        )
    age_seconds = (now_ms - max(file.last_tick_ms for file in files)) / 1000
    if age_seconds > max(OLD_AFTER_INTERVALS * cleave.settings.collect_interval_seconds, OLD_AFTER_SECONDS):
        raise Terminal(
            f"the last sample at {cleave.settings.landing_url} is {duration(age_seconds)} old; check that `cleave collect` is running"
        )
    if rejected:
        raise Note(f"{len(rejected)} files at {cleave.settings.landing_url} are not samples ({rejected[0]})")
    return f"{len(files)} files of the last hour at {cleave.settings.landing_url}, the last one {duration(age_seconds)} old"


def load_runs(cleave: Application) -> str:
    """Return the age and the engine of the last aggregation. Raises Note if there was none, Terminal if the last
    aggregation is too old (`OLD_AFTER_INTERVALS`, `OLD_AFTER_SECONDS`).
    """
    with cleave.store.transaction() as tx:
        newest = last_load_run(tx)
    if newest is None:
        raise Note("the load was never aggregated; unpause the DAG cleave_load_aggregation")
    age_seconds, engine = float(newest["age_seconds"]), newest["engine"]
    if age_seconds > max(OLD_AFTER_INTERVALS * cleave.settings.rate_window_seconds, OLD_AFTER_SECONDS):
        raise Terminal(
            f"the last aggregation of load is {duration(age_seconds)} old; look at the runs of the DAG "
            "cleave_load_aggregation"
        )
    return f"the last one, by {engine}, is {duration(age_seconds)} old"


def java(cleave: Application) -> str:
    """Return where Java is, or that it is not needed here: if Spark is not used, or runs on a Connect server (`sc://`).
    Raises Note if no Java of version `OLDEST_JAVA` or newer is installed, because PostgreSQL then aggregates the load.
    """
    master = cleave.settings.spark_label
    if master == NO_SPARK or master.startswith("sc://"):
        return f"not needed here: SPARK_MASTER is {master}"
    home = system_java_home()
    if home is None:
        raise Note(
            f"no Java {OLDEST_JAVA} or newer in JAVA_HOME or on PATH, so PostgreSQL aggregates the load; install one"
        )
    return f"Java at {home}"


def spark(cleave: Application) -> str:
    """Return the version of PySpark and the master, or that Spark is not needed, if the master is `NO_SPARK`. Raises
    Note if PySpark is not installed, because PostgreSQL then aggregates the load.
    """
    if cleave.settings.spark_label == NO_SPARK:
        return f"not needed here: SPARK_MASTER is {NO_SPARK}, so PostgreSQL aggregates the load"
    if not has_pyspark():
        raise Note(
            "PySpark is not installed (pyspark-client does not suffice), so PostgreSQL aggregates the load; "
            "uninstall pyspark-client if it is there, and run pip install pyspark"
        )
    import pyspark

    return f"PySpark {pyspark.__version__}, master {cleave.settings.spark_label}"


def quarantine(cleave: Application) -> str:
    """Check that no landing area has quarantined files. Raises Note with the number of files and the newest file of
    each area, OSError if the storage does not answer.
    """
    from controller.landing.area import QUARANTINE
    from controller.landing.location import Location

    settings = cleave.settings
    faults = []
    for url in (settings.landing_url, settings.key_counts_location, settings.bundle_reports_location):
        if files := Location(url).files(QUARANTINE):
            newest = max(files, key=lambda file: (file.modified_at_ms, file.path))
            faults.append(f"{len(files)} at {url}, the newest {newest.path}")
    if faults:
        raise Note(
            f"unreadable files were quarantined: {'; '.join(faults)}; the log of the aggregation has the reasons. "
            "Nothing reads or deletes these files; delete them when the cause is fixed"
        )
    return "no file is quarantined"
