"""What the DAGs of Cleave share: where it is, how often they run, and what an error means to Airflow.

Airflow imports this module in every process it starts, so it reads the environment and does nothing else. The work
itself is in `controller.tasks`, which knows nothing of Airflow.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, Param, dag, get_current_context, task

from cleave_provider.failures import RETRIES, RETRY_DELAY, RetryableOnly, told_apart
from cleave_provider.hooks.cleave import CleaveHook
from cleave_provider.request import request_of
from cleave_provider.versions import (
    HAS_RETRY_POLICIES,
    AirflowFailException,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
)
from controller import tasks
from controller.domain.whole_numbers import from_digits

CONNECTION, LOADER_CONNECTION = "cleave", "cleave_loader"
NAMED_SPARK_CONNECTION = os.environ.get("CLEAVE_SPARK_CONNECTION", "")
SPARK_CONNECTION = NAMED_SPARK_CONNECTION or "cleave_spark"
"""Of type `spark` or `spark_connect`; one that is named must exist, the other may be left out."""
FRESH_LOAD = Asset(name="cleave_load", uri="cleave://load")
"""A doorbell: there is load that no split pass has looked at. What to look at is in the table `evaluation`."""

WAITING_ACTS = Asset(name="cleave_waiting_acts", uri="cleave://approvals")
"""Another: something waits for a person whom nobody has asked. What waits is in `inspect.approvals`."""

TAGS = ["cleave"]
POOL = os.environ.get("CLEAVE_POOL", "default_pool")
"""Every task's pool; one that is named must have been made (`airflow pools set`)."""
PASS_SHARES = 2
"""Shares of one fleet pass that run at a time."""


def seconds_from(variable: str, default: int) -> int:
    """A cadence from the environment, in whole seconds, at least 5. A wrong value becomes the DAG's import error."""
    text = os.environ.get(variable, "").strip() or str(default)
    seconds = from_digits(text)
    if seconds is None or seconds < 5:
        raise ValueError(
            f"{variable}={text!r} is not a number of whole seconds from 5 up; correct or unset it"
        )
    return seconds


def every(seconds: int) -> CronTriggerTimetable | DeltaTriggerTimetable:
    """At full minutes where the cadence divides the hour evenly, else at equal distances."""
    minutes, rest = divmod(seconds, 60)
    if rest == 0 and 60 % minutes == 0:
        return CronTriggerTimetable("0 * * * *" if minutes == 60 else f"*/{minutes} * * * *", timezone="UTC")
    return DeltaTriggerTimetable(timedelta(seconds=seconds))


def scheduled(seconds: int, doc: str | None, **params: Param) -> dict[str, Any]:
    """Arguments of a DAG that is scheduled: one run at a time, and none for times past."""
    return {
        "catchup": False,
        "max_active_runs": 1,
        "dagrun_timeout": timedelta(seconds=max(300, 2 * seconds)),
        "tags": [*TAGS, "scheduled"],
        "doc_md": doc,
        "params": params,
    }


def action_params(action: str) -> dict[str, Param]:
    """Return the fields of the form of an action."""
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
    """Return the DAG that is the form of an action: one task, which performs the action with the values of the form.

    `answers`: last words of actions with one form, of which the form has a choice. `loader`: see `access`. `fixed`: fields of the action that
    the form has not.
    """
    choice = {}
    if answers:
        choice["answer"] = Param(
            type="string", enum=[*answers], title="Answer", description="The same for all."
        )
    fields = choice | action_params(" ".join([action, *answers[:1]]))
    left = {name: param for name, param in fields.items() if name not in fixed}

    @dag(dag_id=dag_id, dag_display_name=title, **form(doc, **left))
    def action_form() -> None:
        @cleave_task(
            priority=10, task_id="answer" if answers else action.rsplit(maxsplit=1)[-1], outlets=[*outlets]
        )
        def perform(params: dict[str, Any]) -> dict[str, Any]:
            values = {**params, **fixed}
            name = f"{action} {values.pop('answer')}" if answers else action
            return tasks.perform(name, **access(loader=loader), **request(), params=values)

        perform()

    made: DAG = action_form()
    return made


def form(doc: str | None, **params: Param) -> dict[str, Any]:
    """Arguments of a DAG that is a form: it runs when somebody fills it in."""
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
    """Whether to change anything."""
    description = "Say in the log what would happen, and change nothing."
    return Param(False, type="boolean", title="Dry run", description=description)


def reason_param(description: str) -> Param:
    """Why something is asked for."""
    return Param("requested in Airflow", type="string", minLength=1, title="Reason", description=description)


def cleave_task(
    *, retries: int = RETRIES, priority: int = 1, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """`@task` as Cleave uses it: pool, priority, and errors told apart (`cleave_provider.failures`)."""
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
    return lambda function: decorate(told_apart(function))


def access(*, loader: bool = False) -> dict[str, Any]:
    """Arguments that tell a task where Cleave is: `dsn` and `extras` of the connection `cleave`.

    With `loader` also the URL of the loader's login, if there is a connection `cleave_loader`, and what the connection
    `cleave_spark` says of Spark, if there is one. The task that calls this looks them up, and nothing does before.
    """
    cleave = CleaveHook(CONNECTION).access()
    if loader:
        with contextlib.suppress(
            AirflowFailException
        ):  # then CLEAVE_LOADER_URL or the controller's login serves
            cleave["extras"]["loader_url"] = CleaveHook(LOADER_CONNECTION).url()
        cleave["extras"] |= _spark_settings()
    return cleave


def _spark_settings() -> dict[str, Any]:
    try:
        return CleaveHook.spark_settings(SPARK_CONNECTION)
    except AirflowFailException as error:
        if not NAMED_SPARK_CONNECTION:
            return {}  # then SPARK_MASTER serves
        raise AirflowFailException(f"{error}, or unset CLEAVE_SPARK_CONNECTION") from error


def reachable() -> dict[str, Any]:
    """The same for what an API server serves: where the connection does not say it, StoreUnavailable has the sentence."""
    from cleave_provider.versions import AirflowException
    from controller.domain.errors import InvalidInput, StoreUnavailable

    try:
        return access()
    except (AirflowException, InvalidInput) as error:  # there is no such connection, or it cannot serve
        raise StoreUnavailable(f"Airflow does not say where Cleave is: {error}", 60.0) from error


def request() -> dict[str, Any]:
    """Who asks, and a key that every attempt of this task shares: a retry gets the first one's operation."""
    return request_of(get_current_context())


def shares_left(result: dict[str, Any], doorbell: Any) -> list[dict[str, int]]:
    """Return what a pass leaves to mapped tasks; the rest of its answer becomes the XCom `summary`. See `ring` for `doorbell`.

    Airflow maps over a task's `return_value` only.
    """
    shares: list[dict[str, int]] = result.pop("shares")
    ring(result, doorbell)
    get_current_context()["ti"].xcom_push("summary", result)
    return shares


def ring(result: dict[str, Any], doorbell: Any) -> None:
    """Ring the bell of `WAITING_ACTS` if something waits for a person whom nobody has asked: `doorbell` is the events of an outlet."""
    if result["unasked"]:
        doorbell.add(WAITING_ACTS)


def asking_run() -> str:
    """This run, as `inspect.approvals` has it in `asked_in`."""
    run = get_current_context()["dag_run"]
    return f"{run.dag_id}/{run.run_id}"


def run_name() -> str:
    """This run for people, as the decider of what a pass decides."""
    run = get_current_context()["dag_run"]
    return f"airflow {run.dag_id} {run.run_id}"


def asked_at() -> str:
    """When this run was asked for: the same for every attempt of its tasks."""
    return str(get_current_context()["dag_run"].run_after.isoformat())


def turn(seconds: int) -> int:
    """A number that rises by one with each scheduled run of that cadence."""
    return int(get_current_context()["dag_run"].run_after.timestamp() // seconds)
