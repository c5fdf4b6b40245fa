"""Logs and metrics: one line of JSON or of text a fact, with the ids of what it is about; one registry of counters.

Log lines carry names and numbers, never URLs with passwords. What libraries say by the standard library's logging, from a
warning on, has the same form. Metric names follow PIP-483 and PIP-486 where they
name one. Nothing here decides anything, and nothing may fail because telemetry did. The library of log lines is loaded
with the first of them: a command that has nothing to say does not wait for it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TextIO, cast

from prometheus_client import Counter, Gauge, Histogram

from controller.domain.shown import printable

if TYPE_CHECKING:
    import structlog

DECISIONS = Counter("cleave_decisions_total", "Acts decided, by lane and kind.", ["lane", "kind"])
REFUSALS = Counter("cleave_refusals_total", "Acts refused, by lane and reason.", ["lane", "reason"])
OPERATIONS = Counter(
    "cleave_operations_total", "Operations ended, by kind, origin and outcome.", ["kind", "origin", "outcome"]
)
OPERATION_SECONDS = Histogram(
    "cleave_operation_seconds",
    "Time from the intent of an operation to its end, where it was done.",
    ["kind"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
)
NOTIFICATION_LAG = Histogram(
    "cleave_notification_lag_seconds",
    "Time from the intent of an operation to when a worker or a pass first takes it up.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
)
CONSUMER_DECISION_SECONDS = Histogram(
    "cleave_consumer_decision_seconds",
    "Time from the notification that consumers came or left until it was decided what follows.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
)
LOST_RACES = Counter(
    "cleave_lost_races_total",
    "Compare-and-set attempts that found what they were made for changed by somebody else, by what was to be written; lock: that waited"
    " too long for a row, or crosswise.",
    ["what"],
)
LEASE_CHANGES = Counter("cleave_lease_changes_total", "Shards that this worker got or lost.", ["change"])
COLLECTOR_TICKS = Counter("cleave_collector_ticks_total", "Collector ticks, by outcome.", ["outcome"])
BROKER_PAGES = Counter("cleave_broker_pages_total", "Metrics pages of brokers, by outcome.", ["outcome"])
CONSUMER_ROUNDS = Counter(
    "cleave_consumer_rounds_total", "Rounds of looking for consumers, by outcome.", ["outcome"]
)
BUNDLE_TICKS = Counter("cleave_bundle_ticks_total", "Ticks of the bundle collector, by outcome.", ["outcome"])
BUNDLE_SILENT = Gauge("cleave_bundle_silent_brokers", "Brokers without a complete answer in the last tick.")
ASSET_EVENTS = Counter(
    "cleave_asset_events_total", "Layout changes told to Airflow, by outcome.", ["outcome"]
)
STALLED_READERS = Counter(
    "cleave_stalled_readers_total", "Readers of an entry bucket that ended since a broker stopped delivering."
)
MISPLACED_MESSAGES = Counter(
    "cleave_misplaced_messages_total", "Messages of another entry bucket that a reader got and held back."
)
SHORTENED_LOGS = Counter(
    "cleave_shortened_logs_total",
    "Readers of embedded logs that ended because the log lacked messages that they had read, after a fail-over or a restore.",
)
SESSIONS = Gauge(
    "cleave_connected_consumers", "Consumers that hold an assignment stream open at this worker."
)
SESSIONS_ENDED = Counter(
    "cleave_sessions_ended_total", "Sessions of consumers that ended, by reason.", ["reason"]
)
BUCKETS_OWNED = Gauge(
    "cleave_buckets_owned",
    "Entry buckets, or runs of them, with an owner, of the topics that this worker leads.",
)
BUCKETS_WITHHELD = Gauge(
    "cleave_buckets_withheld", "Of these, buckets whose owner is to let go of them and has not yet."
)
BUCKETS_AWAY = Gauge(
    "cleave_buckets_away", "Of these, buckets whose owner is not connected and may come back."
)
BUCKETS_OVERDUE = Gauge(
    "cleave_buckets_overdue",
    "Of these, buckets that are not let go of, or whose owner is away, for longer than the alarm's time.",
)
BUCKET_ALARMS = Counter("cleave_bucket_alarms_total", "Buckets that became overdue.")
SEGMENTS_SHARED = Gauge("cleave_shared_segments", "Segments that several consumers of a subscription read.")
SEGMENTS_DRAINING = Gauge("cleave_draining_segments", "Sealed segments that consumers read, by subscription.")
PRODUCER_BATCHES = Counter(
    "cleave_producer_batches_total", "Batches that this process stored, each of one entry bucket."
)
PRODUCER_MESSAGES = Counter("cleave_producer_messages_total", "Messages in those batches.")
BUCKETS_GRANTED = Counter(
    "cleave_buckets_granted_total", "Entry buckets, or runs of them, that got an owner, or another one."
)
KEY_SAMPLES = Counter(
    "cleave_key_samples_total", "Logs looked into for where their load lies, by outcome.", ["outcome"]
)
WAKEUPS = Counter("cleave_worker_wakeups_total", "What woke the worker.", ["sensor"])
IGNORED_NOTIFICATIONS = Counter(
    "cleave_ignored_notifications_total",
    "Notifications of PostgreSQL that Cleave does not send: their payload is no id. Any login may send them.",
    ["channel"],
)
LOOP_ERRORS = Counter(
    "cleave_loop_errors_total",
    "Rounds of a loop that ended with an unexpected error; the log has its traceback, and the loop goes on.",
    ["loop"],
)


_asked: list[tuple[bool, int]] = []
"""How log lines were asked for while the library was not loaded; empty once that is done."""


def configure_logging(*, json_lines: bool = False, level: int = logging.INFO) -> None:
    """Send the program's log lines to standard error; call once, in an entry point. Of libraries, warnings and errors."""
    _asked[:] = [(json_lines, level)]
    root = logging.getLogger()
    root.handlers = [one for one in root.handlers if not isinstance(one, _OfLibraries)]
    root.addHandler(_OfLibraries(json_lines))
    logging.captureWarnings(json_lines)
    if "structlog" in sys.modules:
        _configure_as_asked()


def _configure_as_asked() -> None:
    if not _asked:
        return
    import structlog

    json_lines, level = _asked.pop()
    structlog.configure(
        processors=[*_common(), _renderer(json_lines)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_to_standard_error,
    )


def _common() -> list[structlog.typing.Processor]:
    """What every line goes through before it is written."""
    import structlog

    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]


def _renderer(json_lines: bool) -> structlog.typing.Processor:
    """Return what makes the line of text. Each fact of the line is printable, so that no value forges a line or commands a terminal."""
    import structlog

    if json_lines:
        as_json = structlog.processors.JSONRenderer(
            default=str
        )  # ASCII: it escapes all that is not printable, but for DEL
        return lambda logger, name, line: str(as_json(logger, name, line)).replace("\x7f", "\\u007f")
    as_text = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    return lambda logger, name, line: as_text(logger, name, _printable(line))


_OF_SEVERAL_LINES = frozenset({"exception", "stack"})


def _printable(line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {
        name: printable(str(value), lines=name in _OF_SEVERAL_LINES)
        if isinstance(value, str | Exception)
        else value
        for name, value in line.items()
    }


class _OfLibraries(logging.StreamHandler[TextIO]):
    """Lines of libraries, which use the standard library's logging: uvicorn, SQLAlchemy, OpenTelemetry."""

    def __init__(self, json_lines: bool) -> None:
        logging.Handler.__init__(self)
        self._json_lines = json_lines

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error as it is when the line is written: it may have been replaced since."""
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        """In the form of our own lines."""
        if self.formatter is None:
            self.setFormatter(_of_libraries(self._json_lines))
        return super().format(record)


def _of_libraries(json_lines: bool) -> logging.Formatter:
    import structlog

    def module(_logger: object, _name: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        line["module"] = line["_record"].name
        return line

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[module, *_common()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(json_lines)],
    )


@contextmanager
def bound(**ids: object) -> Iterator[None]:
    """These are on every line that is written meanwhile by this thread, or in a copy of its context."""
    import structlog

    with structlog.contextvars.bound_contextvars(**ids):
        yield


def start_thread(name: str, run: Callable[..., None], *arguments: object) -> threading.Thread:
    """A thread at work that the process does not wait for, with what is bound here on its log lines."""
    thread = threading.Thread(target=copy_context().run, args=(run, *arguments), name=name, daemon=True)
    thread.start()
    return thread


def _to_standard_error(*_: object) -> structlog.PrintLogger:
    """Standard error as it is when the line is written: it may have been replaced since."""
    import structlog

    return structlog.PrintLogger(sys.stderr)


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger bound to the module's name."""
    return cast("structlog.typing.FilteringBoundLogger", _Logger(name))


class _Logger:
    """Stands for a logger until a line is written.

    Nothing is kept from line to line: the settings may change in between, and structlog's own loggers look them up anew
    at each line as well.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        import structlog

        _configure_as_asked()
        return getattr(structlog.get_logger(module=self._name), attribute)
