"""What producers and consumers write down of each message, for `history_check` to judge afterwards.

Each process appends lines to a file of its own while it runs. A killed process leaves what it had written. When each
event is written:

- `sent`: after the data plane acknowledged the message to the producer;
- `handed_out`: before the application gets the message;
- `begun`, `ended`: before and after the application's work on it;
- `failed`: after work on it that is to be done again, in place of `ended`;
- `acknowledged`: after the data plane took the acknowledgement;
- `seeking`, `sought`: before somebody asks for a seek of the subscription, and after it is done.

A line has these fields, with a tab between them; the last four are a consumer's alone, and of a seek there are but two::

    at_ns  event  producer  key  number  [consumer  segment  bucket  attachment]
    at_ns  event
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from controller.client.closing import ClosedByWith
from controller.domain.errors import InvalidInput

SUFFIX = ".history"
"""Of a file's name; a directory stands for the files in it, at any depth, whose names end so."""
_OF_SEEK, _OF_PRODUCER, _OF_CONSUMER = 2, 5, 9
_MOST_DIGITS = 18
"""What fits 64 bits."""
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_TAIL_BYTES = 65536

Message = tuple[str, str, int]
"""Producer, key and number. The number counts the messages of one producer for one key, upwards."""


class Event(StrEnum):
    """What happened to a message, or to the subscription."""

    SENT = "sent"
    HANDED_OUT = "handed_out"
    BEGUN = "begun"
    ENDED = "ended"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    SEEKING = "seeking"
    SOUGHT = "sought"


OF_SEEKS = (Event.SEEKING, Event.SOUGHT)
"""Of the whole subscription, and of no message."""


class Attachment(NamedTuple):
    """One period in which one consumer owns one bucket. No two periods of a consumer have the same three values."""

    segment: str | int
    bucket: str | int
    name: str | int
    """A number or a short text, not empty."""


class Readings:
    """Names the attachments of a consumer that knows its readings as objects, as `StreamConsumer` does."""

    def __init__(self) -> None:
        self._present: dict[tuple[int, str], tuple[object, Attachment]] = {}

    def attachment(self, segment_id: int, bucket: str, reading: object) -> Attachment:
        """Of this reading of the bucket. A new one has a name that no process of this machine gave before."""
        known = self._present.get((segment_id, bucket))
        if known is None or known[0] is not reading:
            known = reading, Attachment(segment_id, bucket, f"{time.monotonic_ns():x}")
            self._present[segment_id, bucket] = known
        return known[1]


class Record(NamedTuple):
    """One line. `at_ns` is the machine's monotonic clock, which is one for all its processes."""

    at_ns: int
    event: Event
    producer: str = ""
    """Empty, as is the key, for a seek."""
    key: str = ""
    number: int = 0
    consumer: str = ""
    """Empty, as are the next three, for what was sent and for a seek."""
    segment: str = ""
    bucket: str = ""
    attachment: str = ""


class _HistoryFile(ClosedByWith):
    """Appends lines to a file. When a call returns, its lines survive a kill of the process, though not of the machine."""

    def __init__(self, path: Path) -> None:
        """A line that a killed predecessor left unfinished is taken away, so that it spoils none of ours."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._descriptor, _whole_lines(self._descriptor))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _write(self, event: Event, messages: Iterable[Message], end: str) -> None:
        start = f"{time.monotonic_ns()}\t{event}\t"
        self._append(
            "".join(
                f"{start}{_field(producer)}\t{_field(key)}\t{number}{end}"
                for producer, key, number in messages
            )
        )

    def _append(self, lines: str) -> None:
        rest = memoryview(lines.encode(errors="backslashreplace"))
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


class ProducerHistory(_HistoryFile):
    """A producer's file."""

    def sent(self, messages: Iterable[Message]) -> None:
        """The data plane has acknowledged them."""
        self._write(Event.SENT, messages, "\n")


class ConsumerHistory(_HistoryFile):
    """A consumer's file."""

    def __init__(self, path: Path, consumer: str) -> None:
        super().__init__(path)
        self._consumer = _field(consumer)

    def handed_out(self, messages: Iterable[Message], attachment: Attachment) -> None:
        """The application gets them next, in this order."""
        self._note(Event.HANDED_OUT, messages, attachment)

    def begun(self, messages: Iterable[Message], attachment: Attachment) -> None:
        """The application's work on them begins."""
        self._note(Event.BEGUN, messages, attachment)

    def ended(self, messages: Iterable[Message], attachment: Attachment) -> None:
        """The application's work on them is over, well or not."""
        self._note(Event.ENDED, messages, attachment)

    def failed(self, messages: Iterable[Message], attachment: Attachment) -> None:
        """The application's work on them was in vain, and is to be done again before any successor's begins."""
        self._note(Event.FAILED, messages, attachment)

    def acknowledged(self, messages: Iterable[Message], attachment: Attachment) -> None:
        """The data plane has taken their acknowledgement."""
        self._note(Event.ACKNOWLEDGED, messages, attachment)

    def _note(self, event: Event, messages: Iterable[Message], attachment: Attachment) -> None:
        where = "\t".join(_field(str(one)) for one in attachment)
        self._write(event, messages, f"\t{self._consumer}\t{where}\n")


class SeekHistory(_HistoryFile):
    """The file of whoever asks for seeks of the subscription."""

    @contextmanager
    def seek(self) -> Iterator[None]:
        """Ask for it in here, and wait until it is done. An error leaves the seek open: it may still come about."""
        self._append(f"{time.monotonic_ns()}\t{Event.SEEKING}\n")
        yield
        self._append(f"{time.monotonic_ns()}\t{Event.SOUGHT}\n")


def _field(text: str) -> str:
    """The text without a tab or a line break."""
    return text.translate(_ESCAPES)


def _whole_lines(descriptor: int) -> int:
    """Where the last whole line ends, bytes from the file's beginning."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        begin = max(0, end - _TAIL_BYTES)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def history_files(paths: Iterable[Path]) -> list[Path]:
    """The files that these files and directories stand for, each once.

    Raises InvalidInput for what does not exist and for a directory without a history.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            if not path.exists():
                raise InvalidInput(f"history {path} does not exist; name a file or a directory")
            found[path] = None
            continue
        inside = sorted(path.rglob(f"*{SUFFIX}"))
        if not inside:
            raise InvalidInput(f"directory {path} holds no file *{SUFFIX}; name the files themselves")
        found.update(dict.fromkeys(inside))
    return list(found)


def read_history(*paths: Path) -> Iterator[Record]:
    """The records of these files, file by file. A last line that is not finished is left out.

    Raises InvalidInput for a file that cannot be read and for a line that is no record.
    """
    for path in paths:
        try:
            lines = path.open(encoding="utf-8", errors="backslashreplace", newline="\n")
        except OSError as error:
            raise InvalidInput(f"history {path}: {error.strerror}; name a file that can be read") from None
        with lines:
            for number, line in enumerate(lines, 1):
                if line.endswith("\n"):
                    yield _record(line[:-1].split("\t"), path, number)


_EVENTS = {event.value: event for event in Event}


def _record(fields: list[str], path: Path, line: int) -> Record:
    event = _EVENTS.get(fields[1]) if len(fields) in (_OF_SEEK, _OF_PRODUCER, _OF_CONSUMER) else None
    is_seek = event in OF_SEEKS
    at_ns, number = fields[0], "0" if is_seek else fields[4] if event and len(fields) > _OF_SEEK else ""
    if event is None or not (at_ns.isdecimal() and number.isdecimal()):
        raise _malformed(path, line, "give at_ns, event, producer, key, number, and of a consumer four more")
    if len(at_ns) > _MOST_DIGITS or len(number) > _MOST_DIGITS:
        raise _malformed(path, line, f"at_ns and number have {_MOST_DIGITS} digits at most")
    if is_seek:
        if len(fields) == _OF_SEEK:
            return Record(int(at_ns), event)
        raise _malformed(path, line, f"{event!s} is of the subscription: give at_ns and event")
    if event is Event.SENT:
        if len(fields) == _OF_PRODUCER:
            return Record(int(at_ns), event, fields[2], fields[3], int(number))
    elif len(fields) == _OF_CONSUMER and fields[5] and fields[8]:
        return Record(int(at_ns), event, fields[2], fields[3], int(number), *fields[5:])
    raise _malformed(
        path,
        line,
        f"{event!s} needs {'no consumer' if event is Event.SENT else 'a consumer and an attachment'}",
    )


def _malformed(path: Path, line: int, why: str) -> InvalidInput:
    return InvalidInput(f"history {path}, line {line} is no record: {why}")
