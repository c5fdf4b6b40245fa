"""The base of both hooks: the form of their connection, its lookup and its test."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseHook

from cleave_provider.versions import AirflowFailException, AirflowNotFoundException

if TYPE_CHECKING:
    from airflow.sdk import Connection


class HookWithForm(BaseHook):
    """A hook whose connection is tried by `check`."""

    conn_type: ClassVar[str]

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """The form, for Airflow before 3.2; later ones read `get_provider_info`."""
        from cleave_provider.get_provider_info import behaviour_of

        return behaviour_of(cls.conn_type)

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """As `get_ui_field_behaviour`."""
        from cleave_provider.get_provider_info import widgets_of

        return widgets_of(cls.conn_type)

    @classmethod
    def found(cls, conn_id: str, kind: str) -> Connection:
        """Return the connection. Raises AirflowFailException if it is missing; the message asks to add one of that kind."""
        try:
            return cls.get_connection(conn_id)
        except AirflowNotFoundException as error:
            raise AirflowFailException(
                f"there is no connection {conn_id!r}: add {kind}, of that id"
            ) from error

    def test_connection(self) -> tuple[bool, str]:
        """Whether it serves, and what is there or what is wrong."""
        from controller.domain.errors import CleaveError

        try:
            return True, self.check()
        except (CleaveError, AirflowFailException) as error:
            return False, str(error)

    @abstractmethod
    def check(self) -> str:
        """What is there, in one line. Raises CleaveError, AirflowFailException."""


def filled_in(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras without the fields of the form that were left empty."""
    return {name: value for name, value in extras.items() if value not in ("", None)}
