"""Log lines: one line of JSON or of text a fact, with the ids of what it is about.

Log lines carry names and numbers, never URLs with passwords. What libraries say by the standard library's logging, from a
warning on, has the same form. Nothing here decides anything, and nothing may fail because telemetry did. The library of log lines is
loaded with the first of them: a command that has nothing to say does not wait for it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TextIO, cast

from controller.domain.shown import printable

if TYPE_CHECKING:
    import structlog

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
