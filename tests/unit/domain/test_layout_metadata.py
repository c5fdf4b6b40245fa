"""The metadata record: what Pulsar reads, what it wrote, and what must pass through untouched."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from controller.domain.errors import InvalidInput
from controller.domain.layout import SegmentLayout
from controller.domain.layout_metadata import metadata_extras
from tests.support.lineages import lineage_of_merges
from tests.support.work import steps
from tests.unit.domain.strategies import LayoutSequence, layouts, trails

INFINITE = float("inf")

# The example in PIP-468, whose text has sealedAtEpoch 0 for active segments.
PIP_468: dict[str, Any] = {
    "epoch": 3,
    "nextSegmentId": 5,
    "segments": {
        str(i): {
            "segmentId": i,
            "hashRange": {"start": start, "end": end},
            "state": state,
            "parentIds": parents,
            "childIds": children,
            "createdAtEpoch": created,
            "sealedAtEpoch": sealed,
        }
        for i, start, end, state, parents, children, created, sealed in [
            (0, 0, 65535, "SEALED", [], [1, 2], 0, 1),
            (1, 0, 32767, "SEALED", [0], [3, 4], 1, 3),
            (2, 32768, 65535, "ACTIVE", [0], [], 1, 0),
            (3, 0, 16383, "ACTIVE", [1], [], 3, 0),
            (4, 16384, 32767, "ACTIVE", [1], [], 3, 0),
        ]
    },
    "properties": {},
}


@given(layouts())
def test_a_layout_reads_back_from_its_json(layout: SegmentLayout) -> None:
    assert SegmentLayout.from_metadata(json.loads(json.dumps(layout.to_metadata()))) == layout


@given(layouts())
def test_whatever_else_is_in_the_record_is_written_back_unchanged(layout: SegmentLayout) -> None:
    record = {
        **layout.to_metadata(),
        "properties": {"team": "billing"},
        "autoScalePolicy": {"maxSegments": 9},
        "fieldOfAnotherYear": [1],
    }

    changed = (
        SegmentLayout.from_metadata(record).split(layout.active[-1].segment_id, 1)
        if _wide(layout)
        else layout
    )
    written = changed.to_metadata(metadata_extras(record))

    assert metadata_extras(written) == metadata_extras(record)
    assert SegmentLayout.from_metadata(written) == changed


def _wide(layout: SegmentLayout) -> bool:
    return layout.active[-1].hash_range.width > 1


def test_extras_never_override_the_layout() -> None:
    layout = SegmentLayout.initial(2, now=0)

    assert layout.to_metadata({"epoch": 99, "segments": {}}) == layout.to_metadata()


def test_the_example_of_pip_468_reads_as_the_layout_it_describes() -> None:
    layout = SegmentLayout.from_metadata(PIP_468)

    layout.check_invariants()
    assert [segment.segment_id for segment in layout.active] == [3, 4, 2]
    assert {segment.sealed_epoch for segment in layout.active} == {None}
    assert (layout.segments[1].sealed_epoch, layout.segments[1].sealed_at_ms) == (3, 0)


def test_an_active_segment_is_written_with_the_field_names_and_marks_of_pulsar_5() -> None:
    assert SegmentLayout.initial(1, bucket_budget=2, now=123).to_metadata() == {
        "epoch": 0,
        "nextSegmentId": 1,
        "properties": {},
        "segments": {
            "0": {
                "segmentId": 0,
                "hashRange": {"start": 0, "end": 65535},
                "state": "ACTIVE",
                "parentIds": [],
                "childIds": [],
                "createdAtEpoch": 0,
                "sealedAtEpoch": -1,
                "createdAtMs": 123,
                "sealedAtMs": -1,
                "legacyTopicName": None,
                "entryBucketSplits": [32768],
                "mergeDepth": 0,
            }
        },
    }


def test_null_lists_an_empty_legacy_name_and_unknown_fields_are_read_as_pulsar_reads_them() -> None:
    record = SegmentLayout.initial(1, bucket_budget=1, now=0).to_metadata()
    record["segments"]["0"].update(
        parentIds=None, childIds=None, entryBucketSplits=None, legacyTopicName="", colour="red"
    )

    assert SegmentLayout.from_metadata(record) == SegmentLayout.initial(1, bucket_budget=1, now=0)


@given(trails(prune=False))
def test_a_record_without_our_field_has_its_merges_counted_anew(trail: LayoutSequence) -> None:
    record = trail.last.to_metadata()
    for segment in record["segments"].values():
        del segment["mergeDepth"]

    assert SegmentLayout.from_metadata(record) == trail.last


def test_a_stored_depth_carries_over_to_an_heir_that_lost_its_own() -> None:
    """A child that Pulsar added to our record has no depth of ours, but its parent has."""
    layout = SegmentLayout.initial(2, now=0).merge(0, 1, 1).prune(0).prune(1).split(2, 2)
    record = layout.to_metadata()
    del record["segments"]["3"]["mergeDepth"]

    assert SegmentLayout.from_metadata(record).segment(3).merge_depth == 1


def test_counting_merges_anew_takes_steps_in_proportion_to_the_segments() -> None:
    """A mirror reads the whole lineage at every look."""
    short, long = (read_again(lineage_of_merges(rounds), with_depth=False) for rounds in (100, 400))

    assert steps(long) < 4.5 * steps(short)
    assert long().segment(3 * 400).merge_depth == 400


def read_again(layout: SegmentLayout, *, with_depth: bool) -> Callable[[], SegmentLayout]:
    record = layout.to_metadata()
    if not with_depth:
        for segment in record["segments"].values():
            del segment["mergeDepth"]
    return lambda: SegmentLayout.from_metadata(record)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"state": "SPLITTING"}, "SPLITTING"),
        ({"state": None}, "cannot be read"),
        ({"hashRange": None}, "cannot be read"),
        ({"hashRange": {"start": 9, "end": 3}}, "9..3 is not on the ring"),
        ({"segmentId": "x"}, "segmentId = 'x'"),
        ({"segmentId": INFINITE}, "segmentId = inf"),
        ({"segmentId": -1}, "segmentId = -1"),
        ({"segmentId": 0.5}, r"segmentId = 0\.5"),
        ({"segmentId": True}, "segmentId = True"),
        ({"segmentId": 7}, "stored under the key '0'"),
        ({"segmentId": 2**63}, "segmentId = 9223372036854775808"),
        ({"segmentId": 10**5000}, "an integer of 16610 bits"),
        ({"hashRange": {"start": 0, "end": INFINITE}}, "end = inf"),
        ({"hashRange": {"start": float("nan"), "end": 9}}, "start = nan"),
        ({"hashRange": [0, 1]}, "cannot be read"),
        ({"createdAtEpoch": INFINITE}, "createdAtEpoch = inf"),
        ({"state": "SEALED", "sealedAtEpoch": -INFINITE}, "sealedAtEpoch = -inf"),
        ({"createdAtMs": INFINITE}, "createdAtMs = inf"),
        ({"createdAtMs": 10**18}, "createdAtMs = 1000000000000000000"),
        ({"state": "SEALED", "sealedAtEpoch": 1, "sealedAtMs": INFINITE}, "sealedAtMs = inf"),
        ({"mergeDepth": INFINITE}, "mergeDepth = inf"),
        ({"mergeDepth": "deep"}, "mergeDepth = 'deep'"),
        ({"parentIds": [INFINITE]}, "parentIds = inf"),
        ({"parentIds": 7}, "parentIds = 7"),
        ({"parentIds": 0}, "parentIds = 0"),
        ({"parentIds": False}, "parentIds = False"),
        ({"parentIds": ""}, "parentIds = ''"),
        ({"parentIds": [[0]]}, r"parentIds = \[0\]"),
        ({"childIds": {"1": 2}}, "childIds = "),
        ({"entryBucketSplits": ["x"]}, "entryBucketSplits = 'x'"),
        ({"entryBucketSplits": [INFINITE]}, "entryBucketSplits = inf"),
        ({"legacyTopicName": 7}, "legacyTopicName = 7"),
        ({"parentIds": "01"}, "parentIds = '01'"),
    ],
)
def test_a_segment_that_cannot_be_read_is_refused_by_its_values(
    change: dict[str, Any], sentence: str
) -> None:
    record = SegmentLayout.initial(1, now=0).to_metadata()
    record["segments"]["0"].update(change)

    with pytest.raises(InvalidInput, match=sentence):
        SegmentLayout.from_metadata(record)


WRITTEN = SegmentLayout.initial(1, now=0).to_metadata()


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        *(
            ({key: value for key, value in PIP_468.items() if key != missing}, f"'{missing}'")
            for missing in ("epoch", "nextSegmentId", "segments")
        ),
        ({**WRITTEN, "epoch": INFINITE}, "epoch = inf"),
        ({**WRITTEN, "epoch": -1}, "epoch = -1"),
        ({**WRITTEN, "nextSegmentId": float("nan")}, "nextSegmentId = nan"),
        ({**WRITTEN, "nextSegmentId": 2**64}, "nextSegmentId = 18446744073709551616"),
        ({**WRITTEN, "segments": []}, "cannot be read"),
        ({**WRITTEN, "segments": {"0": None}}, "cannot be read"),
        ({**WRITTEN, "segments": {"0": 7}}, "cannot be read"),
    ],
)
def test_a_record_that_lacks_the_layout_or_cannot_be_read_is_refused(
    document: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        SegmentLayout.from_metadata(document)
