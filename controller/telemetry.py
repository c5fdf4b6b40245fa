"""Log lines in JSON or text, one line for each event, with the ids of the objects concerned.

Log lines contain names and numbers, never URLs with passwords. Warnings and errors that libraries write with the standard library's logging
get the same form. No caller fails because telemetry fails. structlog is loaded with the first line, so that a command without log lines does
not load it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TextIO, cast

from controller.domain.formatting import printable

if TYPE_CHECKING:
    import structlog

_asked: list[tuple[bool, int]] = []
"""Requested configuration while structlog is not loaded; empty once it is applied."""


def configure_logging(*, json_lines: bool = False, level: int = logging.INFO) -> None:
    """Send the program's log lines, and warnings and errors of libraries, to standard error: as JSON if `json_lines`, otherwise as text.
    The program's lines below `level` are dropped. With `json_lines`, Python's own warnings become log lines, too. Call once, at the start
    of a program.
    """
    _asked[:] = [(json_lines, level)]
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if not isinstance(handler, _OfLibraries)]
    root.addHandler(_OfLibraries(json_lines))
    logging.captureWarnings(json_lines)
    if "structlog" in sys.modules:
        _configure_as_asked()


def _configure_as_asked() -> None:
    """Apply the latest configuration of `configure_logging` to structlog, unless it is applied already."""
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
    """Return the processors that every line passes before it is written."""
    import structlog

    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]


def _renderer(json_lines: bool) -> structlog.typing.Processor:
    """Return the renderer of lines. It escapes values that are not printable, so that no value can forge a line or control a terminal."""
    import structlog

    if json_lines:
        as_json = structlog.processors.JSONRenderer(
            default=str
        )  # ASCII escapes everything that is not printable except DEL
        return lambda logger, name, line: str(as_json(logger, name, line)).replace("\x7f", "\\u007f")
    as_text = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    return lambda logger, name, line: as_text(logger, name, _printable(line))


_OF_SEVERAL_LINES = frozenset({"exception", "stack"})


def _printable(line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Return the line with characters escaped that are not printable, in texts and errors. Line ends are kept in tracebacks only."""
    return {
        name: printable(str(value), lines=name in _OF_SEVERAL_LINES)
        if isinstance(value, str | Exception)
        else value
        for name, value in line.items()
    }


class _OfLibraries(logging.StreamHandler[TextIO]):
    """Handler for lines of libraries that use the standard library's logging: uvicorn, SQLAlchemy, OpenTelemetry."""

    def __init__(self, json_lines: bool) -> None:
        logging.Handler.__init__(self)
        self._json_lines = json_lines

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error at the time of writing, because it may be replaced during the run."""
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        """Format a library's record like a line of Cleave."""
        if self.formatter is None:
            self.setFormatter(_of_libraries(self._json_lines))
        return super().format(record)


def _of_libraries(json_lines: bool) -> logging.Formatter:
    """Return a formatter that gives a library's record the form of a line of Cleave, with the library's logger name as `module`."""
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
    """Add these values to every line that this thread, or a copy of its context, writes within the block."""
    import structlog

    with structlog.contextvars.bound_contextvars(**ids):
        yield


def start_thread(name: str, run: Callable[..., None], *arguments: object) -> threading.Thread:
    """Start and return a daemon thread that runs `run(*arguments)`. Its log lines have the values that `bound` adds in the calling thread
    at this moment.
    """
    thread = threading.Thread(target=copy_context().run, args=(run, *arguments), name=name, daemon=True)
    thread.start()
    return thread


def _to_standard_error(*_: object) -> structlog.PrintLogger:
    """Return a logger that prints to standard error, as it is at the time of writing, because it may be replaced during the run."""
    import structlog

    return structlog.PrintLogger(sys.stderr)


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger bound to the module's name."""
    return cast("structlog.typing.FilteringBoundLogger", _Logger(name))


class _Logger:
    """A proxy that obtains the logger when a line is written.

    The proxy caches nothing between lines, because the configuration may change; structlog's own loggers read the configuration for each line
    as well.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        import structlog

        _configure_as_asked()
        return getattr(structlog.get_logger(module=self._name), attribute)
