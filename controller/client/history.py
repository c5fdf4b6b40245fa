"""Records what producers and consumers do with each message, for `history_check` to judge afterwards.

Each process appends lines to its own file while it runs. A killed process leaves the lines that it had
written. Each event is written at this time:

- `sent`: after the data plane acknowledged the message to the producer;
- `delivered`: before the application gets the message;
- `begun`, `ended`: before and after the application processes the message;
- `failed`: in place of `ended`, after processing that must be repeated;
- `acknowledged`: after the data plane accepted the acknowledgement;
- `seeking`, `sought`: before a seek of the subscription is requested, and after the seek is done.

A line has these fields, separated by tabs. Only a consumer's lines have the last four, and the lines of a
seek have only two::

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

from controller.client.closing import ClosesOnExit
from controller.domain.errors import InvalidInput

SUFFIX = ".history"
"""Suffix of the name of a history file. A directory stands for all files with this suffix in it, at any
depth.
"""
_OF_SEEK, _OF_PRODUCER, _OF_CONSUMER = 2, 5, 9
_MOST_DIGITS = 18
"""Largest number of decimal digits that fits 64 bits."""
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_TAIL_BYTES = 65536

Message = tuple[str, str, int]
"""Producer, key and number. A producer numbers its messages of one key upwards."""


class Event(StrEnum):
    """An event of a message, or of the subscription."""

    SENT = "sent"
    DELIVERED = "delivered"
    BEGUN = "begun"
    ENDED = "ended"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    SEEKING = "seeking"
    SOUGHT = "sought"


OF_SEEKS = (Event.SEEKING, Event.SOUGHT)
"""Events of the whole subscription, without a message."""


class Attachment(NamedTuple):
    """One period in which one consumer owns one bucket. No two periods of a consumer have the same three
    values.
    """

    segment: str | int
    bucket: str | int
    name: str | int
    """A number or a short text, not empty."""


class Readings:
    """Names the attachments of a consumer that represents its readings by objects, as
    `StreamConsumer` does.
    """

    def __init__(self) -> None:
        self._present: dict[tuple[int, str], tuple[object, Attachment]] = {}

    def attachment(self, segment_id: int, bucket: str, reading: object) -> Attachment:
        """Return the attachment under which the history records the messages of a bucket. `reading` is the object by
        which the consumer identifies its ownership of the bucket. Calls with the same object return the same
        attachment, until another object is given for the bucket; then another attachment is created.

        The name of an attachment is the machine's monotonic clock at its creation, so that no other process of this
        machine has used the name since the machine was started.
        """
        present = self._present.get((segment_id, bucket))
        if present is None or present[0] is not reading:
            present = reading, Attachment(segment_id, bucket, f"{time.monotonic_ns():x}")
            self._present[segment_id, bucket] = present
        return present[1]


class Record(NamedTuple):
    """One line of a history. `at_ns` is the machine's monotonic clock, which all its processes share."""

    at_ns: int
    event: Event
    producer: str = ""
    """Producer of the message. Empty for a seek, like `key`."""
    key: str = ""
    number: int = 0
    consumer: str = ""
    """Name of the consumer. Empty for sent messages and for a seek, like the three fields below."""
    segment: str = ""
    bucket: str = ""
    attachment: str = ""


class _HistoryFile(ClosesOnExit):
    """Appends lines to a file.

    When a call returns, its lines survive a kill of the process, but not a crash of the machine. Each line
    has the time of its call.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, and remove a line that a killed process left unfinished, because it would corrupt
        the next line.
        """
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._descriptor, _whole_lines(self._descriptor))

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._descriptor)

    def _write(self, event: Event, messages: Iterable[Message], end: str) -> None:
        """Append one line for each message, all with the present time. `end` is the rest of the line after
        the number, with the line feed.
        """
        start = f"{time.monotonic_ns()}\t{event}\t"
        self._append(
            "".join(
                f"{start}{_field(producer)}\t{_field(key)}\t{number}{end}"
                for producer, key, number in messages
            )
        )

    def _append(self, lines: str) -> None:
        """Write the lines completely, even if the system accepts only a part of them at a time."""
        unwritten = memoryview(lines.encode(errors="backslashreplace"))
        while unwritten:
            unwritten = unwritten[os.write(self._descriptor, unwritten) :]


class ProducerHistory(_HistoryFile):
    """The history file of a producer."""

    def sent(self, messages: Iterable[Message]) -> None:
        """Record that the data plane has acknowledged the messages."""
        self._write(Event.SENT, messages, "\n")


class ConsumerHistory(_HistoryFile):
    """The history file of a consumer."""

    def __init__(self, path: Path, consumer: str) -> None:
        super().__init__(path)
        self._consumer = _field(consumer)

    def delivered(self, messages: Iterable[Message], attachment: Attachment) -> None:
        """Record that the application gets these messages next, in this order."""
        self._note(Event.DELIVERED, messages, attachment)

    def begun(self, messages: Iterable[Message], attachment: Attachment) -> None:
        """Record that the application begins to process the messages."""
        self._note(Event.BEGUN, messages, attachment)

    def ended(self, messages: Iterable[Message], attachment: Attachment) -> None:
        """Record that the application has finished the messages, whatever the result."""
        self._note(Event.ENDED, messages, attachment)

    def failed(self, messages: Iterable[Message], attachment: Attachment) -> None:
        """Record that the processing of the messages failed, and must be repeated before a successor
        begins.
        """
        self._note(Event.FAILED, messages, attachment)

    def acknowledged(self, messages: Iterable[Message], attachment: Attachment) -> None:
        """Record that the data plane has accepted the acknowledgement of the messages."""
        self._note(Event.ACKNOWLEDGED, messages, attachment)

    def _note(self, event: Event, messages: Iterable[Message], attachment: Attachment) -> None:
        """Append one line for each message, with this consumer and the attachment."""
        fields = "\t".join(_field(str(field)) for field in attachment)
        self._write(event, messages, f"\t{self._consumer}\t{fields}\n")


class SeekHistory(_HistoryFile):
    """The history file of the process that requests seeks of the subscription."""

    @contextmanager
    def seek(self) -> Iterator[None]:
        """Record the begin of a seek, run the block, which must request the seek and wait for its end, and record the
        end. If the block raises, the end is not recorded, because the seek may still take effect, and the error is
        raised. Raises OSError if a line cannot be written.
        """
        self._append(f"{time.monotonic_ns()}\t{Event.SEEKING}\n")
        yield
        self._append(f"{time.monotonic_ns()}\t{Event.SOUGHT}\n")


def _field(text: str) -> str:
    """Return the text with tabs and line breaks escaped."""
    return text.translate(_ESCAPES)


def _whole_lines(descriptor: int) -> int:
    """Return the offset, in bytes from the beginning of the file, behind the last complete line.

    0 if there is none.
    """
    end = os.fstat(descriptor).st_size
    while end > 0:
        begin = max(0, end - _TAIL_BYTES)
        line_feed = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if line_feed >= 0:
            return begin + line_feed + 1
        end = begin
    return 0


def history_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files that the given files and directories stand for, in the order of `paths`, each path
    once. A directory stands for all files with the suffix `.history` in it, at any depth, in the order of
    their paths. A file that is given under two different paths is returned twice.

    Raises InvalidInput for a path that does not exist and for a directory without a history.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            if not path.exists():
                raise InvalidInput(f"history {path} does not exist; name a file or a directory")
            files[path] = None
            continue
        inside = sorted(path.rglob(f"*{SUFFIX}"))
        if not inside:
            raise InvalidInput(f"directory {path} contains no file *{SUFFIX}; name the files themselves")
        files.update(dict.fromkeys(inside))
    return list(files)


def read_history(*paths: Path) -> Iterator[Record]:
    """Yield the records of the files, file by file, each in the order of its lines. A last line without a
    line feed is unfinished, and is omitted.

    Raises InvalidInput, while iterating, for a file that cannot be opened and for a line that is not a
    record.
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
    """Return the record of a line's fields, which are its texts between tabs. The texts of the record stay
    escaped. Raises InvalidInput, with the path and the number of the line, if the fields are not a record.
    """
    event = _EVENTS.get(fields[1]) if len(fields) in (_OF_SEEK, _OF_PRODUCER, _OF_CONSUMER) else None
    is_seek = event in OF_SEEKS
    at_ns, number = fields[0], "0" if is_seek else fields[4] if event and len(fields) > _OF_SEEK else ""
    if event is None or not (at_ns.isdecimal() and number.isdecimal()):
        raise _malformed(
            path, line, "give at_ns, event, producer, key, number, and four more fields for a consumer"
        )
    if len(at_ns) > _MOST_DIGITS or len(number) > _MOST_DIGITS:
        raise _malformed(path, line, f"give at_ns and number with at most {_MOST_DIGITS} digits")
    if is_seek:
        if len(fields) == _OF_SEEK:
            return Record(int(at_ns), event)
        raise _malformed(path, line, f"{event!s} concerns the whole subscription; give only at_ns and event")
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


def _malformed(path: Path, line: int, reason: str) -> InvalidInput:
    return InvalidInput(f"history {path}, line {line} is not a record: {reason}")
