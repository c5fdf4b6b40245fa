"""Translates errors of Cleave for Airflow: a task is tried again after the delay of the error, or fails at
once with one line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cleave_provider.airflow_compatibility import (
    HAS_RETRY_POLICIES,
    AirflowException,
    AirflowFailException,
    AirflowRuntimeError,
    RetryDecision,
    RetryPolicy,
)
from controller.domain.errors import Retryable, Terminal

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

RETRIES = 3
RETRY_DELAY = timedelta(seconds=5)
"""Delay for errors that have none of their own."""


class RetryableOnly(RetryPolicy):
    """Retries errors that can pass, after the delay of the error. Errors that cannot pass are not retried.

    Errors of the system or of Airflow (a storage or an API server that does not answer) are retried after the
    task's own delay, and so is a task that was killed or that reached its `execution_timeout`.
    """

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,  # noqa: ARG002  # Airflow's signature
        max_tries: int,  # noqa: ARG002  # likewise
        context: Context | None = None,  # noqa: ARG002  # likewise
    ) -> RetryDecision:
        """Decide whether the task is tried again, and when: never after an exit, after the error's delay for a Retryable, after the
        task's own delay for errors of the system or of Airflow and for an interruption, and never for another error.
        """
        if isinstance(exception, SystemExit):
            return RetryDecision.fail("the request cannot succeed")
        if isinstance(exception, Retryable):
            return RetryDecision.retry(timedelta(seconds=exception.delay_seconds), str(exception))
        # Airflow interrupts a task with a BaseException that is no Exception, such as AirflowTaskTimeout.
        if _may_pass(exception) or not isinstance(exception, Exception):
            return RetryDecision.default()
        return RetryDecision.fail(_not_retried(exception))


def with_airflow_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its errors translated for Airflow's tasks.

    An error that can never pass (invalid input, not found, conflict) ends the task with one line and without further attempts. An error
    that may pass is raised unchanged and the task is tried again. Any other error ends the task without further attempts, unless the
    task has a retry policy that is not Cleave's. Before Airflow 3.3, retries use the task's own delay.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (Terminal, AirflowFailException) as error:
            line = str(error)
        except Exception as error:
            if HAS_RETRY_POLICIES or _may_pass(error):
                raise
            raise AirflowFailException(_not_retried(error)) from error
        # The error is raised outside the handler, so that the log shows the line without a traceback.
        raise _end_with(line, is_final=_has_cleave_policy(args))

    return wrapped


def _may_pass(error: BaseException) -> bool:
    """Return True if a later attempt may succeed: a Retryable of Cleave, or an error of Airflow or of the
    system.
    """
    # An error with which Airflow's API server answers a task is an AirflowRuntimeError, no AirflowException.
    return isinstance(error, Retryable | AirflowException | AirflowRuntimeError | OSError)


def _has_cleave_policy(args: tuple[Any, ...]) -> bool:
    """Return True if the task has Cleave's retry policy; an operator may have been given another policy, or None.
    `args` are the arguments of a wrapped call. True if the first of them is not an operator, or there are none.
    """
    return not args or isinstance(getattr(args[0], "retry_policy", RetryableOnly()), RetryableOnly)


def _end_with(line: str, *, is_final: bool) -> BaseException:
    """Return the exception that fails a task for good and leaves the line in its log.

    Airflow logs an exception with every frame of its own task runner, but an exit only with its argument.
    Only Cleave's retry policy makes an exit final.
    """
    return SystemExit(line) if HAS_RETRY_POLICIES and is_final else AirflowFailException(line)


def _not_retried(error: BaseException) -> str:
    """Return the line of a task's log for an error after which the task is not tried again."""
    return f"{type(error).__name__} is not retried: {error}"
