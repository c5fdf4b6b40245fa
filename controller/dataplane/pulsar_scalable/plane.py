"""Scalable topics of a Pulsar 5 cluster, through its admin REST API.

Splits are at the midpoint, one at a time, and the broker chooses ids. What its engine refuses it answers with status
500 and the exception's text (seen on 5.0.0-M1). That text is read here and nowhere else. The broker makes and deletes
segments. Calls of the data-plane protocol about single logs work where the broker can be asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from controller.dataplane.base import Counters, LogState
from controller.dataplane.layout_keeper import LayoutKeeper, LogCheck, segment_log
from controller.dataplane.load_settings import LoadSettings
from controller.dataplane.pulsar.access import PulsarAccess
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, may_be_under_way
from controller.dataplane.pulsar.asks import namespace_of_topic
from controller.dataplane.pulsar.errors import UnknownAddress
from controller.dataplane.pulsar.names import subscription_path
from controller.dataplane.pulsar_load.load import PulsarLoad
from controller.dataplane.pulsar_scalable.names import lookup_path, segment_path, topic_of, topic_path
from controller.domain.errors import (
    Conflict,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    SegmentNotFound,
    TopicNotFound,
    Unsupported,
)
from controller.domain.layout import SegmentLayout
from controller.domain.log_origin import LogOrigin
from controller.domain.observed_consumers import ObservedConsumer
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import SegmentState
from controller.domain.situation import Capabilities
from controller.forks import OneProcess

_EXISTS = frozenset({409})
_GONE = frozenset({404})
_FAILED = frozenset({500})
_MESSAGE = re.compile(r"Message: (.*)")
_FOR_GOOD = re.compile(r"IllegalArgumentException|Segments are not adjacent|Cannot split|Segment not found")


class PulsarScalableDataPlane(OneProcess, LayoutKeeper):
    """Topics named `topic://tenant/namespace/name`; safe to share between threads. Nothing connects before a call."""

    name = "pulsar_scalable"
    capabilities = Capabilities(midpoint_only=True, max_children=2, recut=False, shared_buckets=False)

    def __init__(
        self,
        access: PulsarAccess,
        *,
        call_timeout_seconds: float = 5.0,
        reshape_timeout_seconds: float = 0.0,
        load: LoadSettings = LoadSettings(),  # noqa: B008 - frozen
    ) -> None:
        self._admin = AdminCalls(access, call_timeout_seconds=call_timeout_seconds)
        self._reshape_timeout_seconds = max(reshape_timeout_seconds, call_timeout_seconds)
        self._load = PulsarLoad(
            self._admin.session, access.admin_urls, load, call_timeout_seconds=call_timeout_seconds
        )

    @property
    def call_timeout_seconds(self) -> float:
        """The longest any one call but `ask_reshape` may take, its requests and redirects together."""
        return self._admin.call_timeout_seconds

    @property
    def reshape_timeout_seconds(self) -> float:
        """The longest one `ask_reshape` may take."""
        return self._reshape_timeout_seconds

    # The layout.

    def create_topic(self, topic: str, segments: int) -> None:
        """See `LayoutKeeper`."""
        path = f"{topic_path(topic)}?numInitialSegments={segments}"
        self._ask(Ask("PUT", path, f"create {topic}", body={}, accept=_EXISTS))

    def delete_topic(self, topic: str) -> None:
        """See `LayoutKeeper`."""
        self._ask(Ask("DELETE", f"{topic_path(topic)}?force=true", f"delete {topic}", accept=_GONE))

    def read_layout(self, topic: str) -> SegmentLayout:
        """See `LayoutKeeper`."""
        return SegmentLayout.from_metadata(self._metadata(topic))

    def ask_reshape(
        self, topic: str, kind: ReshapeKind, parent_ids: Sequence[int], bucket_count: int
    ) -> None:
        """See `LayoutKeeper`. 5.0.0-M1 has no call for other entry buckets: Unsupported there."""
        ids = "/".join(map(str, parent_ids))
        query = f"?bucketCount={bucket_count}" if kind is ReshapeKind.REBUCKET else ""
        if kind not in (ReshapeKind.SPLIT, ReshapeKind.MERGE, ReshapeKind.REBUCKET):
            raise Unsupported(
                f"a broker that keeps the layout of {topic} cannot {kind}; split and merge instead"
            )
        act = f"{kind} of segment {ids} of {topic}"
        ask = Ask("POST", f"{topic_path(topic)}/{kind}/{ids}{query}", act, accept=_FAILED)
        try:
            answer = self._admin.ask(ask, self._admin.deadline(self._reshape_timeout_seconds))
        except UnknownAddress as error:
            if kind is not ReshapeKind.REBUCKET:
                raise
            self.read_layout(topic)  # the address is a broker's, then, and the topic is there
            raise Unsupported(f"{act}: this broker has no such call; split the segment instead") from error
        except DataPlaneUnavailable as error:
            if may_be_under_way(error):
                raise DataPlaneTimeout(f"{error}; it may be under way") from error
            raise
        if answer.status in _FAILED:
            raise _engine_error(act, answer)

    def check_logs(self, topic: str) -> LogCheck:
        """Look each ACTIVE segment's log up: a lookup tells a log that is not loaded from a missing log."""
        stats = self._stats(topic)
        active = {
            int(segment_id): lookup_path(str(one["name"]))
            for segment_id, one in stats["segments"].items()
            if one["state"] == SegmentState.ACTIVE.value
        }
        act = f"look for the logs of {topic}"
        asks = [Ask("GET", path, act, accept=_GONE) for path in active.values()]
        answers = self._admin.demand_all(asks, self._admin.deadline())
        missing = [i for i, answer in zip(active, answers, strict=True) if _says_missing(act, answer)]
        return LogCheck(int(stats["epoch"]), tuple(sorted(missing)))

    def auto_scaler(self, topic: str) -> Mapping[str, Any] | None:
        """See `LayoutKeeper`."""
        setting = self._metadata(topic).get("autoScalePolicy")
        return dict(setting) if isinstance(setting, Mapping) else None

    def set_auto_scaler(self, topic: str, setting: Mapping[str, Any] | None) -> None:
        """See `LayoutKeeper`."""
        path, act = f"{topic_path(topic)}/autoScalePolicy", f"set the auto-scaler of {topic}"
        verb = "DELETE" if setting is None else "POST"
        body = None if setting is None else dict(setting)
        if self._ask(Ask(verb, path, act, body=body, accept=_GONE)).status in _GONE:
            raise _no_topic(topic)

    def topic_subscriptions(self, topic: str) -> Mapping[str, str]:
        """See `LayoutKeeper`. 5.0.0-M1 does not tell the kind. Then it counts as STREAM, which the broker
        scales for.
        """
        found = self._stats(topic).get("subscriptions") or {}
        return {name: str(one.get("type") or "STREAM").upper() for name, one in found.items()}

    # Single logs.

    def backing_topic(self, topic: str, descriptor: str) -> str:
        """`segment://tenant/namespace/name/0000-7fff-12`."""
        return segment_log(topic, descriptor)

    def demand_namespace(self, topic: str) -> None:
        """See `NamespacedDataPlane`."""
        self._ask(namespace_of_topic(topic))

    def create_segment(
        self,
        backing_topic: str,
        subscriptions: Sequence[str],
        origin: LogOrigin | None = None,  # noqa: ARG002 - the protocol's
    ) -> None:
        """Make the log of a segment in the broker's layout, with these subscriptions at earliest; one that exists stays.

        The broker makes logs with the layout. This one it left out.
        """
        act = f"create {backing_topic}"
        self._ask(Ask("PUT", segment_path(backing_topic), act, body=list(subscriptions), accept=_EXISTS))

    def terminate_segment(self, backing_topic: str) -> str:
        """Unsupported: the broker closes segments with the layout."""
        raise Unsupported(
            f"{backing_topic} is its broker's to close; ask it for a split or merge of the topic"
        )

    def delete_segment(self, backing_topic: str) -> None:
        """Unsupported: the broker deletes segments when they are drained and old enough."""
        raise Unsupported(f"{backing_topic} is its broker's to delete; it does so after its own retention")

    def segment_state(self, backing_topic: str) -> LogState:
        """What the layout says of it."""
        topic, segment_id = topic_of(backing_topic)
        try:
            segment = self.read_layout(topic).segments.get(segment_id)
        except TopicNotFound:
            return LogState.MISSING
        if segment is None:
            return LogState.MISSING
        return LogState.TERMINATED if segment.state is SegmentState.SEALED else LogState.OPEN

    def create_subscription(self, backing_topic: str, subscription: str) -> None:
        """A stream subscription of the whole topic, which is the only kind of cursor its segments have."""
        topic, _ = topic_of(backing_topic)
        path = f"{topic_path(topic)}/subscriptions/{subscription_path(subscription)}?type=STREAM"
        act = f"subscribe {subscription!r} to {topic}"
        if self._ask(Ask("PUT", path, act, accept=_GONE | _EXISTS)).status in _GONE:
            raise SegmentNotFound(f"{act}: there is no such topic; detach it, or create it on the broker")

    def delete_subscription(self, backing_topic: str, subscription: str) -> None:
        """Delete the subscription of the whole topic; a missing one is success."""
        topic, _ = topic_of(backing_topic)
        path = f"{topic_path(topic)}/subscriptions/{subscription_path(subscription)}"
        self._ask(Ask("DELETE", path, f"unsubscribe {subscription!r} from {topic}", accept=_GONE))

    def list_segments(self, topic: str) -> Sequence[str]:
        """The logs of the layout, sorted; empty if the topic is missing."""
        try:
            segments = self.read_layout(topic).segments.values()
        except TopicNotFound:
            return []
        return sorted(segment_log(topic, f"{one.hash_range}-{one.segment_id}") for one in segments)

    def list_subscriptions(self, backing_topic: str) -> Sequence[str]:
        """The subscriptions of the topic; empty if it is missing."""
        try:
            return sorted(self.topic_subscriptions(topic_of(backing_topic)[0]))
        except TopicNotFound:
            return []

    def backlog(self, backing_topic: str, subscription: str) -> int | None:
        """Entries not acknowledged; None where there is no such log or cursor, or no broker has it loaded."""
        path = f"{segment_path(backing_topic)}/subscription/{subscription_path(subscription)}/backlog"
        answer = self._ask(Ask("GET", path, f"backlog of {subscription!r} on {backing_topic}", accept=_GONE))
        return None if answer.status in _GONE else int(answer.document)

    def seek(self, backing_topic: str, subscription: str, instant_ms: int) -> None:
        """Of this log alone."""
        cursor = f"{segment_path(backing_topic)}/subscription/{subscription_path(subscription)}"
        path = f"{cursor}/seek?timestamp={instant_ms}"
        self._ask(Ask("POST", path, f"seek {subscription!r} on {backing_topic}"))

    def skip_all(self, backing_topic: str, subscription: str) -> None:
        """Of this log alone."""
        path = f"{segment_path(backing_topic)}/subscription/{subscription_path(subscription)}/skip-all"
        self._ask(Ask("POST", path, f"skip all on {backing_topic} for {subscription!r}"))

    # Load.

    @property
    def sample_limit(self) -> int:
        """See `SamplesByPage`."""
        return self._load.sample_limit

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """From the brokers' metrics pages."""
        return self._load.sample(backing_topics)

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        """The broker's own count of each topic's stream consumers, given with the first of its logs that
        is asked for.
        """
        topics: dict[str, list[str]] = {}
        for log in backing_topics:
            topics.setdefault(topic_of(log)[0], []).append(log)
        found: dict[str, Sequence[ObservedConsumer]] = {}
        for topic, logs in topics.items():
            try:
                subscriptions = self._stats(topic).get("subscriptions") or {}
            except TopicNotFound:
                subscriptions = {}
            found.update(dict.fromkeys(logs, ()))
            found[logs[0]] = [
                ObservedConsumer(name, "Exclusive", f"{name} {number}", "", "")
                for name, one in subscriptions.items()
                for number in range(int(one.get("consumerCount") or 0))
            ]
        return found

    def close(self) -> None:
        """Give back connections."""
        self._load.close()
        self._admin.close()

    def _ask(self, ask: Ask) -> Answer:
        return self._admin.ask(ask, self._admin.deadline())

    def _metadata(self, topic: str) -> Mapping[str, Any]:
        answer = self._ask(Ask("GET", topic_path(topic), f"read the layout of {topic}", accept=_GONE))
        if answer.status in _GONE:
            raise _no_topic(topic)
        if not isinstance(answer.document, Mapping) or "segments" not in answer.document:
            raise DataPlaneUnavailable(f"the broker's answer about {topic} holds no layout; try again")
        return answer.document

    def _stats(self, topic: str) -> Mapping[str, Any]:
        act = f"look at {topic}"
        answer = self._ask(Ask("GET", f"{topic_path(topic)}/stats", act, accept=_GONE | _FAILED))
        if answer.status in _GONE or "Scalable topic not found" in str(answer.document):
            raise _no_topic(topic)
        if answer.status in _FAILED or not isinstance(answer.document, Mapping):
            raise DataPlaneUnavailable(f"{act}: {_message(answer)}; look at the broker's log if this goes on")
        return answer.document


def _engine_error(act: str, answer: Answer) -> Conflict | DataPlaneUnavailable:
    """What the engine found wrong with the request will be wrong the next time too. Any other refusal may pass."""
    told = _message(answer)
    if _FOR_GOOD.search(str(answer.document)):
        return Conflict(f"{act}: {told}; read the layout again")
    return DataPlaneUnavailable(f"{act}: {told}; look at the broker's log if this goes on", delay_seconds=1.0)


def _says_missing(act: str, answer: Answer) -> bool:
    """Return True if the lookup says that there is no such topic."""
    if answer.status not in _GONE:
        return False
    reason = str(answer.document.get("reason")) if isinstance(answer.document, Mapping) else ""
    if not reason.startswith("Topic not found"):
        raise DataPlaneUnavailable(f"{act}: answered 404 ({reason[:300]}); look at the broker's log")
    return True


def _message(answer: Answer) -> str:
    """The exception's own words, without the stack trace."""
    reason = answer.document.get("reason", "") if isinstance(answer.document, Mapping) else ""
    found = _MESSAGE.search(str(reason))
    return found[1].strip() if found else f"answered {answer.status}"


def _no_topic(topic: str) -> TopicNotFound:
    return TopicNotFound(f"the broker has no scalable topic {topic}; create it there, or check the name")
