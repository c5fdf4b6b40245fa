"""The base class of both hooks: the lookup of their connection, its test, and its form."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseHook

from cleave_provider.airflow_compatibility import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowRuntimeError,
)
from controller.domain.errors import StoreUnavailable

if TYPE_CHECKING:
    from airflow.sdk import Connection

LOOKUP_AGAIN_SECONDS = 15.0
"""Delay after a lookup that Airflow's API server answered with an error."""


class HookWithForm(BaseHook):
    """A hook whose connection can be tested with `check`."""

    conn_type: ClassVar[str]

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return the behaviour of the form, for Airflow before 3.2; later versions read `get_provider_info`."""
        from cleave_provider.get_provider_info import behaviour_of

        return behaviour_of(cls.conn_type)

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the fields of the form, for Airflow before 3.2."""
        from cleave_provider.get_provider_info import widgets_of

        return widgets_of(cls.conn_type)

    @classmethod
    def find_connection(cls, conn_id: str, kind: str) -> Connection:
        """Return the connection. Raises AirflowFailException if it does not exist; the message asks for a
        connection of the kind `kind`. Raises StoreUnavailable if Airflow cannot look the connection up.
        """
        try:
            return cls.get_connection(conn_id)
        except (AirflowNotFoundException, AirflowRuntimeError) as error:
            if failure := _lookup_failure(conn_id):
                raise StoreUnavailable(
                    f"connection {conn_id!r} cannot be read from Airflow's API server: {failure}",
                    LOOKUP_AGAIN_SECONDS,
                ) from error
            raise AirflowFailException(
                f"there is no connection {conn_id!r}; add {kind} with this id"
            ) from error

    def test_connection(self) -> tuple[bool, str]:
        """Return True and a description if the connection works, else False and the error."""
        from controller.domain.errors import CleaveError

        try:
            return True, self.check()
        except (CleaveError, AirflowFailException) as error:
            return False, str(error)

    @abstractmethod
    def check(self) -> str:
        """Return one line that describes the server. Raises CleaveError, AirflowFailException."""


def _lookup_failure(conn_id: str) -> str | None:
    """Return the error of Airflow's API server at a lookup of the connection. None if the API server says that
    the connection does not exist, or if this process is no task or trigger and so does not use the API server.

    Airflow reports a connection as not found after any error of the API server, so ask the API server once more.
    """
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection

    supervisor = getattr(task_runner, "SUPERVISOR_COMMS", None)
    if supervisor is None:
        return None
    try:
        answer = supervisor.send(GetConnection(conn_id=conn_id))
    except AirflowRuntimeError as error:
        answer = error.error
    except Exception as error:  # noqa: BLE001  # Airflow's own lookup ignores every error, too
        return f"{type(error).__name__}: {error}"
    if not isinstance(answer, ErrorResponse):
        return "the first lookup failed, the second one found it"
    if answer.error is ErrorType.CONNECTION_NOT_FOUND:
        return None
    return f"{answer.error.value}: {answer.detail}"
