"""What somebody may want to know of each message that `KeyedWork` handles, for a history or for figures."""

from __future__ import annotations

from collections.abc import Sequence

from controller.client.stream_consumer import Batch
from controller.dataplane.base import LogMessage


class WorkObserver:
    """Override what you want to know. `begun`, `failed` and `ended` are called in the thread that works on the message, the others in
    the consumer's.
    """

    def handed_out(self, batch: Batch) -> None:
        """These were received; each is begun, or delivered again later."""

    def begun(self, batch: Batch, message: LogMessage) -> None:
        """The handler is called next."""

    def failed(self, batch: Batch, message: LogMessage) -> None:
        """The handler has raised; the message is not done."""

    def ended(self, batch: Batch, message: LogMessage) -> None:
        """The message is done with."""

    def acknowledged(self, batch: Batch, messages: Sequence[LogMessage]) -> None:
        """The data plane has taken the acknowledgement of these."""
