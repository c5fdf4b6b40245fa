"""Parses a broker's metrics page (Prometheus text) block by block: only the counters of watched topics and
the number of their producers.

A page has about 15 KB per topic, so 100,000 topics make 1.5 GB, of which 500,000 lines matter. One regular
expression finds these lines in a block. Of the labels only `topic` and `subscription` are read, unparsed,
with their escapes. For these lines alone, the parser of `prometheus_client` takes several times as long as
this module for the whole page (`benchmarks.bench_scrape` measures both). The tests compare the results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.domain.errors import DataPlaneUnavailable
from controller.domain.whole_numbers import MOST

LINE_BYTES = 1 << 16
"""Longest line of a metrics page. A body with a longer line is not a metrics page."""

_LINE = re.compile(
    rb"\np(?:ulsar_(in_messages_total|in_bytes_total|out_messages_total|out_bytes_total|producers_count)\{([^\n]*)\}"
    rb"|rocess_start_time_seconds(?:\{[^\n]*\})?)"
    rb" ([0-9][0-9.eE+]*)(?: [0-9]+)?\r?(?=\n)"
)
_VALUE = rb'="([^"\\]*(?:\\.[^"\\]*)*)"'
_ESCAPED = {name: re.compile(rb"," + name + _VALUE) for name in (b"topic", b"subscription")}
_PLAIN = {name: b"," + name + b'="' for name in _ESCAPED}


LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""


@dataclass(slots=True)
class TopicCounters:
    """The counters of one topic as on the page; None for a counter that the page lacks. `out` is (messages,
    bytes) by subscription.
    """

    msg_in: int | None = None
    byte_in: int | None = None
    producers: int | None = None
    out: dict[bytes, tuple[int, int]] = field(default_factory=dict)


def watched_labels(topics: Iterable[str]) -> dict[bytes, str]:
    """Return the topics' names by label. The label is the text of `topic` on a metrics page, with its escapes, in
    UTF-8. A topic whose name contains a backslash has two labels, because brokers escape only the quotation mark,
    although the format also escapes the backslash.
    """
    labels: dict[bytes, str] = {}
    for topic in topics:
        quoted = topic.replace('"', '\\"')
        labels[quoted.encode()] = topic
        if "\\" in topic:
            labels[topic.replace("\\", "\\\\").replace('"', '\\"').encode()] = topic
    return labels


class Page:
    """The parser of one page. The parser is fed with blocks of any size, and stores an unfinished line and
    the counters, never the page.
    """

    def __init__(self, watched: Mapping[bytes, str]) -> None:
        """Parse the counters of `watched` topics, by label (`watched_labels`)."""
        self._watched = watched
        self._rest = b"\n"
        self._names: dict[bytes, bytes] = {}
        self._omits_topics = False
        self.topics: dict[str, TopicCounters] = {}
        self.started_at_ms: int | None = None
        """Time at which the broker's process started; None if the page does not contain it."""

    def feed(self, block: bytes) -> None:
        """Parse the next block of the page, and store its counters in `topics` and the start of the process in
        `started_at_ms`. The unfinished line at the end of the block is kept for the next block. Lines of another
        form, lines about topics that are not watched, and values that no counter can have are ignored. Of repeated
        lines the last counts.

        Raises DataPlaneUnavailable if the unfinished line exceeds `LINE_BYTES`. Any other body that is not a metrics
        page, such as HTML, is parsed without a result and without an error.
        """
        text = self._rest + block
        end = text.rfind(b"\n")
        for match in _LINE.finditer(text, 0, end + 1):
            kind, labels, value = match.groups()
            number = _number(value) if kind else _number(value, 1000, LATEST_MS)
            if number is None:
                continue
            if kind:
                self._count(kind, labels, number)
            else:
                self.started_at_ms = number
        self._rest = text[end:]
        if len(self._rest) > LINE_BYTES:
            raise DataPlaneUnavailable(f"a line exceeds {LINE_BYTES} bytes: the body is not a metrics page")

    def finish(self) -> None:
        """End the body. Raises DataPlaneUnavailable if it ended in the middle of a line, or if the page contains the
        counters of namespaces instead of topics. An empty body is accepted.
        """
        if self._rest != b"\n":
            raise DataPlaneUnavailable("the page ends in the middle of a line")
        if self._omits_topics:
            raise DataPlaneUnavailable(
                "the page has no counters of topics; set exposeTopicLevelMetricsInPrometheus=true in the brokers' configuration"
            )

    def _count(self, kind: bytes, labels: bytes, number: int) -> None:
        """Store one counter of a watched topic in `topics`, in place of an earlier value. `kind` is the name of the
        counter without `pulsar_`, one of those in `_LINE`; `labels` is the text between the braces of the line.

        A topic that is not watched is ignored, and so is an outgoing counter without a subscription. If a
        subscription has only one of its two outgoing counters, the other is 0.
        """
        labels = b"," + labels
        name = _label(labels, b"topic")
        topic = self._watched.get(name)
        if topic is None:
            self._omits_topics |= not name and kind == b"in_messages_total" and _PLAIN[b"topic"] not in labels
            return
        counters = self.topics.get(topic)
        if counters is None:
            counters = self.topics[topic] = TopicCounters()
        if kind == b"in_messages_total":
            counters.msg_in = number
        elif kind == b"in_bytes_total":
            counters.byte_in = number
        elif kind == b"producers_count":
            counters.producers = number
        elif name := _label(labels, b"subscription"):
            name = self._names.setdefault(name, name)  # many topics share one object for the name
            messages, size = counters.out.get(name, (0, 0))
            counters.out[name] = (number, size) if kind == b"out_messages_total" else (messages, number)


def _number(value: bytes, factor: int = 1, limit: int = MOST) -> int | None:
    """Return a value of the page multiplied by `factor`, without its fraction. `value` consists of digits, perhaps
    with a fraction or an exponent. None if the text is not a number, or the product is infinite or exceeds `limit`;
    the caller then ignores the line.
    """
    try:
        number = int(value) * factor if value.isdigit() else int(float(value) * factor)
    except (ValueError, OverflowError):
        return None
    return number if number <= limit else None


def _label(labels: bytes, name: bytes) -> bytes:
    """Return the label's unparsed value, with its escapes. Empty if there is no such label. `labels` is the
    text between the braces behind an additional comma; `name` is `topic` or `subscription`.
    """
    if b"\\" not in labels:  # true nearly always, and five times as fast
        return labels.partition(_PLAIN[name])[2].partition(b'"')[0]
    match = _ESCAPED[name].search(labels)
    return match[1] if match else b""
