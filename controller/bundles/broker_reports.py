"""Reports of brokers as files: topics, owned bundles, boundaries of namespaces, and the brokers' own figures.

Each kind has a directory, with one Parquet file for each collector and tick, by day as in the landing area of
samples. The brokers' file is written last and says how many topics each reported. A report counts only if all of it
is there. What the figures mean is decided in the aggregation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq

from controller.landing.area import LandingArea, RejectedFile, expire_days
from controller.landing.file_names import (
    LandedFile,
    day_directory,
    format_tick,
)
from controller.landing.location import Location
from controller.telemetry import get_logger

log = get_logger(__name__)

_WHERE = [("cluster", pa.string()), ("broker", pa.string()), ("instant_ms", pa.int64())]
_RATES = [(name, pa.float64()) for name in ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out")]
_SIGNALS = ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")

TOPIC_SCHEMA = pa.schema(
    [
        *_WHERE,
        ("namespace", pa.string()),
        ("topic", pa.string()),
        *_RATES,
        ("producer_count", pa.int64()),
        ("consumer_count", pa.int64()),
    ]
)
"""One topic as one broker reported it. `topic` is its complete name; rates are per second."""

OWNED_SCHEMA = pa.schema(
    [
        *_WHERE,
        ("namespace", pa.string()),
        ("lower_bound", pa.int64()),
        ("upper_bound", pa.int64()),
        ("cache_size_bytes", pa.int64()),
    ]
)
"""One bundle as its owner reported it."""

BOUNDARY_SCHEMA = pa.schema(
    [
        ("cluster", pa.string()),
        ("namespace", pa.string()),
        ("instant_ms", pa.int64()),
        ("boundaries", pa.list_(pa.int64())),
    ]
)
"""The boundaries of a namespace as they were last read."""

BROKER_SCHEMA = pa.schema(
    [
        *_WHERE,
        *((f"{signal}_{part}", pa.float64()) for signal in _SIGNALS for part in ("usage", "limit")),
        ("topic_count", pa.int64()),
        ("report", pa.string()),
        ("version", pa.string()),
    ]
)
"""One broker's own figures. `topic_count` is how many topics it reported in the same tick."""

REPORT_SCHEMAS: Mapping[str, pa.Schema] = {
    "topics": TOPIC_SCHEMA,
    "owned": OWNED_SCHEMA,
    "boundaries": BOUNDARY_SCHEMA,
    "brokers": BROKER_SCHEMA,
}
"""Every kind of report, in the order in which a tick is written."""

HOT_TOPICS = "hot_topics"
"""Directory of the topics that aggregation runs keep for the balancer."""


@dataclass(frozen=True, slots=True)
class LandedReports:
    """Readable files of a time span by kind (the keys of REPORT_SCHEMAS), and the files that cannot be read. `topics`: number of rows in
    the readable files of topics, so that a topic counts once in each tick.
    """

    files: Mapping[str, tuple[LandedFile, ...]]
    topics: int
    rejected: tuple[RejectedFile, ...]


class ReportArea:
    """Reports below `url`: `<kind>/day=YYYY-MM-DD/<tick>-<collector>.parquet`."""

    def __init__(self, url: str) -> None:
        """Create the area at a path or URL (see `Location`), without using the storage."""
        self.location = Location(url)
        self._areas = {
            kind: LandingArea(self.location, schema, kind) for kind, schema in REPORT_SCHEMAS.items()
        }

    def append(self, tick_ms: int, collector: str, tables: Mapping[str, pa.Table]) -> str:
        """Write a tick of one collector. Each kind is one file, which is written completely or not at all; the file of brokers is last,
        so after an error the files of other kinds may remain. Files of the same tick and collector are replaced. `tick_ms`: milliseconds
        since the Unix epoch. `tables` must have every kind of REPORT_SCHEMAS with its columns; other columns are left out.

        Return the path of the file of brokers. Raises InvalidInput for a collector name that cannot be part of a file name, OSError if
        the storage does not answer.
        """
        paths = [area.append(tick_ms, collector, tables[kind]) for kind, area in self._areas.items()]
        return paths[-1]

    def landed(self, from_ms: int, to_ms: int) -> LandedReports:
        """Return by kind the files with ticks in the span (both ends included, in milliseconds since the Unix epoch),
        after reading their footers. Only the days of the span are listed. A kind without files has an empty tuple.

        A file with ticks in the span goes to `rejected`, with the reason, if its schema is not that of the kind or
        the file is not Parquet. A file of these days whose name is not that of a report is rejected too. Nothing is
        moved. A file that vanished meanwhile is left out. Raises OSError if the storage does not answer, or cannot
        read a file.
        """
        files: dict[str, tuple[LandedFile, ...]] = {}
        rejected: list[RejectedFile] = []
        topics = 0
        for kind, area in self._areas.items():
            found, misnamed = area.files(from_ms, to_ms)
            examined = area.examine(found)
            for file in examined.unreadable:
                raise OSError(f"{file.path}: {file.reason}")
            files[kind] = examined.files
            rejected += (*misnamed, *examined.rejected)
            topics += examined.rows if kind == "topics" else 0
        return LandedReports(files, topics, tuple(rejected))

    def urls(self, reports: LandedReports) -> dict[str, list[str]]:
        """Return the URLs that Spark reads, by kind."""
        return {kind: self._areas[kind].urls(files) for kind, files in reports.files.items()}

    def quarantine(self, reports: LandedReports) -> list[str]:
        """Move the rejected files below the directory of quarantine. Return the former paths of the files; a file that another run
        has moved is left out. A file that cannot be moved stays, with a warning in the log.
        """
        return self._areas["brokers"].quarantine(reports.rejected)

    def heard(self, cluster: str, from_ms: int, to_ms: int, *, ticks: int) -> frozenset[str] | None:
        """Return the brokers that reported in at least one of the cluster's last `ticks` ticks of the span.

        None if the span (milliseconds since the Unix epoch, inclusive) has fewer ticks. Files of one instant are one tick, whichever
        collectors wrote them. A tick in which no broker of the cluster answered does not count. A file that cannot be read as Parquet
        is logged and left out. Raises OSError if the storage does not answer.
        """
        of_tick: defaultdict[int, list[str]] = defaultdict(list)
        for file in self._areas["brokers"].files(from_ms, to_ms)[0]:
            of_tick[file.first_tick_ms].append(file.path)
        reporting: set[str] = set()
        for tick_ms in sorted(of_tick, reverse=True):
            in_tick = set().union(*(self._brokers_in(path, cluster) for path in of_tick[tick_ms]))
            reporting |= in_tick
            ticks -= bool(in_tick)
            if ticks == 0:
                return frozenset(reporting)
        return None

    def _brokers_in(self, path: str, cluster: str) -> set[str]:
        """Return the cluster's brokers in a file. Empty for a file that is missing, or that cannot be read as Parquet, which is logged.
        Raises OSError if the storage does not answer.
        """
        try:
            with self.location.open(path) as stream:
                content = pa.BufferReader(stream.read())
        except FileNotFoundError:
            return set()
        try:
            table = pq.read_table(content, columns=["cluster", "broker"])
        except (OSError, pa.ArrowException) as error:  # OSError: damaged pages
            log.warning("report of brokers not readable", path=path, reason=str(error).splitlines()[0])
            return set()
        return {row["broker"] for row in table.to_pylist() if row["cluster"] == cluster}

    def publish_hot_topics(self, window_end_ms: int, topics: pa.Table) -> None:
        """Store the topics of the hot bundles of the window that ends at `window_end_ms` (milliseconds since the Unix epoch), and replace
        the topics that an earlier run stored for this window. Raises OSError if the storage does not answer.
        """
        path = f"{HOT_TOPICS}/{day_directory(window_end_ms)}/{format_tick(window_end_ms)}.parquet"
        with self.location.writing(path) as stream:
            pq.write_table(topics, stream)

    def hot_topics(self, window_end_ms: int) -> pa.Table | None:
        """Return the topics of the bundles that were hot in the window that ended at `window_end_ms` (milliseconds since the Unix epoch),
        as `publish_hot_topics` stored them. None if they were not stored, or were deleted. Raises OSError or pyarrow's ArrowException for a
        file that cannot be read.
        """
        path = f"{HOT_TOPICS}/{day_directory(window_end_ms)}/{format_tick(window_end_ms)}.parquet"
        try:
            stream = self.location.open(path)
        except FileNotFoundError:
            return None
        with stream:
            return pq.read_table(stream)

    def expire(self, before: date) -> list[str]:
        """Delete the directories of days (UTC) before `before`, of reports and of hot topics. Return their paths. Quarantined files are
        kept. Raises OSError if the storage does not answer.
        """
        of_reports = [path for area in self._areas.values() for path in area.expire(before)]
        return [*of_reports, *expire_days(self.location, before, HOT_TOPICS)]
