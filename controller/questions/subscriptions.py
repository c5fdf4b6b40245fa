"""Subscriptions of a topic."""

from __future__ import annotations

from controller.actions.action import report
from controller.actions.context import Context
from controller.actions.fields import SubscriptionName
from controller.actions.subscriptions import CursorDocument
from controller.questions.page_keys import write_keys
from controller.questions.question import TOPIC, Filter, PageAnswer, PageRequest, Question, TopicQuestion
from controller.services import subscription_admin


class ListCursors(PageRequest, TopicQuestion):
    """List the positions that a seek of the subscription would move, with their readers, by range."""

    subscription: SubscriptionName


class CursorsAnswer(PageAnswer[CursorDocument]):
    """A page of the positions of a subscription."""

    def sentence(self) -> str:
        """Return one sentence about the answer."""
        return f"{len(self.items)} positions"


def list_cursors(context: Context, request: ListCursors) -> CursorsAnswer:
    """Return a page of the cursors that a seek of the subscription would move, ordered by range and segment; the data
    plane counts their backlogs. Cursors on segments that were sealed before the subscription began are left out. Raises
    InvalidInput for an invalid page, TopicNotFound, SubscriptionNotFound, Unsupported if the topic's data plane is not
    configured here, and the errors of the data plane.
    """
    range_start, segment_id = request.keys([int, int])
    cursors = subscription_admin.cursors_to_move(
        context.store,
        context.app.planes,
        request.topic,
        request.subscription,
        after=None if segment_id is None else (range_start, segment_id),
        limit=request.size + 1,
    )
    items = [CursorDocument.model_validate(cursor) for cursor in cursors[: request.size]]
    is_last = len(cursors) <= request.size
    return CursorsAnswer(
        items=items, next=None if is_last else write_keys([items[-1].range_start, items[-1].segment_id])
    )


LIST_SUBSCRIPTIONS = Question(
    "subscriptions list",
    "/topics/{topic}/subscriptions",
    "inspect.subscriptions",
    "List the subscriptions of a topic and their consumers, by name.",
    {"subscription": str},
    {"topic": TOPIC, "live": Filter("state = 'live'", bool, "Only subscriptions that are live.")},
    table=("subscription", "kind", "state", "read_by", "consumers", "consumer_names", "created_at"),
    default_limit=1000,
)
QUESTIONS = (LIST_SUBSCRIPTIONS,)
ACTIONS = (
    report(
        "subscriptions cursors",
        "/topics/{topic}/subscriptions/{subscription}/cursors",
        ListCursors,
        CursorsAnswer,
        list_cursors,
    ),
)
