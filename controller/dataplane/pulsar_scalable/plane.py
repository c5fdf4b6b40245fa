"""Manages scalable topics of a Pulsar 5 cluster, through its admin REST API.

Splits are at the midpoint, one at a time, and the broker chooses ids. The broker reports refusals of its
engine with status 500 and the exception's text (seen on 5.0.0-M1); only this module interprets that text. The
broker creates and deletes segments. Calls of the data-plane protocol about single logs work if the broker
offers a request for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from controller import telemetry
from controller.dataplane.base import Counters, LogState
from controller.dataplane.layout_keeper import LayoutKeeper, LogCheck, segment_log
from controller.dataplane.load_settings import LoadSettings
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, may_be_under_way
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.http_errors import UnknownAddress
from controller.dataplane.pulsar.names import subscription_path
from controller.dataplane.pulsar.topic_requests import EXISTS, FAILED, GONE, namespace_of_topic, reading
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.dataplane.pulsar_load.scraper import SAMPLE_LIMIT, CounterScraper
from controller.dataplane.pulsar_scalable.names import lookup_path, segment_path, topic_of, topic_path
from controller.domain.errors import (
    CleaveError,
    Conflict,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    SegmentNotFound,
    TopicNotFound,
    Unsupported,
)
from controller.domain.evaluation_input import Capabilities
from controller.domain.layout import SegmentLayout
from controller.domain.log_origin import LogOrigin
from controller.domain.observed_consumers import ObservedConsumer
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import SegmentState
from controller.forks import OneProcess

log = telemetry.get_logger(__name__)

_MESSAGE = re.compile(r"Message: (.*)")
_FOR_GOOD = re.compile(r"IllegalArgumentException|Segments are not adjacent|Cannot split|Segment not found")


class PulsarScalableDataPlane(OneProcess, LayoutKeeper):
    """Topics named `topic://tenant/namespace/name`. Safe to share between threads. Connects at the first
    call.

    Calls raise InvalidInput for a name of another form, and the errors of `AdminCalls.ask`:
    DataPlaneUnavailable, DataPlaneTimeout, and NotFound or another Terminal error for a lasting refusal.
    """

    name = "pulsar_scalable"
    capabilities = Capabilities(midpoint_only=True, max_children=2, recut=False, shared_buckets=False)
    sample_limit = SAMPLE_LIMIT
    """Largest number of logs that one call of `sample` should name."""

    def __init__(
        self,
        access: PulsarAccess,
        *,
        call_timeout_seconds: float = 5.0,
        reshape_timeout_seconds: float = 0.0,
        load: LoadSettings = LoadSettings(),  # noqa: B008 - frozen
    ) -> None:
        """Create the data plane without connecting. `reshape_timeout_seconds` counts as at least
        `call_timeout_seconds`. `load` are the settings for reading load. Raises InvalidInput for an invalid
        `broker_url` in `load`.
        """
        self._admin = AdminCalls(access, call_timeout_seconds=call_timeout_seconds)
        self._reshape_timeout_seconds = max(reshape_timeout_seconds, call_timeout_seconds)
        session = self._admin.session
        brokers = BrokerList(session, access.admin_urls, cluster=load.cluster, broker_url=load.broker_url)
        self._scraper = CounterScraper(session, brokers, deadline_seconds=load.page_seconds)

    @property
    def call_timeout_seconds(self) -> float:
        """Longest duration in seconds of one call except `ask_reshape` and `sample`, its requests and redirects
        together.
        """
        return self._admin.call_timeout_seconds

    @property
    def reshape_timeout_seconds(self) -> float:
        """Longest duration of one `ask_reshape`."""
        return self._reshape_timeout_seconds

    # Layouts.

    def create_topic(self, topic: str, segments: int) -> None:
        """Create the topic with `segments` equal segments. An existing topic does not change."""
        path = f"{topic_path(topic)}?numInitialSegments={segments}"
        self._ask(Ask("PUT", path, f"create {topic}", body={}, accept=EXISTS))

    def delete_topic(self, topic: str) -> None:
        """Delete the topic with every segment, by force. A missing topic is success."""
        self._ask(Ask("DELETE", f"{topic_path(topic)}?force=true", f"delete {topic}", accept=GONE))

    def read_layout(self, topic: str) -> SegmentLayout:
        """Request the topic's present layout from the broker, and return it. Raises TopicNotFound;
        DataPlaneUnavailable if the answer contains no layout; InvalidInput for a layout that cannot be read; and the
        other errors of the class.
        """
        return SegmentLayout.from_metadata(self._metadata(topic))

    def ask_reshape(
        self, topic: str, kind: ReshapeKind, parent_ids: Sequence[int], bucket_count: int
    ) -> None:
        """Request a split of a segment at the midpoint, a merge of two neighbours, or another number of entry buckets
        for a segment, and wait for the answer for at most `reshape_timeout_seconds`. `parent_ids` are the segment to
        split or rebucket, or the two segments to merge. `bucket_count` is the new number of entry buckets for a
        rebucket; for a split or merge it has no effect. Make only one call at a time for a topic.

        Raises Unsupported for any other kind, and for a rebucket on a broker that has no such request, such as
        5.0.0-M1; TopicNotFound if the topic is missing there. Raises Conflict if the broker will always refuse the
        request, as for a missing segment or segments that are not adjacent; and DataPlaneUnavailable for another
        failure of the broker. DataPlaneTimeout means that there was no answer in time, or that the connection broke:
        the reshape may be in progress or done. Raises also the other errors of the class.
        """
        ids = "/".join(map(str, parent_ids))
        query = f"?bucketCount={bucket_count}" if kind is ReshapeKind.REBUCKET else ""
        if kind not in (ReshapeKind.SPLIT, ReshapeKind.MERGE, ReshapeKind.REBUCKET):
            raise Unsupported(
                f"a broker that keeps the layout of {topic} cannot {kind}; split and merge instead"
            )
        purpose = f"{kind} of segment {ids} of {topic}"
        ask = Ask("POST", f"{topic_path(topic)}/{kind}/{ids}{query}", purpose, accept=FAILED)
        try:
            answer = self._admin.ask(ask, self._admin.deadline(self._reshape_timeout_seconds))
        except UnknownAddress as error:
            if kind is not ReshapeKind.REBUCKET:
                raise
            self.read_layout(topic)  # succeeds only if the address is a broker's and the topic exists
            raise Unsupported(
                f"{purpose}: this broker has no such request; split the segment instead"
            ) from error
        except DataPlaneUnavailable as error:
            if may_be_under_way(error):
                raise DataPlaneTimeout(f"{error}; the reshape may be in progress") from error
            raise
        if answer.status in FAILED:
            raise _engine_error(purpose, answer)

    def check_logs(self, topic: str) -> LogCheck:
        """Return the epoch of the topic's present layout, and the ids, ascending, of its ACTIVE segments whose logs
        are missing. A lookup of each log distinguishes a missing log from a log that is not loaded. Changes nothing.

        Raises TopicNotFound; DataPlaneUnavailable if the broker does not return the topic's complete statistics, or
        if a lookup has no clear answer; and the other errors of the class.
        """
        stats = self._stats(topic)
        with reading(_statistics_of(topic), stats):
            epoch = int(stats["epoch"])
            active = {
                int(segment_id): str(segment["name"])
                for segment_id, segment in stats["segments"].items()
                if segment["state"] == SegmentState.ACTIVE.value
            }
        purpose = f"look up the logs of {topic}"
        asks = [Ask("GET", lookup_path(name), purpose, accept=GONE) for name in active.values()]
        answers = self._admin.demand_all(asks, self._admin.deadline())
        missing = [i for i, answer in zip(active, answers, strict=True) if _says_missing(purpose, answer)]
        return LogCheck(epoch, tuple(sorted(missing)))

    def auto_scaler(self, topic: str) -> Mapping[str, Any] | None:
        """Return the setting of the broker's auto-scaler that the topic itself has: the broker's document
        `autoScalePolicy`. None if the topic has no setting of its own. Raises TopicNotFound; DataPlaneUnavailable if
        the answer contains no layout; and the other errors of the class.
        """
        setting = self._metadata(topic).get("autoScalePolicy")
        return dict(setting) if isinstance(setting, Mapping) else None

    def set_auto_scaler(self, topic: str, setting: Mapping[str, Any] | None) -> None:
        """Replace the topic's own setting of the broker's auto-scaler with `setting`, a document as `auto_scaler`
        returns it. With None, the topic has no setting of its own afterwards. Raises TopicNotFound, and the other
        errors of the class.
        """
        path, purpose = f"{topic_path(topic)}/autoScalePolicy", f"set the auto-scaler of {topic}"
        verb = "DELETE" if setting is None else "POST"
        body = None if setting is None else dict(setting)
        if self._ask(Ask(verb, path, purpose, body=body, accept=GONE)).status in GONE:
            raise _no_topic(topic)

    def topic_subscriptions(self, topic: str) -> Mapping[str, str]:
        """Return the kind of each subscription of the topic, by the subscription's name: `STREAM`, `QUEUE` or
        `CHECKPOINT`. Empty if there are none. Brokers of version 5.0.0-M1 do not report the kind; the kind is then
        `STREAM`, for which the broker scales. Raises TopicNotFound; DataPlaneUnavailable if the broker failed; and
        the other errors of the class.
        """
        stats = self._stats(topic)
        with reading(_statistics_of(topic), stats):
            return {
                name: str(subscription.get("type") or "STREAM").upper()
                for name, subscription in (stats.get("subscriptions") or {}).items()
            }

    # Single logs.

    def backing_topic(self, topic: str, descriptor: str) -> str:
        """Return `segment://tenant/namespace/name/0000-7fff-12`, the broker's name for the log. Makes no
        call. Raises InvalidInput for another form of topic or descriptor.
        """
        return segment_log(topic, descriptor)

    def demand_namespace(self, topic: str) -> None:
        """Raise NotFound, with the next step, if the namespace of `topic` does not exist."""
        self._ask(namespace_of_topic(topic))

    def create_segment(
        self,
        backing_topic: str,
        subscriptions: Sequence[str],
        origin: LogOrigin | None = None,  # noqa: ARG002 - part of the protocol
    ) -> None:
        """Create the log of a segment that is in the broker's layout, with these subscriptions at the earliest
        position. An existing log does not change, and gets no subscriptions. `origin` is not stored. The broker
        creates logs together with the layout; this call creates a log that the broker omitted. Raises InvalidInput
        for an invalid name, and the other errors of the class.
        """
        purpose = f"create {backing_topic}"
        self._ask(Ask("PUT", segment_path(backing_topic), purpose, body=list(subscriptions), accept=EXISTS))

    def terminate_segment(self, backing_topic: str) -> str:
        """Raise Unsupported: the broker terminates segments together with the layout."""
        raise Unsupported(
            f"only the broker can terminate {backing_topic}; request a split or merge of the topic"
        )

    def delete_segment(self, backing_topic: str) -> None:
        """Raise Unsupported: the broker deletes segments when they are drained and old enough."""
        raise Unsupported(f"only the broker can delete {backing_topic}; it does so after its own retention")

    def segment_state(self, backing_topic: str) -> LogState:
        """Return the state of the log according to the layout: TERMINATED for a SEALED segment, OPEN for any other.
        MISSING if there is no such topic, or if the layout has no segment with the id in the log's name; the hash
        range in the name is not compared. The log itself is not requested, so the result may be OPEN for a missing
        log. Raises InvalidInput for an invalid name, and the errors of `read_layout`.
        """
        topic, segment_id = topic_of(backing_topic)
        try:
            segment = self.read_layout(topic).segments.get(segment_id)
        except TopicNotFound:
            return LogState.MISSING
        if segment is None:
            return LogState.MISSING
        return LogState.TERMINATED if segment.state is SegmentState.SEALED else LogState.OPEN

    def create_subscription(self, backing_topic: str, subscription: str) -> None:
        """Create a stream subscription of the whole topic to which the log belongs, not of the single log. An
        existing subscription is success. Raises SegmentNotFound if the topic is missing; InvalidInput for an invalid
        name; and the other errors of the class.
        """
        topic, _ = topic_of(backing_topic)
        path = f"{topic_path(topic)}/subscriptions/{subscription_path(subscription)}?type=STREAM"
        purpose = f"subscribe {subscription!r} to {topic}"
        if self._ask(Ask("PUT", path, purpose, accept=GONE | EXISTS)).status in GONE:
            raise SegmentNotFound(f"{purpose}: there is no such topic; detach it, or create it on the broker")

    def delete_subscription(self, backing_topic: str, subscription: str) -> None:
        """Delete the subscription of the whole topic to which the log belongs, not of the single log. A missing
        subscription or topic is success. Raises InvalidInput for an invalid name, and the other errors of the class.
        """
        topic, _ = topic_of(backing_topic)
        path = f"{topic_path(topic)}/subscriptions/{subscription_path(subscription)}"
        self._ask(Ask("DELETE", path, f"unsubscribe {subscription!r} from {topic}", accept=GONE))

    def list_segments(self, topic: str) -> Sequence[str]:
        """Return the names of the logs of all segments in the topic's present layout, sorted; missing logs are
        included. Empty if the topic is missing. Raises DataPlaneUnavailable if the answer contains no layout, and the
        other errors of `read_layout`.
        """
        try:
            segments = self.read_layout(topic).segments.values()
        except TopicNotFound:
            return []
        return sorted(
            segment_log(topic, f"{segment.hash_range}-{segment.segment_id}") for segment in segments
        )

    def list_subscriptions(self, backing_topic: str) -> Sequence[str]:
        """Return the names of the subscriptions of the topic to which the log belongs, sorted. Empty if the topic is
        missing. Raises InvalidInput for an invalid name of the log, and the other errors of `topic_subscriptions`.
        """
        try:
            return sorted(self.topic_subscriptions(topic_of(backing_topic)[0]))
        except TopicNotFound:
            return []

    def backlog(self, backing_topic: str, subscription: str) -> int | None:
        """Return the number of entries of this log that the subscription has not acknowledged. None if the log or the
        subscription is missing, or if no broker has the log loaded. Raises InvalidInput for an invalid name, and the
        other errors of the class.
        """
        path = f"{segment_path(backing_topic)}/subscription/{subscription_path(subscription)}/backlog"
        purpose = f"backlog of {subscription!r} on {backing_topic}"
        answer = self._ask(Ask("GET", path, purpose, accept=GONE))
        with reading(purpose, answer.document):
            return None if answer.status in GONE else int(answer.document)

    def seek(self, backing_topic: str, subscription: str, instant_ms: int) -> None:
        """Move the subscription's cursor on this log to the first message published at or after the instant
        (milliseconds since the Unix epoch). The cursors on other logs of the topic do not move. Raises
        SegmentNotFound or SubscriptionNotFound if there is no such cursor, and the other errors of the class.
        """
        cursor = f"{segment_path(backing_topic)}/subscription/{subscription_path(subscription)}"
        path = f"{cursor}/seek?timestamp={instant_ms}"
        self._ask(Ask("POST", path, f"seek {subscription!r} on {backing_topic}"))

    def skip_all(self, backing_topic: str, subscription: str) -> None:
        """Acknowledge for the subscription all messages that this log stores at the time of the call. The cursors on
        other logs of the topic do not move. Raises SegmentNotFound or SubscriptionNotFound if there is no such
        cursor, and the other errors of the class.
        """
        path = f"{segment_path(backing_topic)}/subscription/{subscription_path(subscription)}/skip-all"
        self._ask(Ask("POST", path, f"skip all on {backing_topic} for {subscription!r}"))

    # Load.

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """Return the counters of the logs, by name, from the metrics pages of all brokers. A log of a broker
        that did not respond is absent. Raises DataPlaneUnavailable if no broker responded.
        """
        return self._scraper.sample(backing_topics)

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        """Return the consumers that the broker counts for the logs' topics, by log. The broker counts consumers per
        topic: all of them are listed with the first requested log of the topic, as `Exclusive` consumers with
        generated names. The other logs of the topic, and the logs of a missing topic, have no consumers.

        If a topic's statistics cannot be read, the topic's logs are absent, and a warning is logged. If no topic's
        statistics can be read, raises the last error of `AdminCalls.ask`, or DataPlaneUnavailable. Raises
        InvalidInput for a name that is not of a segment's log. Empty for no logs.
        """
        topics: dict[str, list[str]] = {}
        for backing_topic in backing_topics:
            topics.setdefault(topic_of(backing_topic)[0], []).append(backing_topic)
        answers = self._admin.ask_all([_ask_stats(topic) for topic in topics], self._admin.deadline())
        consumers: dict[str, Sequence[ObservedConsumer]] = {}
        error: CleaveError | None = None
        for (topic, logs), answer in zip(topics.items(), answers, strict=True):
            try:
                observed = _stream_consumers(topic, _read_stats(topic, answer))
            except TopicNotFound:
                observed = []
            except CleaveError as failure:
                error = failure
                continue
            consumers |= {**dict.fromkeys(logs, ()), logs[0]: observed}
        if error is not None:
            if not consumers:
                raise error
            log.warning("consumers of some topics not listed", error=str(error))
        return consumers

    def close(self) -> None:
        """Close the connections."""
        self._scraper.close()
        self._admin.close()

    def _ask(self, ask: Ask) -> Answer:
        return self._admin.ask(ask, self._admin.deadline())

    def _metadata(self, topic: str) -> Mapping[str, Any]:
        """Request the broker's document about the topic's layout, and return it. The document has at least
        `segments`, and `autoScalePolicy` if the topic has a setting of its own. Raises TopicNotFound;
        DataPlaneUnavailable if the answer has no `segments`; and the other errors of `AdminCalls.ask`.
        """
        answer = self._ask(Ask("GET", topic_path(topic), f"read the layout of {topic}", accept=GONE))
        if answer.status in GONE:
            raise _no_topic(topic)
        if not isinstance(answer.document, Mapping) or "segments" not in answer.document:
            raise DataPlaneUnavailable(f"the broker's answer about {topic} contains no layout; try again")
        return answer.document

    def _stats(self, topic: str) -> Mapping[str, Any]:
        """Return the broker's statistics of the topic. Raises TopicNotFound; DataPlaneUnavailable if the
        broker failed.
        """
        return _read_stats(topic, self._ask(_ask_stats(topic)))


def _ask_stats(topic: str) -> Ask:
    """Return the request for the broker's statistics of the topic. A 404 and a 500 are results, which
    `_read_stats` interprets.
    """
    return Ask("GET", f"{topic_path(topic)}/stats", _statistics_of(topic), accept=GONE | FAILED)


def _statistics_of(topic: str) -> str:
    """Return the purpose of the request `_ask_stats`, with which messages begin."""
    return f"read the statistics of {topic}"


def _read_stats(topic: str, answer: Answer | CleaveError) -> Mapping[str, Any]:
    """Return the statistics of the topic in `answer`, a result of the request `_ask_stats`. The statistics contain
    `epoch`, `segments` (`name` and `state`, by id as text) and `subscriptions` (`type` and `consumerCount`, by name);
    whether they are complete is not checked.

    If `answer` is an error, raises this error. Raises TopicNotFound if the broker has no such topic, and
    DataPlaneUnavailable if the broker failed or the document is not an object. Sends nothing.
    """
    if isinstance(answer, CleaveError):
        raise answer
    if answer.status in GONE or "Scalable topic not found" in str(answer.document):
        raise _no_topic(topic)
    if answer.status in FAILED or not isinstance(answer.document, Mapping):
        raise DataPlaneUnavailable(
            f"{_statistics_of(topic)}: {_message(answer)}; check the broker's log if this continues"
        )
    return answer.document


def _stream_consumers(topic: str, stats: Mapping[str, Any]) -> list[ObservedConsumer]:
    """Return for each subscription in the topic's statistics, of any kind, as many consumers as its `consumerCount`:
    of type `Exclusive`, named by the subscription and a number from 0, without connection and broker. Raises
    DataPlaneUnavailable for statistics that cannot be read.
    """
    with reading(_statistics_of(topic), stats):
        return [
            ObservedConsumer(name, "Exclusive", f"{name} {number}", "", "")
            for name, subscription in (stats.get("subscriptions") or {}).items()
            for number in range(int(subscription.get("consumerCount") or 0))
        ]


def _engine_error(purpose: str, answer: Answer) -> Conflict | DataPlaneUnavailable:
    """Return, without raising it, the error for `answer`, a failure of the broker's engine: Conflict if the engine
    will always refuse the request, according to the exception's text in the answer (`_FOR_GOOD`);
    DataPlaneUnavailable for any other failure. `purpose` begins the message.
    """
    reason = _message(answer)
    if _FOR_GOOD.search(str(answer.document)):
        return Conflict(f"{purpose}: {reason}; read the layout again")
    return DataPlaneUnavailable(
        f"{purpose}: {reason}; check the broker's log if this continues", delay_seconds=1.0
    )


def _says_missing(purpose: str, answer: Answer) -> bool:
    """Return True if `answer`, the answer to a lookup of a log, is a 404 whose reason says that there is no such
    topic. False for any other status. Raises DataPlaneUnavailable, whose message begins with `purpose`, for a 404
    with another reason or without one.
    """
    if answer.status not in GONE:
        return False
    reason = str(answer.document.get("reason")) if isinstance(answer.document, Mapping) else ""
    if not reason.startswith("Topic not found"):
        raise DataPlaneUnavailable(f"{purpose}: answered 404 ({reason[:300]}); check the broker's log")
    return True


def _message(answer: Answer) -> str:
    """Return the text of the exception in the answer, without the stack trace; the status if the answer
    contains no such text.
    """
    reason = answer.document.get("reason", "") if isinstance(answer.document, Mapping) else ""
    match = _MESSAGE.search(str(reason))
    return match[1].strip() if match else f"answered {answer.status}"


def _no_topic(topic: str) -> TopicNotFound:
    return TopicNotFound(f"the broker has no scalable topic {topic}; create it there, or check the name")
