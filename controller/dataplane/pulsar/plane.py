"""Performs the controller's actions on topics of a Pulsar cluster, through its admin REST API.

Every call checks the present state, so a repeated call is harmless: creating what exists and deleting what is
gone succeed. `topic_requests` builds the requests and reads the responses; `log_client` produces and
consumes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from controller import telemetry
from controller.dataplane.base import Counters, CreatedLog, LogReport, LogState, Successor
from controller.dataplane.load_settings import LoadSettings
from controller.dataplane.optional_abilities import KeySample, TopicDescription
from controller.dataplane.pulsar import set_wise, successor_creation, topic_requests
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
from controller.dataplane.pulsar.adoptable_topics import describe_topic
from controller.dataplane.pulsar.barrier import MOST_ENTRIES
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.gates import Gates
from controller.dataplane.pulsar.names import (
    segment_topic,
    subscription_path,
    topic_path,
)
from controller.dataplane.pulsar.requirements import demand_gates
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.dataplane.pulsar_load.consumers import ConsumerReader
from controller.dataplane.pulsar_load.scraper import SAMPLE_LIMIT, CounterScraper
from controller.domain.errors import (
    CleaveError,
    NotFound,
    SegmentNotFound,
    Unsupported,
)
from controller.domain.evaluation_input import Capabilities
from controller.domain.gate_states import FenceState, GateState
from controller.domain.log_origin import LogOrigin
from controller.domain.observed_consumers import ObservedConsumer
from controller.domain.pulsar_names import namespace_of
from controller.forks import OneProcess

if TYPE_CHECKING:
    from controller.dataplane.pulsar.key_samples import KeySamples

log = telemetry.get_logger(__name__)


class PulsarDataPlane(OneProcess):
    """Topics of the cluster that `access` names. Safe to share between threads. Connects at the first
    call.

    Calls raise InvalidInput for an invalid name, and the errors of `AdminCalls.ask`: DataPlaneUnavailable,
    DataPlaneTimeout, and NotFound or another Terminal error for a lasting refusal.
    """

    name = "pulsar"
    capabilities = Capabilities(midpoint_only=False, max_children=64, recut=True, shared_buckets=True)
    shares_journal_server = False
    """The journal is on its own disk before a topic is terminated."""
    shares_calls = False
    """An unresponsive topic would delay the fences of others until the call times out."""
    sample_limit = SAMPLE_LIMIT
    """Largest number of logs that one call of `sample` should name: their number decides where the counters are
    read.
    """

    def __init__(
        self,
        access: PulsarAccess,
        *,
        call_timeout_seconds: float = 5.0,
        load: LoadSettings = LoadSettings(),  # noqa: B008 - frozen
    ) -> None:
        """Create the data plane without connecting. `load` are the settings for reading load. Raises
        InvalidInput for an invalid `broker_url` in `load`.
        """
        self._admin = AdminCalls(access, call_timeout_seconds=call_timeout_seconds)
        self._cursors = Cursors(self._admin)
        session = self._admin.session
        brokers = BrokerList(session, access.admin_urls, cluster=load.cluster, broker_url=load.broker_url)
        self._scraper = CounterScraper(session, brokers, deadline_seconds=load.page_seconds)
        self._pages_from = load.pages_from
        self._consumers = ConsumerReader(session, brokers, deadline_seconds=call_timeout_seconds)
        self._gates = Gates(access, self._admin, self._cursors)
        self._access, self._lock = access, threading.Lock()
        self._key_samples: KeySamples | None = None

    @property
    def call_timeout_seconds(self) -> float:
        """Longest duration in seconds of one call except a `sample` of many logs, its requests and redirects
        together.
        """
        return self._admin.call_timeout_seconds

    def backing_topic(self, topic: str, descriptor: str) -> str:
        """Return `persistent://tenant/namespace/name-segment-0000-7fff-12`. Raises InvalidInput if Pulsar
        allows no such name.
        """
        return segment_topic(topic, descriptor)

    def demand_namespace(self, topic: str) -> None:
        """Raise NotFound, with the next step, if the namespace of `topic` does not exist."""
        self._admin.ask(topic_requests.namespace_of_topic(topic), self._admin.deadline())

    def create_segment(
        self, backing_topic: str, subscriptions: Sequence[str], origin: LogOrigin | None = None
    ) -> None:
        """Create the topic, without partitions and with `origin` in its properties (None: no origin), and then its
        missing subscriptions at the earliest position, in parallel. An existing topic keeps its origin, and an
        existing subscription its position.

        Raises NotFound for a missing namespace, InvalidInput for an invalid name, and the other errors of the class.
        After an error, the topic may exist without some of the subscriptions; a repeated call adds them.
        """
        deadline = self._admin.deadline()
        self._admin.ask(topic_requests.create_topic(backing_topic, origin), deadline)
        cursors = [topic_requests.create_cursor(backing_topic, name) for name in sorted({*subscriptions})]
        self._admin.demand_all(cursors, deadline)

    def terminate_segment(self, backing_topic: str) -> str:
        """Make the topic refuse appends permanently, and return the position of its last entry as `ledger:entry`; the
        entry is -1 in an empty topic. If the topic is already terminated, the result is the same. Raises
        SegmentNotFound, DataPlaneUnavailable for an incomplete response, and the other errors of the class.
        """
        ask = topic_requests.terminate(backing_topic)
        return topic_requests.position(ask, self._admin.ask(ask, self._admin.deadline()))

    def delete_segment(self, backing_topic: str) -> None:
        """Delete the topic with its subscriptions and messages, even if clients are connected. A missing topic is
        success. Raises the errors of the class.
        """
        purpose = f"delete {backing_topic}"
        ask = Ask("DELETE", f"{topic_path(backing_topic)}?force=true", purpose, accept=topic_requests.GONE)
        self._admin.ask(ask, self._admin.deadline())

    def segment_state(self, backing_topic: str) -> LogState:
        """Return the present state of the topic; MISSING if there is no such topic. Raises DataPlaneUnavailable for
        an incomplete response, and the other errors of the class.
        """
        ask = topic_requests.internal_stats(backing_topic)
        return topic_requests.state(ask, self._admin.ask(ask, self._admin.deadline()))

    def create_subscription(self, backing_topic: str, subscription: str) -> None:
        """Create the subscription at the earliest position; an existing subscription keeps its position. If the topic
        begins with a barrier, the subscription then skips the barrier, unless the subscription's gate is closed.

        Raises SegmentNotFound for a missing topic, which is not created; DataPlaneTimeout, after which the
        subscription may exist without having skipped the barrier; and the other errors of the class. A repeated call
        completes the work.
        """
        deadline = self._admin.deadline()
        purpose = f"subscribe {subscription!r} to {backing_topic}"
        existing = self._subscriptions(backing_topic, purpose, deadline)
        if existing is None:
            raise SegmentNotFound(
                f"no topic {backing_topic} to subscribe {subscription!r} to; look up the layout again"
            )
        if subscription not in existing:
            is_empty = self._cursors.is_closed_and_empty(backing_topic, deadline)
            self._admin.ask(
                topic_requests.create_cursor(backing_topic, subscription, is_closed_and_empty=is_empty),
                deadline,
            )
        # An earlier call may have created the subscription and then failed to skip the barrier.
        self._gates.skip_barrier(backing_topic, subscription, deadline)

    def delete_subscription(self, backing_topic: str, subscription: str) -> None:
        """Delete the subscription, even if it has consumers, which are disconnected. A missing subscription or topic
        is success. Raises the errors of the class.
        """
        purpose = f"unsubscribe {subscription!r} from {backing_topic}"
        path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}?force=true"
        self._admin.ask(Ask("DELETE", path, purpose, accept=topic_requests.GONE), self._admin.deadline())

    def list_segments(self, topic: str) -> Sequence[str]:
        """Return the topics of the namespace whose names are those of segments of `topic`, sorted. Empty if
        the namespace is missing.
        """
        return self.list_segments_of([topic])[topic]

    def list_subscriptions(self, backing_topic: str) -> Sequence[str]:
        """Return the names of the topic's durable subscriptions, sorted, whichever program created them, without the
        broker's own. Empty if the topic is missing. Raises DataPlaneUnavailable for an incomplete response, and the
        other errors of the class.
        """
        purpose = f"list subscriptions of {backing_topic}"
        return sorted(self._subscriptions(backing_topic, purpose, self._admin.deadline()) or ())

    def backlog(self, backing_topic: str, subscription: str) -> int | None:
        """Return the number of messages that the subscription has not acknowledged. None if the topic or the durable
        subscription is missing; a non-durable subscription and the broker's own subscriptions count as missing.

        A batch counts whole until all of it is acknowledged. The broker counts messages in at most
        `subscriptionBacklogScanMaxEntries` entries (10,000), or in fewer if it ends its count early; the mean of the
        counted entries then stands for the rest. The result is the estimate of `Cursors.unread_messages`, from fewer
        entries, if the broker fails to count or ends its count before the first entry. Brokers of version 4.2.4 fail
        for every terminated topic that they have reloaded, for instance after a restart.

        Raises DataPlaneUnavailable for an incomplete response, and the other errors of the class.
        """
        deadline, purpose = self._admin.deadline(), f"backlog of {subscription!r} on {backing_topic}"
        statistics = self._subscriptions(backing_topic, purpose, deadline, topic_requests.PRECISE_BACKLOG)
        cursor = (statistics or {}).get(subscription)
        if cursor is None:
            return None
        entries = topic_requests.unread_entries(purpose, cursor)
        if entries == 0:
            return 0
        path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}/analyzeBacklog"
        analysis = self._admin.ask(
            Ask("POST", path, purpose, accept=topic_requests.GONE | topic_requests.FAILED), deadline
        )
        if analysis.status in topic_requests.GONE:
            return None
        if analysis.status not in topic_requests.FAILED:
            with topic_requests.reading(purpose, analysis.document):
                counted_entries, messages = (
                    int(analysis.document["entries"]),
                    int(analysis.document["messages"]),
                )
            if not analysis.document.get("aborted"):
                return messages
            if counted_entries > 0:
                return messages + round((entries - counted_entries) * messages / counted_entries)
        try:
            return self._cursors.unread_messages(backing_topic, subscription, entries, deadline)
        except NotFound:
            return None

    def seek(self, backing_topic: str, subscription: str, instant_ms: int) -> None:
        """Move the subscription's cursor to the first entry that was published at or after the instant (milliseconds
        since the Unix epoch; a negative instant counts as 0), by the producers' clocks, and disconnect the
        subscription's consumers. If no entry is that late, the cursor moves to the end. A terminated topic without
        entries is not changed. A cursor that stands before a barrier then skips the barrier, unless the subscription's
        gate is closed. Raises SegmentNotFound; SubscriptionNotFound; DataPlaneTimeout, after which the cursor may have
        moved without having skipped the barrier; and the other errors of the class.
        """
        deadline = self._admin.deadline()
        self._cursors.move(backing_topic, subscription, max(0, instant_ms), deadline)
        self._gates.skip_barrier(backing_topic, subscription, deadline)

    def skip_all(self, backing_topic: str, subscription: str) -> None:
        """Acknowledge for the subscription all messages that are stored at the time of the call, and disconnect the
        subscription's consumers, which the broker's own `skip_all` does not. Raises SegmentNotFound;
        SubscriptionNotFound; and the other errors of the class. After an error the messages may be acknowledged
        although consumers are still connected.
        """
        deadline = self._admin.deadline()
        path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}/skip_all"
        self._admin.ask(Ask("POST", path, f"skip all on {backing_topic} for {subscription!r}"), deadline)
        self._cursors.cut_off(backing_topic, subscription, deadline)

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """Return the counters of the topics, by name. The counters come from each topic's statistics, or for many
        topics (`LoadSettings.pages_from`) from the brokers' metrics pages. A topic is absent from the result if it is
        missing, its broker did not respond, or its statistics cannot be read.

        From statistics, raises the first error if no topic's request was answered, and DataPlaneUnavailable if topics
        exist but none of their responses can be read. From metrics pages, raises DataPlaneUnavailable if no broker
        responded; this call may take longer than `call_timeout_seconds`.
        """
        # The pages contain the other topics of the brokers too, and are worth reading only for many logs.
        if len(backing_topics) >= self._pages_from:
            return self._scraper.sample(backing_topics)
        requests = [topic_requests.stats(name, f"sample {name}") for name in backing_topics]
        results = self._admin.ask_all(requests, self._admin.deadline())
        errors = [result for result in results if isinstance(result, CleaveError)]
        if errors and len(errors) == len(results):
            raise errors[0]
        answers = {
            name: answer
            for name, answer in zip(backing_topics, results, strict=True)
            if isinstance(answer, Answer) and answer.status not in topic_requests.GONE
        }
        counters_by_name = {name: _counters(name, answer) for name, answer in answers.items()}
        if counters_by_name and not any(counters_by_name.values()):
            name = next(iter(answers))
            raise topic_requests.unreadable(f"sample {name}", answers[name].document)
        return {name: counters for name, counters in counters_by_name.items() if counters is not None}

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        """Return the consumers attached to each log, by the log's name. Consumers of non-durable
        subscriptions, and of subscriptions whose names begin with `__`, do not count. A missing log has an
        empty sequence; a log that did not respond is absent. Raises Retryable if no log responded.
        """
        return self._consumers.consumers(backing_topics)

    def sample_keys(self, backing_topic: str, *, most: int) -> KeySample:
        """Return the segment hashes of the keys of the latest messages, at most `most` (at least 1) messages, oldest
        first, and the number of these messages without a hash. The sample is smaller if messages are large or the
        call runs out of time. The sample of a topic without entries is empty. Needs the brokers' binary address, the
        client library, and the right to consume.

        Raises Unsupported without the address or the library; SegmentNotFound; SegmentTerminated for a terminated
        topic, whose keys belong to its successors; and the other errors of the class.
        """
        with self._lock:
            if self._key_samples is None:
                self._key_samples = _key_samples(self._access, self._admin)
        return self._key_samples.sample(backing_topic, most)

    def describe_topic(self, name: str) -> TopicDescription:
        """Return the description of a topic that applications created. Raises TopicNotFound, and InvalidInput
        for a topic that is not persistent, is a single partition, or has too many partitions.
        """
        return describe_topic(self._admin, name)

    def create_successors(self, successors: Sequence[Successor]) -> Mapping[str, CreatedLog]:
        """Create each topic with its own subscriptions and those of its predecessors, except the subscriptions in
        `excepted`, at the earliest position. An existing topic keeps its origin and its positions, and gets the
        subscriptions that it lacks. A missing predecessor contributes no subscription.

        Return the state, the subscriptions that the topic was to have (sorted) and the origin of each topic after the
        call, by name. Raises NotFound for a missing namespace, and the other errors of the class. The work done
        before an error remains, and a repeated call does the rest.
        """
        return successor_creation.create_successors(self._admin, successors)

    def terminate_segments(self, backing_topics: Sequence[str]) -> Mapping[str, str]:
        """Make the existing topics refuse appends permanently, in parallel, and return the position of the last entry
        of each, by name, as `ledger:entry` (the entry is -1 in an empty topic). A missing topic is absent from the
        result. For a topic that is already terminated, the result is the same. Raises the errors of the class; other
        topics may then be terminated.
        """
        return set_wise.terminate(self._admin, backing_topics)

    def subscriptions_of(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the durable subscriptions of each topic, sorted, by the topic's name. A topic that is
        missing or has none is absent.
        """
        return set_wise.subscriptions(self._admin, backing_topics)

    def list_segments_of(self, topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return for each topic the topics of its namespace whose names are those of its segments, sorted. A
        missing namespace has none.
        """
        return set_wise.segments(self._admin, topics)

    def describe_logs(self, backing_topics: Sequence[str]) -> Mapping[str, LogReport]:
        """Return a report on each topic, by name, MISSING topics included, with three requests per topic, in
        parallel. A topic whose responses are missing or incomplete is absent. Backlogs are in entries.

        A topic without a trace of a message may have carried messages that were acknowledged and removed
        after their retention before the broker loaded the topic.
        """
        return set_wise.describe(self._admin, backing_topics)

    def demand_gates(self, topic: str) -> None:
        """Raise Unsupported if a demand of `requirements.GATE_DEMANDS` is not met, or no binary address is set.
        Raises NotFound if the namespace does not exist.
        """
        demand_gates(self._access, self._admin, namespace_of(segment_topic(topic, "")))

    def close_gate(self, backing_topic: str, subscription: str) -> None:
        """Stop the delivery of the topic's messages to the subscription until `open_gate`. A missing subscription is
        created. The subscription's position moves back before the topic's first message. If consumers of the
        subscription are connected, all clients of the topic are disconnected and reconnect.

        Raises SegmentNotFound; DataGone if the topic begins with a message of an application; Unsupported for brokers
        without topic policies, and if the client library or the binary address is missing; DataPlaneTimeout, after
        which a repeated call completes the work; and the other errors of the class. `demand_gates` checks further
        conditions beforehand.
        """
        self._gates.close_gate(backing_topic, subscription, self._admin.deadline())

    def open_gate(self, backing_topic: str, subscription: str) -> None:
        """Start the delivery of the topic's messages to the subscription, and reload the topic: all its clients are
        disconnected and reconnect. A missing subscription or topic is success; an open gate is opened again, with
        another reload. A waiting consumer receives the first message within a second, the interval at which brokers
        check rates. Raises DataPlaneTimeout, after which a repeated call completes the work, and the other errors of
        the class.
        """
        self._gates.open_gate(backing_topic, subscription, self._admin.deadline())

    def gate_state(self, backing_topic: str, subscription: str) -> GateState | None:
        """Return the state of the gate; None if there is no such log or subscription."""
        return self._gates.state(backing_topic, subscription, self._admin.deadline())

    def skip_barrier(self, backing_topic: str, subscription: str) -> None:
        """Acknowledge the barrier for the subscription, if the topic begins with a barrier and the subscription's gate is
        not closed. No effect if the subscription is missing or is behind the barrier. Raises SegmentNotFound;
        DataPlaneTimeout, after which a repeated call completes the work; and the other errors of the class.
        """
        self._gates.skip_barrier(backing_topic, subscription, self._admin.deadline())

    def persist_cursor_at_end(self, backing_topic: str, subscription: str) -> bool:
        """If the subscription has acknowledged all messages of a terminated topic, make the broker store its cursor, and
        return True. The subscription's consumers are disconnected; they reconnect and read nothing.

        Return False if messages are unacknowledged or more may be appended. Return False also if messages became
        unacknowledged again meanwhile. If at most `MOST_ENTRIES` entries are unacknowledged, a barrier among them is
        skipped first, unless the gate is closed: a cursor that an application has moved back, or created again, stands
        before the barrier. Raises SegmentNotFound; SubscriptionNotFound; and the other errors of the class.
        """
        deadline = self._admin.deadline()
        unread = self._cursors.unread_entries(backing_topic, subscription, deadline)
        if unread is None or unread > MOST_ENTRIES:
            return False
        if unread:
            self._gates.skip_barrier(backing_topic, subscription, deadline)
        return self._cursors.persist_end(backing_topic, subscription, deadline)

    def probe_fence(self, backing_topic: str) -> FenceState:
        """Return whether clients can learn that a topic has ended, and make the broker reload a topic that stays
        fenced. TERMINATED: clients can learn it. FENCED: they could not, and the topic was reloaded. OPEN: the topic
        is not terminated, or accepts a producer. MISSING: there is no such topic.

        Needs the rights to produce and to consume, and an administrator's rights for a reload. Raises Unsupported if the client
        library or the binary address is missing, and the errors of the class.
        """
        return self._gates.probe_fence(backing_topic, self._admin.deadline())

    def close(self) -> None:
        """Close the connections, all of them even if closing one raises an error."""
        with ExitStack() as closing:  # closes all of them even if one raises
            closing.callback(self._admin.close)
            closing.callback(self._consumers.close)
            closing.callback(self._scraper.close)
            if self._key_samples is not None:
                closing.callback(self._key_samples.close)
            closing.callback(self._gates.close)

    def _subscriptions(
        self, backing_topic: str, purpose: str, deadline: Deadline, query: str = ""
    ) -> Mapping[str, Mapping[str, Any]] | None:
        """Request the topic's statistics, and return the statistics of each durable subscription, by name, without
        the broker's own subscriptions. None if the topic is missing. `purpose` begins the messages of errors, and
        `query` is appended to the address. Raises DataPlaneUnavailable for an incomplete response, DataPlaneTimeout
        at the deadline, and the other errors of `AdminCalls.ask`.
        """
        ask = topic_requests.stats(backing_topic, purpose, query)
        return topic_requests.subscriptions(ask, self._admin.ask(ask, deadline))


def _counters(name: str, answer: Answer) -> Counters | None:
    """Return the counters of the log `name`, read from `answer`, the response with its ordinary statistics. If a
    counter is missing or not a number, log a warning and return None. `producers` is None if the statistics do not
    list producers. Raises nothing.
    """
    stats = answer.document
    try:
        publishers = stats.get("publishers")
        return Counters(
            name,
            source=str(stats.get("ownerBroker") or answer.broker),
            instant_ms=answer.read_at_ms,
            msg_in=int(stats["msgInCounter"]),
            byte_in=int(stats["bytesInCounter"]),
            msg_out=int(stats["msgOutCounter"]),
            byte_out=int(stats["bytesOutCounter"]),
            producers=len(publishers) if isinstance(publishers, list) else None,
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        log.warning("cannot read statistics", backing_topic=name, error=str(error))
        return None


def _key_samples(access: PulsarAccess, admin: AdminCalls) -> KeySamples:
    """Return an object that samples keys. Only this function imports the client library. Raises Unsupported
    if the library is not installed, or `access` has no binary address.
    """
    try:
        from controller.dataplane.pulsar.key_samples import KeySamples
    except ImportError as error:
        raise Unsupported(
            f"the Pulsar client library is missing ({error}); run pip install pulsar-client"
        ) from error
    return KeySamples(access, admin)
