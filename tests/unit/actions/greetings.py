"""An action that only tests know: all that a new action needs is this file."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import TopicRequest
from controller.actions.responses import Response, Row
from controller.actions.rights import Right


class Greet(TopicRequest):
    """Greet a topic."""

    word: str = Field(max_length=10, description="Word of the greeting.", examples=["hello"])
    times: int = Field(1, ge=1, le=3, description="Number of greetings.")


class Greeting(Response):
    """The greeting."""

    text: str = Field(examples=["hello topic://acme/shop/orders"])

    def sentence(self) -> str:
        """See `Response`."""
        return f"{self.text}{' (dry run)' if self.dry_run else ''}"

    def rows(self) -> Sequence[Row]:
        """See `Response`."""
        return [{"text": self.text}]


def greet(context: Context, request: Greet) -> Greeting:
    """Return the greeting."""
    text = " ".join([request.word] * request.times)
    return Greeting(dry_run=context.dry_run, text=f"{text} {request.topic} from {context.caller.actor}")


ACTIONS = (Action("greetings send", "/topics/{topic}/greetings", Right.OPERATE, Greet, Greeting, greet),)
