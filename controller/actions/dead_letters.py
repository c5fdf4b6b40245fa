"""Actions on dead letters: put them back into their topic."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Self

from pydantic import ConfigDict, Field

from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import ActionRequest, SubscriptionName, TopicName
from controller.actions.responses import Response, Row
from controller.actions.rights import Right
from controller.bootstrap import Application
from controller.client.dead_letter_redrive import PART_LIMIT, put_back
from controller.postgres_source import PostgresSource
from controller.services import dead_letters


class RedriveDeadLetters(ActionRequest):
    """Put dead letters back into their topic, oldest first, as new messages: every subscription of the topic gets them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"limit": 100}]})

    topic: TopicName
    subscription: SubscriptionName
    limit: Annotated[int, Field(ge=1, lt=2**63)] | None = Field(
        None,
        description=f"Maximum number of messages. None: all. One call over HTTP puts back at most {PART_LIMIT}, and returns how many are left.",
        examples=[100],
    )


class RedriveResponse(Response):
    """The number of messages that were put back; in a dry run, the number that would be put back."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    subscription: str = Field(examples=["billing"])
    messages: int = Field(examples=[3])
    left: int = Field(description="Number of dead letters that remain.", examples=[0])

    def sentence(self) -> str:
        verb = "would be put back" if self.dry_run else "put back"
        return f"{self.topic}: {self.messages} dead letters of {self.subscription} {verb}, {self.left} left"

    def rows(self) -> Sequence[Row]:
        return [self.model_dump(exclude={"dry_run"})]

    def rest_of(self, request: RedriveDeadLetters) -> RedriveDeadLetters | None:
        """Return the request for the remaining messages. None if none remain, if the limit of the request is
        reached, if this part put back no message, or after a dry run. The returned request has a limit, even if
        `request` has none, so that it does not put back dead letters that are stored later.
        """
        if self.dry_run or not self.messages:
            return None
        remaining = self.left if request.limit is None else min(self.left, request.limit - self.messages)
        return request.model_copy(update={"limit": remaining}) if remaining > 0 else None

    def joined(self, earlier: Self) -> Self:
        """Return a copy of this answer with the messages of the earlier parts added to its own; `left` stays as it is."""
        return self.model_copy(update={"messages": earlier.messages + self.messages})


def redrive(context: Context, request: RedriveDeadLetters) -> RedriveResponse:
    """Append at most `limit` dead letters (None: all), and at most `PART_LIMIT` in one call, to their topic as new
    messages, the oldest first, so that every subscription of the topic gets them. Acknowledge them in their log, whose
    other reader is disconnected. Return the numbers of messages put back and left. A dry run puts none back, and returns
    the number for all calls together.

    Raises TopicNotFound, SubscriptionNotFound, NotFound if the subscription never had a dead letter, Unsupported if the
    topic's data plane is not configured here or has no dead-letter logs, and the errors of the data plane and of
    `Producer.flush`. Raises InvalidInput for a letter that a producer refuses (`put_back`). After these errors, some
    messages may have been put back.
    """
    planes = context.app.planes
    log = dead_letters.find(context.store, planes, request.topic, request.subscription)
    count = dead_letters.count(planes, log)
    messages = count if request.limit is None else min(count, request.limit)
    if messages and not context.dry_run:
        messages = _put_back(context.app, log, min(messages, PART_LIMIT))
    return RedriveResponse(
        dry_run=context.dry_run,
        topic=request.topic,
        subscription=request.subscription,
        messages=messages,
        left=count - messages,
    )


def _put_back(app: Application, log: dead_letters.DeadLetterLog, count: int) -> int:
    """Put back up to `count` dead letters of the log, with connections that are closed afterwards. Return their number."""
    with (
        closing(PostgresSource(app.settings.database_url.get_secret_value())) as source,
        closing(app.log_client(log.data_plane)) as logs,
    ):
        return put_back(source, logs, log.backing_topic, log.topic, count)


ACTIONS = (
    Action(
        "dead-letters redrive",
        "/topics/{topic}/subscriptions/{subscription}/dead-letters/redrive",
        Right.ADMINISTER,
        RedriveDeadLetters,
        RedriveResponse,
        redrive,
    ),
)
