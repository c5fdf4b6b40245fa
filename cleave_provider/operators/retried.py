"""RetriedOperator: gives retries to tasks of the provider, mapped or not.

Airflow keeps the retries of a mapped task (`.partial().expand()`) with the partial, and the scheduler reads
them there: no operator is created before one of its tasks runs. So `partial` sets the values here that an
operator's `__init__` sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from cleave_provider.airflow_compatibility import HAS_RETRY_POLICIES
from cleave_provider.failures import RETRIES, RETRY_DELAY, RetryableOnly

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import OperatorPartial


class RetriedOperator(BaseOperator):
    """An operator with default retries and delay, unless its arguments or the defaults of its DAG have some."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**_missing_defaults(kwargs.get("default_args") or {}), **kwargs})

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return Airflow's partial with the default retries and delay where the arguments and the DAG set none, and at least
        `least_retries`.
        """
        operator_partial: OperatorPartial = super().partial(**kwargs)
        arguments = {**_default_arguments(operator_partial), **(kwargs.get("default_args") or {}), **kwargs}
        operator_partial.kwargs |= _missing_defaults(arguments)
        operator_partial.kwargs["retries"] = max(
            operator_partial.kwargs["retries"] or 0, cls.least_retries(arguments)
        )
        return operator_partial

    @classmethod
    def least_retries(cls, arguments: Mapping[str, Any]) -> int:  # noqa: ARG003  # subclasses use it
        """Return the minimum number of retries of a task with these arguments."""
        return 0


def _missing_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default retries, delay and (since Airflow 3.3) retry policy, without those that `arguments` contain."""
    defaults: dict[str, Any] = {"retries": RETRIES, "retry_delay": RETRY_DELAY}
    if HAS_RETRY_POLICIES:
        defaults["retry_policy"] = RetryableOnly()
    return {name: value for name, value in defaults.items() if name not in arguments}


def _default_arguments(operator_partial: OperatorPartial) -> dict[str, Any]:
    """Return the default arguments of the DAG and of the task group, which include those of the enclosing
    groups.
    """
    levels = (operator_partial.kwargs["dag"], operator_partial.kwargs["task_group"])
    return {name: value for level in levels if level for name, value in level.default_args.items()}
