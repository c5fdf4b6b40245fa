"""The conformance vectors tell apart what clients get wrong. `test_reference` compares the file with the rules that made it."""

from __future__ import annotations

import json
from itertools import chain

from docs.reference import generate

VECTORS = json.loads((generate.HERE / "client-vectors.json").read_text())


def test_hashes_have_each_tail_each_sign_and_bytes_that_are_no_text() -> None:
    hashes = VECTORS["hashes"]

    assert {len(bytes.fromhex(one["bytes"])) % 4 for one in hashes} == {0, 1, 2, 3}
    assert {one["hash"] >> 31 for one in hashes} == {0, 1}
    assert {one["bucket_hash"] >> 15 for one in hashes} == {0, 1}
    assert any(one["text"] is None for one in hashes)
    assert all(
        bytes.fromhex(one["bytes"]).decode() == one["text"] for one in hashes if one["text"] is not None
    )


def test_layouts_have_one_segment_and_several_not_in_order_with_one_bucket_and_several() -> None:
    layouts = VECTORS["layouts"]

    assert {len(one["segments"]) > 1 for one in layouts} == {False, True}
    assert any(_ids(json.loads(one["document"])) != _ids(one) for one in layouts)
    assert {bool(one["bucket_splits"]) for layout in layouts for one in layout["segments"]} == {False, True}
    routes = list(chain.from_iterable(one["routes"] for one in layouts))
    assert len({(one["segment_id"], one["bucket"]) for one in routes}) > 8


def _ids(document: dict[str, list[dict[str, int]]]) -> list[int]:
    return [one["segment_id"] for one in document["segments"]]
