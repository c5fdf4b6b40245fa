"""Bundle collector: each tick reads the load and ownership of all brokers and writes them to files, without computation.

A broker without a complete answer counts as silent for the tick, and its bundles are neither cold nor gone. The boundaries of a
namespace are read if a report names a bundle that is not in the cached list. The boundaries of a few other namespaces are read in
turn. So the cost of a tick depends on the number of brokers, not on the number of namespaces. The namespaces of the brokers
themselves are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from controller import metrics, telemetry
from controller.bundles.broker_reports import REPORT_SCHEMAS, ReportArea
from controller.bundles.brokers.documents import SystemReport, TopicReport
from controller.bundles.brokers.reader import BundleReader
from controller.bundles.domain.load import RESOURCES
from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles
from controller.clock import Clock
from controller.dataplane.pulsar_load.brokers import Broker
from controller.domain.errors import CleaveError, DataPlaneUnavailable, InvalidInput
from controller.domain.pulsar_names import is_system_namespace
from controller.repeating import Repeating, Stoppable

log = telemetry.get_logger(__name__)

AT_ONCE = 16
"""Maximum number of concurrent calls to brokers."""
LOOKED_AT_AGAIN = 32
"""Number of namespaces per tick whose boundaries are read again although no report contradicts them."""

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class BundleTick:
    """Result of one tick. `brokers`: number of brokers that answered completely, with `topics` topics. `namespaces`: number of namespaces
    whose boundaries are known.
    """

    instant_ms: int
    brokers: int
    silent: tuple[str, ...]
    """Brokers without a complete answer; the name of the cluster if no broker returned the list of brokers."""
    topics: int
    namespaces: int
    path: str | None
    """Path of the file of brokers; None if no broker answered."""

    def document(self) -> dict[str, Any]:
        """Return the fields by name, as plain values."""
        return {**asdict(self), "silent": list(self.silent)}


@dataclass(frozen=True, slots=True)
class _Report:
    """The complete answer of one broker. `instant_ms`: time of the collector's clock before the reads."""

    broker: Broker
    instant_ms: int
    system: SystemReport
    topics: Sequence[TopicReport]
    owned: Sequence[NamespaceBundle]


@dataclass(slots=True)
class _BoundaryCache:
    """Boundaries as last read, by namespace, in the order in which they are read again."""

    read: dict[str, tuple[NamespaceBundles, int]] = field(default_factory=dict)

    def doubtful(self, reports: Sequence[_Report]) -> list[str]:
        """Return the namespaces whose boundaries must be read. First come, by name, the reported namespaces whose
        boundaries are not in the cache, or whose cached boundaries lack a reported bundle. Then follow up to
        LOOKED_AT_AGAIN other namespaces, from the front of the cache.

        Removes namespaces that no report names from the cache. The cache does not change otherwise.
        """
        reported: dict[str, set[str]] = {}
        for report in reports:
            for bundle in report.owned:
                reported.setdefault(bundle.namespace, set()).add(bundle.range_text)
            for topic in report.topics:
                reported.setdefault(topic.namespace, set()).add(topic.bundle)
        for namespace in self.read.keys() - reported.keys():
            del self.read[namespace]
        unknown_or_changed = [
            n for n, ranges in reported.items() if n not in self.read or not ranges <= self._ranges(n)
        ]
        others = [namespace for namespace in self.read if namespace not in unknown_or_changed]
        return sorted(unknown_or_changed) + others[:LOOKED_AT_AGAIN]

    def note(self, bundles: NamespaceBundles, instant_ms: int) -> None:
        """Store the boundaries of a namespace as read at `instant_ms`, as the newest of the cache."""
        self.read.pop(bundles.namespace, None)
        self.read[bundles.namespace] = (bundles, instant_ms)

    def _ranges(self, namespace: str) -> set[str]:
        return {bundle.range_text for bundle in self.read[namespace][0].bundles}


class BundleCollector(Stoppable):
    """Collects the reports of one cluster into an area."""

    def __init__(
        self,
        reader: BundleReader,
        area: ReportArea,
        *,
        name: str,
        interval_seconds: float,
        clock: Clock,
        known: Iterable[tuple[NamespaceBundles, int]] = (),
    ) -> None:
        """Create a collector of the cluster of `reader`, not started. The collector reads every `interval_seconds`
        and writes to `area`. `name` becomes a part of the file names; if `name` is unsuitable for that, the first
        tick that writes raises InvalidInput. Two collectors that write to one area must have different names and read
        different clusters.

        `known`: boundaries that another process has read, with the time of the read (milliseconds since the Unix
        epoch). The collector reads them again in this order. Raises InvalidInput for an interval of 0 s or less.
        """
        super().__init__()
        if interval_seconds <= 0:
            raise InvalidInput(
                f"the interval of a collector must be greater than 0 s, not {interval_seconds:g} s"
            )
        self._reader, self._area, self.name, self._clock = reader, area, name, clock
        self._interval_ms = round(interval_seconds * 1000)
        self._known = _BoundaryCache()
        for bundles, read_ms in known:
            self._known.note(bundles, read_ms)

    def run(self) -> None:
        """Tick at multiples of the interval until `stop`. A tick that fails is logged, and the loop continues."""
        Repeating(
            self._counted_tick,
            self._stopping,
            log.bind(cluster=self._reader.cluster),
            "bundle tick failed",
            retry_seconds=(0.0, 0.0),
            expected=(CleaveError, OSError),
            on_error=lambda _: self._stopping.wait(self._until_next_tick()),
        ).run(first_pause_seconds=self._until_next_tick())

    def _counted_tick(self) -> float:
        """Perform a tick. Return the seconds until the next tick. A tick that fails is counted in the metrics, and its error is raised."""
        try:
            self.tick()
        except Exception:
            metrics.BUNDLE_TICKS.labels("failed").inc()
            raise
        return self._until_next_tick()

    def _until_next_tick(self) -> float:
        """Return the seconds until the next multiple of the interval."""
        return (self._interval_ms - self._clock.now_ms() % self._interval_ms) / 1000

    def tick_once(self) -> BundleTick:
        """Perform a single tick, as `tick` does. Raises DataPlaneUnavailable if no broker answered completely, and
        the errors of `tick`.
        """
        tick = self.tick()
        if tick.path is None:
            raise DataPlaneUnavailable(f"no broker of the cluster answered ({', '.join(tick.silent)}); retry")
        return tick

    def tick(self) -> BundleTick:
        """Read all brokers once, AT_ONCE of them at the same time. Write the reports of the brokers that answered
        completely, with the known boundaries of namespaces. If no broker answered completely, write no file and
        return None as `path`.

        Sets the metrics of the collector, and logs silent brokers. Raises no error for a broker that does not answer.
        Raises OSError if the storage does not answer, and InvalidInput if the name of the collector cannot be part of
        a file name.
        """
        instant_ms = self._clock.now_ms()
        rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in REPORT_SCHEMAS}
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="bundle-collector") as pool:
            silent = self._read(pool, rows)
        path = None
        if rows["brokers"]:
            tables = {
                kind: pa.Table.from_pylist(rows[kind], schema) for kind, schema in REPORT_SCHEMAS.items()
            }
            path = self._area.append(instant_ms, self.name, tables)
        metrics.BUNDLE_TICKS.labels("read" if path else "nobody-answered").inc()
        metrics.BUNDLE_SILENT.set(len(silent))
        counts = {"brokers": len(rows["brokers"]), "topics": len(rows["topics"])}
        if silent:
            log.warning("brokers are silent", **counts, silent=silent)
        return BundleTick(
            instant_ms, silent=tuple(silent), namespaces=len(rows["boundaries"]), path=path, **counts
        )

    def _read(self, pool: ThreadPoolExecutor, rows: Mapping[str, list[dict[str, Any]]]) -> list[str]:
        """Read the brokers of the cluster and add their reports and the known boundaries to `rows`. Return the brokers that did not
        answer completely.

        If the list of brokers cannot be read, add nothing, log a warning, and return the name of the cluster. Boundaries that cannot be
        read now stay those of the last read.
        """
        cluster, cache = self._reader.cluster, self._known
        try:
            brokers = self._reader.brokers()
        except CleaveError as error:
            log.warning("cannot read the list of brokers", cluster=cluster, error=str(error))
            return [cluster]
        reports = _answers(pool, self._report, brokers)
        cuts = _answers(pool, self._reader.bundles, cache.doubtful(list(reports.values())))
        for bundles in cuts.values():
            cache.note(bundles, self._clock.now_ms())
        for report in reports.values():
            _add(rows, cluster, report)
        rows["boundaries"].extend(
            {
                "cluster": cluster,
                "namespace": namespace,
                "instant_ms": read_ms,
                "boundaries": list(bundles.boundaries),
            }
            for namespace, (bundles, read_ms) in sorted(cache.read.items())
        )
        return [broker.name for broker in brokers if broker not in reports]

    def _report(self, broker: Broker) -> _Report:
        """Read the topics, the bundles and the load of the broker, without topics and bundles of system namespaces. Raises an error if any
        of the three reads fails, so that an incomplete answer counts as none.
        """
        reader, instant_ms = self._reader, self._clock.now_ms()  # the clock of a broker may be wrong
        topics = [topic for topic in reader.topics(broker) if not is_system_namespace(topic.namespace)]
        owned = [bundle for bundle in reader.owned(broker) if not is_system_namespace(bundle.namespace)]
        return _Report(broker, instant_ms, reader.system(broker), topics, owned)


def _answers(
    pool: ThreadPoolExecutor, ask: Callable[[Question], Answer], many: Iterable[Question]
) -> dict[Question, Answer]:
    """Call `ask` with each of the questions `many` in the pool, wait for all, and return the answers by question. A question that failed,
    or whose answer is None, is absent; every error is logged, and none is raised.
    """

    def answer_of(question: Question) -> Answer | None:
        try:
            return ask(question)
        except CleaveError as error:
            log.warning("not read", what=str(question), error=str(error))
            return None
        except Exception:  # the answer of one broker must not prevent those of all others
            log.exception("not read", what=str(question))
            return None

    questions = list(many)
    answers = zip(questions, pool.map(answer_of, questions), strict=True)
    return {question: answer for question, answer in answers if answer is not None}


def _add(rows: Mapping[str, list[dict[str, Any]]], cluster: str, report: _Report) -> None:
    """Add the report of a broker to `rows`, by kind, as rows with the columns of REPORT_SCHEMAS: one for each topic, one for each owned
    bundle, and one for the broker. Each has the time `instant_ms` of the report.
    """
    where = {"cluster": cluster, "broker": report.broker.name, "instant_ms": report.instant_ms}
    rows["topics"].extend(
        where | {"namespace": topic.namespace, "topic": topic.topic} | asdict(topic.stats)
        for topic in report.topics
    )
    rows["owned"].extend(
        where
        | {
            "namespace": bundle.namespace,
            "lower_bound": bundle.lower,
            "upper_bound": bundle.upper,
            "cache_size_bytes": report.system.cache_size_bytes.get(str(bundle), 0),
        }
        for bundle in report.owned
    )
    usages = {
        f"{name}_{part}": float(getattr(getattr(report.system.resources, name), part))
        for name in RESOURCES
        for part in ("usage", "limit")
    }
    rows["brokers"].append(
        where
        | usages
        | {
            "topic_count": len(report.topics),
            "report": report.system.source,
            "version": report.system.version,
        }
    )
