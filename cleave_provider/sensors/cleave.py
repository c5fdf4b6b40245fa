"""WaitForOperationSensor: a task that ends with an operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from cleave_provider.failures import told_apart
from cleave_provider.hooks.cleave import CleaveHook
from cleave_provider.links.cleave import OPERATION_KEY, OperationLink
from cleave_provider.operators.retried import RetriedOperator
from cleave_provider.versions import AirflowFailException
from controller.domain.errors import Retryable, Terminal

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

LEAST_RETRIES_DEFERRED = 2
"""Airflow 3.3 may mark a task failed whose trigger fires within seconds of its deferral (apache/airflow#66374)."""


class WaitForOperationSensor(RetriedOperator, BaseSensorOperator):
    """Waits for an operation of Cleave's journal, whoever asked for it; its XCom is the operation.

    An operation that was aborted fails the task at once, with one line. Between two looks the task has no process: it is
    rescheduled, or with `deferrable` waited for by the triggerer.

    :param operation_id: of the operation.
    :param deferrable: wait in the triggerer. Such a task has at least 2 retries, mapped or not, whatever is asked. One that is
        mapped over `deferrable` itself has those of its partial, and with fewer it is rescheduled.
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
        of_the_dag = kwargs.get("default_args") or {}
        pace: dict[str, Any] = {"mode": "reschedule", "poke_interval": 10}
        super().__init__(**{name: value for name, value in pace.items() if name not in of_the_dag} | kwargs)
        self.operation_id = operation_id
        self.cleave_conn_id = cleave_conn_id
        self.deferrable = deferrable
        self.retries = max(self.retries or 0, self.least_retries({"deferrable": deferrable}))

    @classmethod
    def least_retries(cls, said: Mapping[str, Any]) -> int:
        """See the class."""
        return LEAST_RETRIES_DEFERRED if said.get("deferrable") else 0

    @told_apart
    def execute(self, context: Context) -> Any:
        """See the class."""
        context["ti"].xcom_push(key=OPERATION_KEY, value=self.operation_id)
        if self.deferrable and self._may_be_deferred(context):
            self._defer()
        return super().execute(context)

    def _may_be_deferred(self, context: Context) -> bool:
        """Whether the task has the attempts for it. Mapped over `deferrable` itself it has those of its partial."""
        if context["ti"].max_tries >= LEAST_RETRIES_DEFERRED:
            return True
        self.log.warning(
            "not deferred, since the task has fewer than %d retries: give deferrable or retries to partial()",
            LEAST_RETRIES_DEFERRED,
        )
        return False

    def _defer(self) -> NoReturn:
        from cleave_provider.triggers.cleave import OperationTrigger

        self.defer(
            trigger=OperationTrigger(self.operation_id, self.cleave_conn_id, self.poke_interval),
            method_name="told",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002  # Airflow's signature
        """One look. What cannot succeed is an AirflowFailException, which `soft_fail` turns into a skip; a database that is
        away is looked at again at the sensor's pace and costs no attempt.
        """
        from controller import tasks

        try:
            access = CleaveHook(self.cleave_conn_id).access()
            found = tasks.ended_operation(**access, operation_id=self.operation_id)
        except Terminal as error:
            raise AirflowFailException(str(error)) from error
        except Retryable as error:
            self.log.warning("looking at operation %s again: %s", self.operation_id, error)
            found = None
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    @told_apart
    def resume_execution(self, *args: Any, **kwargs: Any) -> Any:
        """As Airflow's, with failures of one line."""
        return super().resume_execution(*args, **kwargs)

    def told(self, context: Context, event: Mapping[str, Any]) -> Any:  # noqa: ARG002  # Airflow's signature
        """The trigger has fired."""
        if "failure" in event:
            raise AirflowFailException(event["failure"])
        return event["operation"]
