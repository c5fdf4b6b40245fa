"""The base class of both hooks: the lookup of their connection, its test, and its form."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseHook

from cleave_provider.airflow_compatibility import AirflowFailException, AirflowNotFoundException

if TYPE_CHECKING:
    from airflow.sdk import Connection


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
        connection of the kind `kind`.
        """
        try:
            return cls.get_connection(conn_id)
        except AirflowNotFoundException as error:
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
