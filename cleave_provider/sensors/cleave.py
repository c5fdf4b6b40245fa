"""WaitForOperationSensor: a task that ends with an operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from cleave_provider.airflow_compatibility import AirflowFailException
from cleave_provider.failures import with_airflow_errors
from cleave_provider.hooks.cleave import CleaveHook
from cleave_provider.links.cleave import OPERATION_KEY, OperationLink
from cleave_provider.operators.retried import RetriedOperator
from controller.domain.errors import Retryable, Terminal

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

LEAST_RETRIES_DEFERRED = 2
"""Minimum number of retries of a deferred task. Airflow 3.3 may mark a task as failed if its trigger fires
within seconds of the deferral (apache/airflow#66374).
"""


class WaitForOperationSensor(RetriedOperator, BaseSensorOperator):
    """Waits for an operation of Cleave's journal, regardless of its requester. The XCom of the task is the
    operation.

    An aborted operation fails the task at once, with one line. Between two checks the task has no process: it
    is rescheduled, or, with `deferrable`, the triggerer waits.

    :param operation_id: id of the operation.
    :param deferrable: wait in the triggerer. Such a task has at least 2 retries, mapped or not, regardless of
        its arguments. A task that is mapped over `deferrable` itself has the retries of its partial, and is
        rescheduled if it has fewer than 2.
    """

    template_fields: Sequence[str] = ("operation_id",)
    operator_extra_links = (OperationLink(),)
    ui_color = "#d7f0ea"

    def __init__(
        self,
        *,
        operation_id: int | str,
        cleave_conn_id: str = CleaveHook.default_conn_name,
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        dag_defaults = kwargs.get("default_args") or {}
        pace: dict[str, Any] = {"mode": "reschedule", "poke_interval": 10}
        super().__init__(**{name: value for name, value in pace.items() if name not in dag_defaults} | kwargs)
        self.operation_id = operation_id
        self.cleave_conn_id = cleave_conn_id
        self.deferrable = deferrable
        self.retries = max(self.retries or 0, self.least_retries({"deferrable": deferrable}))

    @classmethod
    def least_retries(cls, arguments: Mapping[str, Any]) -> int:
        """Return the minimum number of retries: `LEAST_RETRIES_DEFERRED` if `deferrable` is among the
        arguments and true, otherwise 0.
        """
        return LEAST_RETRIES_DEFERRED if arguments.get("deferrable") else 0

    @with_airflow_errors
    def execute(self, context: Context) -> Any:
        """Wait for the operation, and return it. A deferrable task with enough retries waits in the
        triggerer, any other task calls `poke` at intervals. Stores the operation's id as XCom `operation_id`
        first.
        """
        context["ti"].xcom_push(key=OPERATION_KEY, value=self.operation_id)
        if self.deferrable and self._may_be_deferred(context):
            self._defer()
        return super().execute(context)

    def _may_be_deferred(self, context: Context) -> bool:
        """Return True if the task has enough retries. A task that is mapped over `deferrable` itself has the
        retries of its partial.
        """
        if context["ti"].max_tries >= LEAST_RETRIES_DEFERRED:
            return True
        self.log.warning(
            "task not deferred, since it has fewer than %d retries; pass deferrable or retries to partial()",
            LEAST_RETRIES_DEFERRED,
        )
        return False

    def _defer(self) -> NoReturn:
        """Raise Airflow's exception that hands the task over to the triggerer. Airflow continues the task
        with `told` when the trigger fires, and fails the task after `timeout` seconds.
        """
        from cleave_provider.triggers.cleave import OperationTrigger

        self.defer(
            trigger=OperationTrigger(self.operation_id, self.cleave_conn_id, self.poke_interval),
            method_name="told",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002  # Airflow's signature
        """Check the operation once. The result is done, with the operation as XCom, if the operation has
        ended.

        An aborted operation, or an error that cannot pass, becomes an AirflowFailException, which `soft_fail`
        turns into a skip. If the database or Airflow's API server is unavailable, the sensor checks again at its
        own interval, without using up an attempt.
        """
        from controller import tasks

        try:
            access = CleaveHook(self.cleave_conn_id).access()
            operation = tasks.ended_operation(**access, operation_id=self.operation_id)
        except Terminal as error:
            raise AirflowFailException(str(error)) from error
        except Retryable as error:
            self.log.warning(
                "operation %s could not be read and is checked again: %s", self.operation_id, error
            )
            operation = None
        return PokeReturnValue(is_done=operation is not None, xcom_value=operation)

    @with_airflow_errors
    def resume_execution(self, *args: Any, **kwargs: Any) -> Any:
        """Resume as Airflow does, with errors of one line."""
        return super().resume_execution(*args, **kwargs)

    def told(self, context: Context, event: Mapping[str, Any]) -> Any:  # noqa: ARG002  # Airflow's signature
        """Return the operation, which the event of the trigger contains. Airflow calls this method after a
        deferral. Raises AirflowFailException if the event contains a failure: the operation was aborted or
        cannot be read.
        """
        if "failure" in event:
            raise AirflowFailException(event["failure"])
        return event["operation"]
