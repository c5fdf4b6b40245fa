"""Shared parts of Cleave's DAGs: connections, schedules, and the meaning of errors to Airflow.

Airflow imports this module in every process that it starts, so it only reads the environment. The work is in
`controller.tasks`, which does not know Airflow.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, AssetAlias, Param, dag, get_current_context, task

from cleave_provider.airflow_compatibility import (
    HAS_RETRY_POLICIES,
    AirflowFailException,
    AssetOrTimeSchedule,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
)
from cleave_provider.failures import RETRIES, RETRY_DELAY, RetryableOnly, with_airflow_errors
from cleave_provider.hooks.cleave import CleaveHook
from cleave_provider.request_key import request_of
from controller import tasks
from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.whole_numbers import from_digits
from controller.tasks.row_retention import MOST_KEEP_DAYS

CONNECTION, LOADER_CONNECTION = "cleave", "cleave_loader"
NAMED_SPARK_CONNECTION = os.environ.get("CLEAVE_SPARK_CONNECTION", "")
SPARK_CONNECTION = NAMED_SPARK_CONNECTION or "cleave_spark"
"""Connection of type `spark` or `spark_connect`. A connection named by `CLEAVE_SPARK_CONNECTION` must exist;
the default one may be missing.
"""
FRESH_LOAD = Asset(name="cleave_load", uri="cleave://load")
"""Asset that gets an event when there is load that no split pass has read. The table `evaluation` says what
to evaluate.
"""

WAITING_ACTS = Asset(name="cleave_waiting_acts", uri="cleave://approvals")
"""Asset that gets an event when an approval awaits an answer and no run presents it. `inspect.approvals` has
the approvals.
"""

WAITING_ACTS_ALIAS = AssetAlias("cleave_acts_to_ask_about")
"""Outlet of tasks that may emit the event of `WAITING_ACTS`."""
TAGS = ["cleave"]
POOL = os.environ.get("CLEAVE_POOL", "default_pool")
"""Pool of every task. A pool named by `CLEAVE_POOL` must exist (`airflow pools set`)."""
PASS_SHARES = 2
"""Number of shares of one fleet pass that run at the same time."""


def seconds_from(variable: str, default: int) -> int:
    """Return an interval from the environment in whole seconds; `default` if the variable is empty.

    Raises ValueError for a value that is no whole number or below 5, which becomes the DAG's import error.
    """
    text = os.environ.get(variable, "").strip() or str(default)
    seconds = from_digits(text)
    if seconds is None or seconds < 5:
        raise ValueError(
            f"{variable}={shown(text)} must be a whole number of seconds, at least 5; correct or unset the variable"
        )
    return seconds


def days_from(variable: str, default: int) -> int:
    """Return a number of days from the environment; `default` if the variable is empty.

    Raises ValueError for a value that is no whole number from 1 to `MOST_KEEP_DAYS`, which becomes the DAG's
    import error.
    """
    text = os.environ.get(variable, "").strip() or str(default)
    days = from_digits(text, MOST_KEEP_DAYS)
    if not days:
        raise ValueError(
            f"{variable}={shown(text)} must be a whole number of days, from 1 to {MOST_KEEP_DAYS}; "
            "correct or unset the variable"
        )
    return days


def every(seconds: int) -> CronTriggerTimetable | DeltaTriggerTimetable:
    """Return a timetable: at full minutes if the interval divides the hour evenly, otherwise at equal
    distances.
    """
    minutes, remainder = divmod(seconds, 60)
    if remainder == 0 and 60 % minutes == 0:
        return CronTriggerTimetable("0 * * * *" if minutes == 60 else f"*/{minutes} * * * *", timezone="UTC")
    return DeltaTriggerTimetable(timedelta(seconds=seconds))


def scheduled(seconds: int, doc: str | None, **params: Param) -> dict[str, Any]:
    """Return the arguments of a DAG that runs every `seconds`: one run at a time, which is ended after twice
    the interval, at the earliest after 5 minutes; no runs for the past. `doc` is the DAG's description, and
    `params` are the fields of its form.
    """
    return {
        "catchup": False,
        "max_active_runs": 1,
        "dagrun_timeout": timedelta(seconds=max(300, 2 * seconds)),
        "tags": [*TAGS, "scheduled"],
        "doc_md": doc,
        "params": params,
    }


def action_params(action: str) -> dict[str, Param]:
    """Return the fields of the form of an action, by name, with their defaults."""
    return {
        name: Param(*([field.pop("default")] if "default" in field else []), **field)
        for name, field in tasks.form_fields(action).items()
    }


def action_dag(
    dag_id: str,
    title: str,
    action: str,
    doc: str | None,
    *,
    answers: Sequence[str] = (),
    loader: bool = False,
    outlets: Sequence[Asset] = (),
    **fixed: Any,
) -> DAG:
    """Return the DAG that is the form of an action: one task, which performs the action with the values of
    the form.

    `answers` are the last words of actions that share the form; the form has a choice of them. `loader` is
    passed to `access`. `outlets` are assets that get an event when the task has succeeded. `fixed` are fields
    of the action that the form does not show, with their values.
    """
    choice = {}
    if answers:
        choice["answer"] = Param(
            type="string", enum=[*answers], title="Answer", description="Answer for all approvals."
        )
    fields = choice | action_params(" ".join([action, *answers[:1]]))
    shown = {name: param for name, param in fields.items() if name not in fixed}

    @dag(dag_id=dag_id, dag_display_name=title, **form(doc, **shown))
    def action_form() -> None:
        @cleave_task(
            priority=10, task_id="answer" if answers else action.rsplit(maxsplit=1)[-1], outlets=[*outlets]
        )
        def perform(params: dict[str, Any]) -> dict[str, Any]:
            values = {**params, **fixed}
            name = f"{action} {values.pop('answer')}" if answers else action
            # The form of a level that people may choose is for operators, who may not change the cluster.
            return tasks.perform(
                name, **access(loader=loader), **request(), params=values, may_be_cluster="level" in fixed
            )

        perform()

    form_dag: DAG = action_form()
    return form_dag


def form(doc: str | None, **params: Param) -> dict[str, Any]:
    """Return the arguments of a DAG that is a form, and runs when a person submits it: up to 16 runs at a
    time, each for at most 2 hours. `doc` is the DAG's description.
    """
    return {
        "schedule": None,
        "is_paused_upon_creation": False,
        "max_active_runs": 16,
        "dagrun_timeout": timedelta(hours=2),
        "tags": [*TAGS, "by hand"],
        "doc_md": doc,
        "params": params,
    }


def dry_run_param() -> Param:
    """Return the parameter for dry runs."""
    description = "Log what would happen, and change nothing."
    return Param(False, type="boolean", title="Dry run", description=description)


def cleave_task(
    *, retries: int = RETRIES, priority: int = 1, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Return Cleave's variant of `@task`: with pool, priority, and errors divided into retryable and final
    ones (`cleave_provider.failures`). Tasks of a higher `priority` get free slots of the pool first.
    `options` are those of `@task`. The task fails if its run was triggered with a value that would be ignored.
    """
    if HAS_RETRY_POLICIES:
        options["retry_policy"] = RetryableOnly()
    decorate = task(
        pool=POOL,
        priority_weight=priority,
        weight_rule="absolute",
        retries=retries,
        retry_delay=RETRY_DELAY,
        **options,
    )
    return lambda function: decorate(with_airflow_errors(_with_its_conf(function)))


def _with_its_conf(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a task with `_demand_conf_used` before it."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        context = get_current_context()
        _demand_conf_used(context["dag_run"].conf or {}, context["params"], context["dag"])
        return function(*args, **kwargs)

    return checked


def _demand_conf_used(conf: Mapping[str, Any], params: Mapping[str, Any], dag: DAG) -> None:
    """Raise InvalidInput if a value in the `conf` of a run is not in effect: its name is no parameter of the DAG, or
    Airflow ignores `conf`. Such a run would perform what a misspelt or ignored `dry_run` should only have shown.
    """
    for name, value in conf.items():
        if name not in dag.params:
            hint = f"use one of {', '.join(dag.params)}" if dag.params else "the DAG has none"
            raise InvalidInput(f"{name}: there is no such parameter; {hint}")
        if params[name] != value:
            raise InvalidInput(
                f"{name}={shown(value)} is ignored, because of Airflow's option [core] dag_run_conf_overrides_params; "
                "set the option to True"
            )


def access(*, loader: bool = False) -> dict[str, Any]:
    """Return the arguments that tell a task where Cleave is: `dsn` and `extras` of the connection `cleave`.

    With `loader`, add the URL of the loader's login if the connection `cleave_loader` exists, and the
    settings of the connection `cleave_spark` if it exists. Call this in a task, not while Airflow parses
    DAGs, because it looks connections up. Raises AirflowFailException if the connection `cleave`, or a Spark
    connection named by `CLEAVE_SPARK_CONNECTION`, does not exist. Raises StoreUnavailable if Airflow cannot look
    a connection up; nothing then replaces an optional connection.
    """
    cleave = CleaveHook(CONNECTION).access()
    if loader:
        with contextlib.suppress(
            AirflowFailException
        ):  # CLEAVE_LOADER_URL or the controller's login is used instead
            cleave["extras"]["loader_url"] = CleaveHook(LOADER_CONNECTION).url()
        cleave["extras"] |= _spark_settings()
    return cleave


def _spark_settings() -> dict[str, Any]:
    """Return the settings of the Spark connection; empty if the default connection does not exist. Raises
    AirflowFailException if a connection named by `CLEAVE_SPARK_CONNECTION` does not exist, and StoreUnavailable if
    Airflow cannot look the connection up.
    """
    try:
        return CleaveHook.spark_settings(SPARK_CONNECTION)
    except AirflowFailException as error:
        if not NAMED_SPARK_CONNECTION:
            return {}  # SPARK_MASTER is used instead
        raise AirflowFailException(f"{error}, or unset CLEAVE_SPARK_CONNECTION") from error


def reachable() -> dict[str, Any]:
    """Return the result of `access` for an API server. Raises StoreUnavailable if the connection is missing
    or invalid.
    """
    from cleave_provider.airflow_compatibility import AirflowException
    from controller.domain.errors import StoreUnavailable

    try:
        return access()
    except (AirflowException, InvalidInput) as error:  # The connection is missing, or its values are invalid.
        raise StoreUnavailable(
            f"cannot read the address of Cleave from Airflow's connection: {error}", 60.0
        ) from error


def request() -> dict[str, Any]:
    """Return `actor` and `request_key`, the arguments of a request. All attempts of this task share the key,
    so that a retry gets the operation of the first attempt.
    """
    return request_of(get_current_context())


def pass_dag(
    dag_id: str,
    title: str,
    run: Callable[..., dict[str, Any]],
    doc: str | None,
    *,
    seconds: int,
    assets: Asset | None = None,
) -> DAG:
    """Return the DAG of a fleet pass, which runs every `seconds`, and also after events of `assets`: a task that
    evaluates what is due, and a mapped task for each share that it leaves. `run` is the pass in `controller.tasks`.

    The summary of the first task is its XCom `summary`, because Airflow maps over a task's `return_value` only. Airflow
    finds a DAG only in a file that contains the word `airflow`, so the description of the file has to contain it.
    """
    schedule: Any = every(seconds)
    if assets is not None:
        schedule = AssetOrTimeSchedule(timetable=schedule, assets=assets)

    @dag(
        dag_id=dag_id,
        dag_display_name=title,
        schedule=schedule,
        **scheduled(seconds, doc, dry_run=dry_run_param()),
    )
    def fleet_pass() -> None:
        @cleave_task(retries=2, priority=5, outlets=[WAITING_ACTS_ALIAS])
        def drain(params: dict[str, Any], outlet_events: Any = None) -> list[dict[str, int]]:
            result = run(**access(), decided_by=run_name(), dry_run=params["dry_run"])
            shares: list[dict[str, int]] = result.pop("shares")
            emit_waiting_event(result, outlet_events[WAITING_ACTS_ALIAS])
            get_current_context()["ti"].xcom_push("summary", result)
            return shares

        @cleave_task(retries=2, priority=5, max_active_tis_per_dagrun=PASS_SHARES)
        def drain_share(share: dict[str, int]) -> dict[str, Any]:
            return run(**access(), decided_by=run_name(), share=share)

        drain_share.expand(share=drain())

    pass_of_fleet: DAG = fleet_pass()
    return pass_of_fleet


def emit_waiting_event(result: dict[str, Any], alias_events: Any) -> None:
    """Emit an event for the asset `WAITING_ACTS` if an approval awaits an answer and no run presents it.
    `alias_events` are the events of an outlet.
    """
    if result["unasked"]:
        alias_events.add(WAITING_ACTS)


def asking_run() -> str:
    """Return the name of this run in the column `asked_in` of `inspect.approvals`."""
    run = get_current_context()["dag_run"]
    return f"{run.dag_id}/{run.run_id}"


def run_name() -> str:
    """Return the name of this run for people; it is the actor of the pass's decisions."""
    run = get_current_context()["dag_run"]
    return f"airflow {run.dag_id} {run.run_id}"


def asked_at() -> str:
    """Return the time of the request for this run, which is the same for every attempt of its tasks."""
    return str(get_current_context()["dag_run"].run_after.isoformat())
