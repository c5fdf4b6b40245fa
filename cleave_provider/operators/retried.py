"""RetriedOperator: what makes a task of the provider be tried again, mapped or not.

Airflow keeps the attempts of a mapped task (`.partial().expand()`) with the partial, and the scheduler reads them there: no
operator is made before one of its tasks runs. So what an operator's `__init__` sets by itself is set by `partial` too, here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from cleave_provider.failures import RETRIES, RETRY_DELAY, RetryableOnly
from cleave_provider.versions import HAS_RETRY_POLICIES

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import OperatorPartial


class RetriedOperator(BaseOperator):
    """An operator with attempts and their pace where neither its arguments nor the defaults of its DAG have any."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**_ours_beside(kwargs.get("default_args") or {}), **kwargs})

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """As Airflow's."""
        made: OperatorPartial = super().partial(**kwargs)
        said = {**_defaults_of(made), **(kwargs.get("default_args") or {}), **kwargs}
        made.kwargs |= _ours_beside(said)
        made.kwargs["retries"] = max(made.kwargs["retries"] or 0, cls.least_retries(said))
        return made

    @classmethod
    def least_retries(cls, said: Mapping[str, Any]) -> int:  # noqa: ARG003  # for those that have some
        """How many attempts a task has after its first one, whatever was asked; `said` are its arguments."""
        return 0


def _ours_beside(said: Mapping[str, Any]) -> dict[str, Any]:
    """The attempts and their pace, without what somebody has said."""
    ours: dict[str, Any] = {"retries": RETRIES, "retry_delay": RETRY_DELAY}
    if HAS_RETRY_POLICIES:
        ours["retry_policy"] = RetryableOnly()
    return {name: value for name, value in ours.items() if name not in said}


def _defaults_of(made: OperatorPartial) -> dict[str, Any]:
    """The default arguments of the DAG and of the group of tasks, which has those of the groups around it."""
    levels = (made.kwargs["dag"], made.kwargs["task_group"])
    return {name: value for level in levels if level for name, value in level.default_args.items()}
