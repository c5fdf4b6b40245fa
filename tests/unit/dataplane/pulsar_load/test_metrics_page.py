"""A metrics page read block by block, held against the recorded page of a real broker and the library's parser."""

from __future__ import annotations

import string
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.broker_page import multiplied, recorded, topic
from controller.dataplane.pulsar_load.metrics_page import LINE_BYTES, Page, TopicCounters, watched_labels
from controller.domain.errors import DataPlaneUnavailable

LOW = "persistent://public/default/orders-segment-0000-7fff-1"
HIGH = "persistent://public/default/orders-segment-8000-ffff-2"
ODD = [
    f"persistent://public/default/{name}"
    for name in ('quo"te', "back\\slash", "com,ma", "br}ace{", "sp ace", "ünï")
]
NAMES = st.text(st.sampled_from('ab",\\{}= ü' + string.digits), min_size=1, max_size=8).map(
    "persistent://t/n/{}".format
)


def read(text: bytes, topics: Iterable[str], block_bytes: int = 1 << 20) -> Page:
    """The whole page, in blocks."""
    page = Page(watched_labels(topics))
    for begin in range(0, len(text), block_bytes):
        page.feed(text[begin : begin + block_bytes])
    page.finish()
    return page


def escape(value: str) -> str:
    """A label's value as the text format has it."""
    return value.replace("\\", "\\\\").replace('"', '\\"')


def test_the_recorded_page_gives_what_was_sent_and_read() -> None:
    page = read(recorded(), [LOW, HIGH, *ODD, "persistent://public/default/none"])

    out = dict.fromkeys((b"named", b"excl", b"sh", b"ks", b"multi"), (100, 13500))
    assert page.topics == {
        LOW: TopicCounters(100, 13_500, 1, out),
        HIGH: TopicCounters(100, 13_500, 1, {b"multi": (100, 13_500)}),
        **{name: TopicCounters(1, 36, 1) for name in ODD},
    }
    assert page.started_at_ms == 1_795_288_128_510


def test_the_librarys_parser_reads_the_same_from_the_recorded_page() -> None:
    lines = [line for line in recorded().decode().splitlines() if not line.startswith("#")]
    whole = [line for line in lines if '"} ' in line and line.startswith(("pulsar_in_", "pulsar_out_"))]
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families("\n".join(whole) + "\n"):
        for sample in family.samples:
            kinds = found.setdefault(sample.labels["topic"], {})
            kinds[sample.name] = kinds.get(sample.name, 0) + sample.value

    page = read(recorded(), found)
    assert {
        name: counters.msg_in for name, counters in page.topics.items() if counters.msg_in is not None
    } == {
        name: kinds["pulsar_in_messages_total"]
        for name, kinds in found.items()
        if "pulsar_in_messages_total" in kinds
    }
    assert {
        name: sum(size for _, size in counters.out.values()) for name, counters in page.topics.items()
    } == {name: kinds.get("pulsar_out_bytes_total", 0) for name, kinds in found.items()}


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 4_093, 1 << 20])
def test_where_blocks_end_makes_no_difference(block_bytes: int) -> None:
    text = recorded()[:100_000].rpartition(b"\n")[0] + b"\n"

    assert read(text, [LOW, HIGH, *ODD], block_bytes).topics == read(text, [LOW, HIGH, *ODD]).topics


@given(
    counts=st.dictionaries(NAMES, st.integers(0, 2**62), max_size=6),
    reads=st.dictionaries(NAMES, st.dictionaries(NAMES, st.integers(0, 2**62), max_size=3), max_size=6),
    block_bytes=st.integers(1, 200),
)
def test_whatever_names_are_the_library_reads_the_same(
    counts: dict[str, int], reads: dict[str, dict[str, int]], block_bytes: int
) -> None:
    lines = [
        f'pulsar_in_messages_total{{cluster="c",topic="{escape(name)}"}} {n}' for name, n in counts.items()
    ]
    lines += [
        f'pulsar_out_messages_total{{namespace="t/n",topic="{escape(name)}",subscription="{escape(one)}"}} {n}'
        for name, of_name in reads.items()
        for one, n in of_name.items()
    ]
    text = "".join(f"{line}\n" for line in lines)
    expected: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            expected[sample.labels["topic"]] = expected.get(sample.labels["topic"], 0) + int(sample.value)

    page = read(text.encode(), {*counts, *reads}, block_bytes)

    assert {
        name: (one.msg_in or 0) + sum(messages for messages, _ in one.out.values())
        for name, one in page.topics.items()
    } == expected


def test_multiplied_pages_have_their_topics_and_no_others() -> None:
    page = read(b"".join(multiplied(12)), [topic(n) for n in range(5, 15)])

    assert list(page.topics) == [topic(n) for n in range(5, 12)]
    assert page.topics[topic(7)] == TopicCounters(100, 13_500, 1, {b"multi": (100, 13_500)})


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0", 0), ("1.0E7", 10_000_000), ("9007199254740993", 2**53 + 1), ("7 1795288128510", 7)],
)
def test_values_as_brokers_of_all_versions_write_them(value: str, expected: int) -> None:
    page = read(f'pulsar_in_bytes_total{{cluster="c",topic="t"}} {value}\n'.encode(), ["t"])

    assert page.topics["t"].byte_in == expected


@pytest.mark.parametrize(
    "line",
    [
        'pulsar_in_bytes_total{topic="t"} NaN',
        'pulsar_in_bytes_total{topic="t"} -1',
        'pulsar_in_bytes_total{topic="t" 5',
        'pulsar_in_bytes_total{cluster="c"} 5',
        'pulsar_in_bytes_total{cluster="x\\",topic=\\"t"} 5',
        'pulsar_in_bytes_total_created{topic="t"} 5',
        'other_pulsar_in_bytes_total{topic="t"} 5',
        '# pulsar_in_bytes_total{topic="t"} 5',
    ],
)
def test_what_is_no_counter_of_the_topic_is_passed_over(line: str) -> None:
    assert read(f"{line}\n".encode(), ["t"]).topics == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1700000000", 1_700_000_000_000),
        ("1.7E9", 1_700_000_000_000),
        ("1.700000000125E9", 1_700_000_000_125),
        ("253402300800", None),
    ],
)
def test_a_start_time_is_read_in_milliseconds_however_its_seconds_are_written(
    value: str, expected: int | None
) -> None:
    assert read(f"process_start_time_seconds {value}\n".encode(), []).started_at_ms == expected


def test_segments_of_pulsar_5_are_topics_like_others() -> None:
    name = "segment://t/n/orders/0000-7fff-4"

    assert read(f'pulsar_in_messages_total{{topic="{name}"}} 3\n'.encode(), [name]).topics[name].msg_in == 3


def test_a_page_cut_off_in_a_line_is_refused() -> None:
    page = Page(watched_labels(["t"]))
    page.feed(b'pulsar_in_bytes_total{topic="t"} 12')

    with pytest.raises(DataPlaneUnavailable, match="middle of a line"):
        page.finish()
    assert page.topics == {}  # the number may go on


def test_a_page_of_namespaces_alone_is_refused() -> None:
    """Every topic would seem to be missing. Only the counters that brokers write for a namespace count, and of them one suffices."""
    with pytest.raises(DataPlaneUnavailable, match="exposeTopicLevelMetricsInPrometheus=true"):
        read(b'pulsar_in_messages_total{cluster="c",namespace="t/n"} 5\n', [LOW])
    assert read(b'pulsar_producers_count{cluster="c"} 0\n', [LOW]).topics == {}


def test_a_body_without_lines_is_refused_before_it_fills_the_memory() -> None:
    page = Page({})

    with pytest.raises(DataPlaneUnavailable, match="not a metrics page"):
        page.feed(b"x" * (LINE_BYTES + 1))


@pytest.mark.parametrize("value", ["1e999", "1.5.2", "9" * 30, "1e30", "1E+E"])
def test_a_value_that_no_counter_holds_silences_its_topic_alone(value: str) -> None:
    lines = [
        f'pulsar_{name}_total{{cluster="c",topic="{topic}"}} {number}'
        for topic, number in ((LOW, value), (HIGH, "7"))
        for name in ("in_messages", "in_bytes")
    ]
    page = read("\n".join([*lines, f"process_start_time_seconds {value}", ""]).encode(), [LOW, HIGH])

    assert page.topics == {HIGH: TopicCounters(7, 7)}
    assert page.started_at_ms is None
