"""Intents of reshapes: some segments are to be sealed in favour of others. Part of the one door, see ``intents``.

Each looks, plans and writes (see ``reshape_drafts``), and looks again where somebody came in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from controller.domain.errors import CleaveError, Conflict, LostRace
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation
from controller.domain.reshape import Reshape
from controller.store.journal import reshape_drafts
from controller.store.journal.guards import Intent, repeat
from controller.store.journal.reshape_drafts import ReshapeDraft, Seen
from controller.store.journal.rows import BackingTopic, Request, find_by_request_key, get_operation
from controller.store.mirrors import mirrors
from controller.store.postgres.engine import Store
from controller.store.topics import topics

UNLOCKED_ATTEMPTS = 3
"""So often a request looks again before it locks the topic and waits its turn."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A reshape of one topic, decided on what its ACTIVE segments were at `seen_epoch`.

    ``build`` plans it on those of the moment and may be called more than once. ``backing_topic`` None: a broker keeps
    the layout and chooses ids and names (see ``mirrors``). ``seen_*`` None: whatever they are by now.
    """

    topic_id: int
    build: Callable[[SegmentLayout], Reshape]
    backing_topic: BackingTopic | None
    request: Request
    seen_epoch: int | None = None
    seen_input_version: int | None = None


def intend_reshape(tx: Connection, wanted: Wanted) -> Intent:
    """Seal some segments in favour of others.

    Raises LostRace when what it was decided on has moved, TopicNotLive, SegmentBusy naming the operation in the way,
    and what ``build`` raises.
    """
    topic_id, request = wanted.topic_id, wanted.request
    if wanted.backing_topic is None:
        return mirrors.intend_on_broker(
            tx,
            topic_id,
            wanted.build,
            request=request,
            seen_epoch=wanted.seen_epoch,
            seen_input_version=wanted.seen_input_version,
        )
    intent = _attempt(tx, wanted)
    if intent is None:  # somebody was faster: behind him, and with nobody before us
        topics.get_topic(tx, topic_id, lock=True)
        intent = _attempt(tx, wanted)
    if intent is None:
        raise LostRace(f"inputs of topic {topic_id} changed meanwhile; decide again", 0.0)
    return intent


def _attempt(tx: Connection, wanted: Wanted) -> Intent | None:
    """None when the topic moved between the look and the write."""
    topic_id, request = wanted.topic_id, wanted.request
    seen = reshape_drafts.look(tx, topic_id, request.request_key)
    if seen.first_id is not None:
        return repeat(get_operation(tx, seen.first_id), request, _is_reshape_of(topic_id))
    draft = _draft(tx, wanted, seen)
    try:
        with tx.begin_nested():
            written = reshape_drafts.write(tx, [draft]).get(topic_id)
    except IntegrityError:  # the key, used on another topic at the same time
        first = find_by_request_key(tx, request.request_key)
        if first is None:
            raise
        return repeat(first, request, _is_reshape_of(topic_id))
    return None if written is None else Intent(written, repeated=False)


def intend_reshapes(tx: Connection, wanted: Sequence[Wanted]) -> list[Intent | CleaveError | IntegrityError]:
    """`intend_reshape` for several topics, each of them once: answers or errors in order.

    Two statements for all that go the ordinary way; the others follow, each by itself.
    """
    named = [one for one in wanted if one.backing_topic is not None]  # a broker is asked one by one
    looked = reshape_drafts.look_by_id(
        tx, [one.topic_id for one in named], [one.request.request_key for one in named]
    )
    drafts = []
    for one, seen in zip(named, looked, strict=True):
        if seen is not None and seen.first_id is None:
            try:
                drafts.append(_draft(tx, one, seen))
            except CleaveError:
                continue
    try:
        with tx.begin_nested():
            written = reshape_drafts.write(tx, drafts) if drafts else {}
    except IntegrityError:  # a key of theirs came into use, or two of them have the same
        written = {}
    return [
        Intent(written[one.topic_id], repeated=False) if one.topic_id in written else _by_itself(tx, one)
        for one in wanted
    ]


def _by_itself(tx: Connection, wanted: Wanted) -> Intent | CleaveError | IntegrityError:
    try:
        return intend_reshape(tx, wanted)
    except (CleaveError, IntegrityError) as error:
        return error


def _draft(tx: Connection, wanted: Wanted, seen: Seen) -> ReshapeDraft:
    if wanted.backing_topic is None:
        raise ValueError(f"logs of topic {seen.name} are named by its broker")
    planned = reshape_drafts.plan(
        tx, seen, wanted.build, epoch=wanted.seen_epoch, input_version=wanted.seen_input_version
    )
    return ReshapeDraft(seen, planned, wanted.request, wanted.backing_topic, wanted.seen_input_version)


def ask_reshape(
    store: Store,
    topic: str,
    build: Callable[[Seen, SegmentLayout], Reshape],
    *,
    backing_topic: Callable[[Seen], BackingTopic | None],
    request: Request,
) -> Intent:
    """``intend_reshape`` by itself, by the topic's name: two statements where nobody comes in between.

    Raises TopicNotFound besides. A topic that others change all the time is locked in the end.
    """
    attempts = 0
    while True:
        with store.single_statement() as tx:  # a plan that does not fit reads once more, to say why
            seen = reshape_drafts.look(tx, topic, request.request_key)
            wanted = Wanted(seen.topic_id, partial(build, seen), backing_topic(seen), request)
            if seen.first_id is not None or wanted.backing_topic is None or attempts == UNLOCKED_ATTEMPTS:
                break
            draft = _draft(tx, wanted, seen)
        attempts += 1
        try:
            with store.single_statement() as tx:
                written = reshape_drafts.write(tx, [draft]).get(seen.topic_id)
        except Conflict:  # the key, or a segment; told apart below
            break
        if written is not None:
            return Intent(written, repeated=False)
    with store.transaction() as tx:
        return intend_reshape(tx, wanted)


def _is_reshape_of(topic_id: int) -> Callable[[Operation], bool]:
    return lambda first: first.topic_id == topic_id and first.kind.is_reshape
