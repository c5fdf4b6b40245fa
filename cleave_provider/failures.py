"""What an error of Cleave means to Airflow: tried again after the time it asks for, or failed at once with one line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cleave_provider.versions import (
    HAS_RETRY_POLICIES,
    AirflowException,
    AirflowFailException,
    RetryDecision,
    RetryPolicy,
)
from controller.domain.errors import Retryable, Terminal

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

RETRIES = 3
RETRY_DELAY = timedelta(seconds=5)
"""The pace of what has none of its own."""


class RetryableOnly(RetryPolicy):
    """Another attempt for errors that can pass, after the time the error asks for. A mistake is not repeated.

    What the system or Airflow itself reports (a storage that does not answer, the API server away) is tried again at
    the task's own pace, and so is a task that was killed.
    """

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,  # noqa: ARG002  # Airflow's signature
        max_tries: int,  # noqa: ARG002  # likewise
        context: Context | None = None,  # noqa: ARG002  # likewise
    ) -> RetryDecision:
        """See the class."""
        if isinstance(exception, SystemExit):
            return RetryDecision.fail("it cannot succeed as it was asked")
        if isinstance(exception, Retryable):
            return RetryDecision.retry(timedelta(seconds=exception.delay_seconds), str(exception))
        if _is_worth_another_attempt(exception):
            return RetryDecision.default()
        return RetryDecision.fail(_not_retried(exception))


def told_apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with errors as Airflow's tasks need them.

    What can never succeed as it is (bad input, not found, conflict) ends with that one line. Before Airflow 3.3 a mistake
    fails its task from within, and what is tried again is so at the task's own pace.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (Terminal, AirflowFailException) as error:
            line = str(error)
        except Exception as error:
            if HAS_RETRY_POLICIES or _is_worth_another_attempt(error):
                raise
            raise AirflowFailException(_not_retried(error)) from error
        # Outside the handler: the log shows the line, not where it arose.
        raise _end_with(line, is_final=_has_our_policy(args))

    return wrapped


def _is_worth_another_attempt(error: BaseException) -> bool:
    return isinstance(error, Retryable | AirflowException | OSError)


def _has_our_policy(args: tuple[Any, ...]) -> bool:
    """An operator may have been given another one; a task of our DAGs has ours."""
    return not args or isinstance(getattr(args[0], "retry_policy", RetryableOnly()), RetryableOnly)


def _end_with(line: str, *, is_final: bool) -> BaseException:
    """What fails a task for good and leaves that line in its log.

    Airflow logs an exception with every frame of its own task runner, and an exit with what it was given. An exit is
    final only by our retry policy.
    """
    return SystemExit(line) if HAS_RETRY_POLICIES and is_final else AirflowFailException(line)


def _not_retried(error: BaseException) -> str:
    return f"{type(error).__name__} is not retried: {error}"
