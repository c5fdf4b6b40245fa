"""What both hooks have in common: the form of their connection, and trying it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from airflow.sdk import BaseHook

from cleave_provider.versions import AirflowFailException


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
