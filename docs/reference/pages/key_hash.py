"""The page on the hash of keys, and the conformance vectors of clients in other languages.

Everything is computed by the rules that Cleave's own client uses. Pure; `docs.reference.generate` writes the files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from controller.domain.entry_buckets import bucket_of, equal_splits
from controller.domain.key_hash import key_hash
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment
from docs.reference.pages.markdown import code, page, table

TEXTS: Final = (
    "a",
    "ab",
    "abc",
    "abcd",
    "abcde",
    "order-1",
    "order-2",
    "customer-42",
    "with a space",
    "tab\there",
    "Köln",
    "ключ",
    "鍵",
    "🔑",
    "e\u0301",
    "\u00e9",
    "x" * 255,
)
"""Keys that are text: each length modulo 4, each length of a UTF-8 character, and two spellings of one letter."""
BYTES: Final = (b"", b"\x00", b"\x80", b"\xff\xff\xff\xff", b"\xde\xad\xbe\xef\x00", bytes(range(251, 256)))
"""Keys that are bytes: signed and unsigned bytes give different hashes if a client confuses them."""
SPLITS: Final[Sequence[tuple[int, ...]]] = ((), equal_splits(4), (1, 2, 40_000), (65_535,))
"""First bucket hashes of the buckets 1, 2, ... of a segment."""
_ONE_SEGMENT: Final = (
    '{"topic_id": 1, "data_plane": "pulsar", "epoch": 0, "segments": [{"segment_id": 0, "range_start": %d, "range_end": %d,'
    ' "bucket_splits": [], "backing_topic": "persistent://acme/shop/orders-segment-0"}]}'
)
REFUSED: Final = (
    "",
    "{}",
    "[1",
    '{"topic_id": 1, "data_plane": "pulsar", "epoch": 0, "segments": []}',
    _ONE_SEGMENT % (1, 65_535),
    _ONE_SEGMENT % (0, 65_534),
)
"""Texts that are no layout document, or whose segments leave hashes without an owner."""
_NOW: Final = 1_795_230_000_000


def vectors() -> str:
    """Return the conformance vectors as JSON."""
    document = {
        "hashes": [_hash(text) for text in TEXTS] + [_hash(raw) for raw in BYTES],
        "buckets": [
            {"bucket_splits": splits, "bucket_hash": bucket_hash, "bucket": bucket_of(splits, bucket_hash)}
            for splits in SPLITS
            for bucket_hash in _edges(splits)
        ],
        "layouts": [_layout(*one) for one in zip(_layouts(), (None, 1, None), strict=True)],
        "refused_layouts": REFUSED,
        "streams": _streams(),
    }
    return json.dumps(document, indent=1)


def key_hash_page() -> str:
    """Return the page."""
    return page(
        "The hash of a key",
        _INTRODUCTION,
        _RULE,
        "## Test vectors",
        "`segment` and `bucket` are the upper and the lower half of `hash`. These values are hexadecimal.",
        table(
            ("key", "its bytes", "hash", "segment", "bucket"),
            (_row(one) for one in json.loads(vectors())["hashes"] if len(one["bytes"]) < 30),
        ),
        "The bucket of a bucket hash, by the splits of the segment:",
        table(
            ("`bucket_splits`", "bucket hash", "bucket"),
            (
                (one["bucket_splits"], one["bucket_hash"], one["bucket"])
                for one in json.loads(vectors())["buckets"]
            ),
        ),
        _FILE,
    )


def _row(vector: dict[str, Any]) -> tuple[str, ...]:
    text = "(bytes)" if vector["text"] is None else code(vector["text"].replace("\t", "\\t"))
    halves = code(f"{vector['segment_hash']:04x}"), code(f"{vector['bucket_hash']:04x}")
    return text, code(vector["bytes"]) or "(none)", code(f"{vector['hash']:08x}"), *halves


def _hash(key: str | bytes) -> dict[str, object]:
    found = key_hash(key)
    return {
        "text": key if isinstance(key, str) else None,
        "bytes": (key.encode() if isinstance(key, str) else key).hex(),
        "hash": found.segment_hash << 16 | found.bucket_hash,
        **found._asdict(),
    }


def _edges(splits: Sequence[int]) -> list[int]:
    """Return the first and the last hash of each bucket."""
    return sorted({0, 65_535, *splits, *(split - 1 for split in splits)})


def _layouts() -> tuple[SegmentLayout, ...]:
    first = SegmentLayout.initial(1, now=_NOW)
    split = first.split(0, _NOW).split(1, _NOW, (0x2000, 0x2001)).merge(2, 5, _NOW).rebucket(3, 5, _NOW)
    return first, split, SegmentLayout.initial(7, bucket_budget=40, now=_NOW)


def _document(layout: SegmentLayout) -> dict[str, object]:
    """Return what a worker sends, with a field that no client knows."""
    return {
        "topic_id": 7,
        "topic": "topic://acme/shop/bestellungen-für-köln",
        "data_plane": "pulsar",
        "epoch": layout.epoch,
        "next_segment_id": layout.next_segment_id,
        "leader": None,
        "of a later version": {'quoted "text"': [1.5, -2, True, "\\ / \u2028 🔑"]},
        "segments": [_segment(segment) for segment in reversed(layout.active)],
    }


def _segment(segment: Segment) -> dict[str, object]:
    name = f"{segment.hash_range}-{segment.segment_id}"
    return {
        "segment_id": segment.segment_id,
        "range_start": segment.hash_range.start,
        "range_end": segment.hash_range.end,
        "bucket_splits": segment.bucket_splits,
        "created_epoch": segment.created_epoch,
        "created_at_ms": segment.created_at_ms,
        "backing_topic": f"persistent://acme/shop/bestellungen-für-köln-segment-{name}",
    }


def _layout(layout: SegmentLayout, indent: int | None) -> dict[str, object]:
    """Return a document, what a client finds in it, and where keys belong by it."""
    document = _document(layout)
    fields = ("segment_id", "range_start", "range_end", "bucket_splits", "backing_topic")
    segments = [_segment(segment) for segment in layout.active]
    return {
        "document": json.dumps(document, ensure_ascii=indent is None, indent=indent),
        "topic_id": document["topic_id"],
        "data_plane": document["data_plane"],
        "epoch": layout.epoch,
        "segments": [{name: segment[name] for name in fields} for segment in segments],
        "routes": [_route(layout, key) for key in TEXTS],
    }


def _route(layout: SegmentLayout, key: str) -> dict[str, object]:
    found = key_hash(key)
    segment = next(one for one in layout.active if one.hash_range.contains(found.segment_hash))
    bucket = bucket_of(segment.bucket_splits, found.bucket_hash)
    return {"key": key, "segment_id": segment.segment_id, "bucket": bucket}


def _streams() -> list[dict[str, object]]:
    """Return texts of event streams and the events in each; the last event of a stream that broke is not whole."""
    end = '{"reason": "token expired"}'
    return [
        {
            "text": f'event: layout\ndata: {{"epoch": 1}}\n\nevent: heartbeat\ndata: {{}}\n\nevent: end\ndata: {end}\n\n',
            "events": [["layout", '{"epoch": 1}'], ["heartbeat", "{}"], ["end", end]],
        },
        {"text": ": a comment\r\n\r\nevent:layout\r\ndata:{}\r\n\r\ndata: {", "events": [["layout", "{}"]]},
    ]


_INTRODUCTION = """A producer in any language keeps the order of keys across splits and merges if it sends each key to the segment that
[the layout](client-protocol.md#a-topics-layout) names for the key. `clients/java` and `clients/go` are such producers. This page has
what another language needs to compute the same segment and bucket."""
_RULE = """## The rule

1. The key's bytes are its UTF-8 encoding. A key that was given as bytes is hashed as it is. No normalization takes place: `é` as one
   character and as two are different keys. Text with a lone surrogate has no UTF-8 encoding; refuse it.
2. The hash is Murmur3, x86, 32 bits, seed 0, as an unsigned number.
3. The upper 16 bits are the segment hash. The key belongs to the segment with `range_start` ≤ segment hash ≤ `range_end`.
4. The lower 16 bits are the bucket hash. The key belongs to the bucket whose index is the number of `bucket_splits` that are not above
   the bucket hash.
5. A batch holds messages of one bucket. With a standard client: one producer for each bucket.

The standard clients have a Murmur3 of their own that does not fit: Java's and Go's drop the highest bit, which is the highest bit of the
segment hash. `JavaStringHash`, their default for partitions, is another hash."""
_FILE = """## The same as a file

[client-vectors.json](client-vectors.json) has these vectors and more: layout documents with the segments and the owners of keys in them,
texts that a client must refuse, and event streams. `tests/integration/clients` runs the Java and the Go producer against the file."""
