"""`cleave doctor`: check everything that Cleave needs, and say what to do about what is wrong.

Each check is a function that returns a sentence or raises; none changes anything, unless `--fix` asks for it. The checks
run side by side, and the command answers within `REPORT_SECONDS` whatever hangs; only `--fix` may take longer.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

import typer

from controller.bootstrap import Application, application
from controller.clock import SystemClock
from controller.domain.errors import CleaveError, Terminal
from controller.domain.shown import duration
from controller.entrypoints.commands import doctor_airflow, doctor_gates, doctor_pulsar, doctor_rights
from controller.entrypoints.commands.checks_in_time import findings_by
from controller.entrypoints.commands.findings import Finding, Note
from controller.entrypoints.commands.options import AsJson
from controller.entrypoints.output import emit, rows_table
from controller.questions.overviews import last_load_run, live_workers
from controller.questions.question import Row, read_view
from controller.store.postgres import migrations, public_rights
from controller.store.postgres.engine import Store, is_pooled, server_version
from controller.store.postgres.public_rights import Login
from controller.system_java import NO_SPARK, system_java_home
from controller.system_java import OLDEST as OLDEST_JAVA

OLDEST_POSTGRES = 150_000
LANDING_LOOK_BACK_MS = 3_600_000
_GAPS = "inspect.bucket_gaps"
STATEMENT_SECONDS = 4.0
"""Time for a statement of a check, and for an attempt to connect; shorter than `CHECK_SECONDS`, so that the check says which
server is silent.
"""
CHECK_SECONDS, REPORT_SECONDS = 6.0, 8.5
"""Time for the checks, and for the namespaces of Pulsar after them. With the start of the process: 10 s."""
OLD_AFTER_INTERVALS, OLD_AFTER_SECONDS = 5, 120.0
"""Samples and runs of the aggregation have stopped if the last is older than so many of their intervals and so long."""
NEEDED_FOR_NAMESPACES = ("database", "schema", "pulsar")


def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Set what segments need in the Pulsar namespaces looked at.")
    ] = False,
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="tenant/namespace to look at besides those with topics; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    began = time.monotonic()
    with application(name="cleave-doctor", statement_seconds=STATEMENT_SECONDS) as cleave:
        looks = {name: partial(_look, name, check, cleave) for name, check in CHECKS.items()}
        findings = findings_by(began + CHECK_SECONDS, looks)
        if all(one.level != "wrong" for one in findings if one.check in NEEDED_FOR_NAMESPACES):
            findings += _namespaces(cleave, namespace or [], fix=fix, due_at=began + REPORT_SECONDS)
    rows = [asdict(finding) for finding in _said_once(findings)]
    emit(as_json, rows, rows_table(rows))
    if any(finding.level == "wrong" for finding in findings):
        raise typer.Exit(1)


def _said_once(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; a finding that repeats the error of the check `database` refers to it."""
    said = {one.finding for one in findings if one.check == "database"}
    return [
        replace(one, finding="as database") if one.check != "database" and one.finding in said else one
        for one in findings
    ]


def _read(cleave: Application, view: str, *conditions: str, **options: Any) -> list[Row]:
    with cleave.store.transaction() as tx:
        return read_view(tx, view, *conditions, **options)


def _look(name: str, check: Callable[[Application], str], cleave: Application) -> list[Finding]:
    try:
        return [Finding(name, "ok", check(cleave))]
    except Note as note:
        return [Finding(name, "note", str(note))]
    except (CleaveError, OSError) as error:
        return [Finding(name, "wrong", str(error))]


def _namespaces(cleave: Application, asked: Sequence[str], *, fix: bool, due_at: float) -> list[Finding]:
    if fix:  # what is being changed is not left halfway; each call of it has a time-out
        return doctor_pulsar.namespaces(cleave, asked, fix=True, due_at=math.inf)
    begins_by = due_at - doctor_pulsar.LONGEST_CALL_SECONDS
    look = partial(doctor_pulsar.namespaces, cleave, asked, fix=False, due_at=begins_by)
    return findings_by(due_at, {"pulsar namespaces": look})


def database(cleave: Application) -> str:
    """Return the server's version and whether a pooler is in between. Raises Terminal for a version that is too old."""
    with cleave.store.transaction() as tx:
        between = ", through a pooler that keeps sessions" if is_pooled(tx) else ""
        number, version = server_version(tx)
    if number < OLDEST_POSTGRES:
        raise Terminal(
            f"PostgreSQL {version} at {cleave.settings.database_label}: Cleave needs 15 or newer; upgrade the server"
        )
    return f"PostgreSQL {version} at {cleave.settings.database_label}{between}"


def schema(cleave: Application) -> str:
    """Whether every migration is applied."""
    with cleave.store.transaction() as tx:
        missing = migrations.pending_in(tx)
    if missing:
        raise Terminal(
            f"{len(missing)} migrations are not applied ({missing[0]} first); run `cleave migrate` as the owner"
        )
    return "up to date"


def role(cleave: Application) -> str:
    """What the login may do. Raises Note where that is less or more than the controller's work takes."""
    with cleave.store.transaction() as tx:
        login = public_rights.login(tx)
    if "cleave_inspector" in login.roles and "cleave_controller" not in login.roles:
        raise Note(
            f"user {login.user} is in role cleave_inspector: enough for commands that only read; the worker, the "
            "collector and what changes something need a login in role cleave_controller"
        )
    return _demand_role(login, "cleave_controller", "database_url")


def _loader_role(cleave: Application) -> str:
    if cleave.settings.loader_url is None:
        raise Note(
            "CLEAVE_LOADER_URL is not set: the aggregation writes with the controller's rights; give it a "
            "login of its own"
        )
    loader = Store(
        cleave.settings.loader_dsn,
        application_name="cleave-doctor",
        pool_size=1,
        statement_seconds=STATEMENT_SECONDS,
    )
    try:
        with loader.transaction() as tx:
            login = public_rights.login(tx)
    finally:
        loader.dispose()
    return _demand_role(login, "cleave_spark_loader", "loader_url")


def _demand_role(login: Login, role: str, setting: str) -> str:
    if role not in login.roles:
        raise Terminal(f"user {login.user} is not in role {role}; run GRANT {role} TO {login.user}")
    if login.surplus is not None:
        raise Note(
            f"user {login.user} is {login.surplus}, which only `cleave migrate` needs; give CLEAVE_{setting.upper()} a login in "
            f"role {role} only, and people who only read one in role cleave_inspector"
        )
    return f"user {login.user} is in role {role}"


def _workers(cleave: Application) -> str:
    with cleave.store.transaction() as tx:
        alive = live_workers(tx)
    if not alive:
        raise Note(
            "no worker is up: Airflow's passes run operations themselves, consumer events wait; start `cleave worker`"
        )
    serving = [f"{lease['holder']} (consumers at {lease['address']})" for lease in alive if lease["address"]]
    silent = [str(lease["holder"]) for lease in alive if not lease["address"]]
    return f"{len(alive)} up: {', '.join((*serving, *silent))}"


def _worker_schemas(cleave: Application) -> str:
    """Whether every running worker knows the newest migration. Raises Note where one does not."""
    with cleave.store.transaction() as tx:
        alive = live_workers(tx)
        [known] = read_view(
            tx, "inspect.migrations", "name <> 'views'", columns='max(name COLLATE "C") AS newest'
        )
    old = [worker for worker in alive if (worker["schema_version"] or "") < known["newest"]]
    if not old:
        return "no running worker is older than the schema"
    versions = {one["holder"]: one["schema_version"] or "no version" for one in old}
    named = ", ".join(f"{holder} (knows {version})" for holder, version in sorted(versions.items()))
    raise Note(f"older than the schema, which is at {known['newest']}: {named}; replace them by this program")


def _stuck_operations(cleave: Application) -> str:
    """Whether every live operation moves on."""
    stuck = _read(cleave, "inspect.stuck_operations", order="age_seconds DESC")
    if not stuck:
        return "none is stuck"
    oldest = stuck[0]
    raise Terminal(
        f"{len(stuck)} do not move on, the oldest is {oldest['kind']} {oldest['operation_id']} of {oldest['topic']}: "
        f"{oldest['stuck_because']}; `cleave operations --stuck` lists all of them"
    )


def _writes(cleave: Application) -> str:
    """Whether the database takes writes: its disk has room, and its server is no standby."""
    with cleave.store.transaction() as tx:
        if not public_rights.write_temporary(tx):
            raise Note("not checked: this login may create no temporary table")
    return "a megabyte was written and removed"


def _buckets(cleave: Application) -> str:
    most = cleave.settings.bucket_gap_seconds
    gaps = _read(cleave, _GAPS, "gap_seconds > :most", order="gap_seconds DESC", most=most)
    if not gaps:
        return f"none waits for longer than {duration(most)}"
    worst = gaps[0]
    held = f", held by {worst['holder']}" if worst["holder"] else ""
    raise Note(
        f"{len(gaps)} entry buckets are read by nobody for too long, for {duration(float(worst['gap_seconds']))} "
        f"bucket {worst['bucket']} of segment {worst['segment_id']} of {worst['topic']} for {worst['subscription']}: "
        f"{worst['reason']}{held}; `cleave consumers why {worst['topic']}` says since when, and who holds what it waits for"
    )


def _held_topics(cleave: Application) -> str:
    """Report that no topic is held. Raises Note if the logs of topics are still to be compared with the database."""
    topics = _read(cleave, "inspect.held_topics", order="unverified, held_at, topic")
    if not topics:
        return "none, and each topic's logs have been compared with this database"
    unverified = [topic["topic"] for topic in topics if topic["unverified"]]
    held, first = len(topics) - len(unverified), topics[0]
    if not held:
        raise Note(
            f"the logs of {len(unverified)} topic(s), {unverified[0]} among them, are still to be compared with this database; a "
            f"worker does it within seconds. If they stay, `cleave topics recover {unverified[0]}` says why"
        )
    raise Terminal(
        f"nothing acts on {held} topic(s), first {first['topic']}: {first['held_reason']}; run `cleave topics recover "
        f"{first['topic']} --dry-run`, and see docs/runbook/CleaveTopicHeld.md"
    )


def _foreign_logs(cleave: Application) -> str:
    """Report that every log belongs to a segment. Raises Note with the first logs that Cleave must not delete."""
    columns = "backing_topic, count(*) OVER () AS logs"
    logs = _read(cleave, "inspect.foreign_logs", columns=columns, order="topic, segment_id", limit=3)
    if not logs:
        return "none"
    named = ", ".join(log["backing_topic"] for log in logs)
    raise Note(
        f"{logs[0]['logs']} log(s) belong to no segment, and Cleave must not delete them: {named}"
        f"{', ...' if logs[0]['logs'] > len(logs) else ''}; inspect.foreign_logs says why, see docs/runbook/CleaveForeignLogs.md"
    )


def _java(cleave: Application) -> str:
    master = cleave.settings.spark_label
    if master == NO_SPARK or master.startswith("sc://"):
        return f"not needed here: SPARK_MASTER is {master}"
    home = system_java_home()
    if home is None:
        raise Note(
            f"no Java {OLDEST_JAVA} or newer in JAVA_HOME or on PATH, so PostgreSQL aggregates the load; install one"
        )
    return f"Java at {home}"


def _spark(cleave: Application) -> str:
    if cleave.settings.spark_label == NO_SPARK:
        return f"not needed here: SPARK_MASTER is {NO_SPARK}, so PostgreSQL aggregates the load"
    if importlib.util.find_spec("pyspark") is None:
        raise Note("PySpark is not installed, so PostgreSQL aggregates the load; run pip install pyspark")
    import pyspark

    return f"PySpark {pyspark.__version__}, master {cleave.settings.spark_label}"


def _landing(cleave: Application) -> str:
    from controller.landing.area import LandingArea

    now_ms = SystemClock().now_ms()
    files, rejected = LandingArea(cleave.settings.landing_url).files(now_ms - LANDING_LOOK_BACK_MS, now_ms)
    if not files:
        raise Note(
            f"no sample landed at {cleave.settings.landing_url} in the last hour; start `cleave collect`"
        )
    if rejected:
        raise Note(f"{len(rejected)} files at {cleave.settings.landing_url} are not samples ({rejected[0]})")
    age_seconds = (now_ms - max(file.last_tick_ms for file in files)) / 1000
    if age_seconds > max(OLD_AFTER_INTERVALS * cleave.settings.collect_interval_seconds, OLD_AFTER_SECONDS):
        raise Terminal(
            f"the last sample at {cleave.settings.landing_url} is {duration(age_seconds)} old; is `cleave collect` up?"
        )
    return f"{len(files)} files of the last hour at {cleave.settings.landing_url}, the last one {duration(age_seconds)} old"


def _load_runs(cleave: Application) -> str:
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


def _set_aside(cleave: Application) -> str:
    rows = _read(cleave, "inspect.set_aside", "is_current", order="last_at DESC")
    if rows:
        first = rows[0]
        raise Note(
            f"batches leave out {len(rows)} subject(s), such as {first['subject']} of {first['batch']}: {first['reason']}; "
            "inspect.set_aside has all of them"
        )
    return "no batch leaves anything out"


def _quarantine(cleave: Application) -> str:
    """Report that no landing area has files set aside. Raises Note with the number and the newest one of each area that has."""
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
            f"files that could not be read were moved aside: {'; '.join(faults)}; the log of the aggregation has the reasons. "
            "Nothing reads or deletes these files; delete them when the cause is put right"
        )
    return "no file was moved aside"


CLOCK_OFF_SECONDS = 2.0
"""A clock that differs more from the database's is reported."""


def _collectors(cleave: Application) -> str:
    """Report the readers of counters. Raises Note where two read the same counters, or a clock is off."""
    order = "abs(clock_ahead_seconds) DESC, name"
    readers = _read(cleave, "inspect.load_readers", "is_live", order=order)
    faults = [
        f"the clock of {one['name']} is {abs(float(one['clock_ahead_seconds'])):g} s "
        f"{'ahead of' if one['clock_ahead_seconds'] > 0 else 'behind'} the database's; set it by NTP"
        for one in readers
        if abs(one["clock_ahead_seconds"]) > CLOCK_OFF_SECONDS
    ]
    if beside := sorted(one["name"] for one in readers if one["beside"]):
        faults.append(
            f"{', '.join(beside)} read the same brokers, of which one counts; stop all but one, or give each its own --prefix"
        )
    if faults:
        raise Note("; ".join(faults))
    named = ", ".join(one["name"] for one in readers)
    return f"{len(readers)} up: {named}" if readers else "none is up"


CHECKS: dict[str, Callable[[Application], str]] = {
    "database": database,
    "schema": schema,
    "role": role,
    "loader role": _loader_role,
    "public rights": doctor_rights.public,
    "login limits": doctor_rights.logins,
    "writes": _writes,
    "workers": _workers,
    "worker schemas": _worker_schemas,
    "operations": _stuck_operations,
    "topics held": _held_topics,
    "foreign logs": _foreign_logs,
    "entry buckets": _buckets,
    "gates": doctor_gates.gates,
    "java": _java,
    "spark": _spark,
    "landing area": _landing,
    "collectors": _collectors,
    "load runs": _load_runs,
    "set aside": _set_aside,
    "quarantine": _quarantine,
    "pulsar": doctor_pulsar.cluster,
    "isolation policies": doctor_pulsar.isolation,
    "airflow": doctor_airflow.health,
    "airflow DAGs": doctor_airflow.dags,
    "airflow connection": doctor_airflow.connection,
}
