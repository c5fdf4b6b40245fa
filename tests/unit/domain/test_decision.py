"""The verdict as JSON, as the ledger keeps it."""

from __future__ import annotations

import json

from controller.domain.decision import (
    Evaluation,
    Lane,
    Merge,
    Rebucket,
    Recut,
    Refusal,
    RefusalReason,
    Split,
)


def test_each_act_says_its_kind_and_its_segments() -> None:
    acts = (
        Split(3, (), "msgRateIn"),
        Split(4, (100, 200), "x"),
        Merge(1, 2, "cold"),
        Rebucket(5, 8, "y"),
        Recut((6, 7), (9,), "z"),
    )
    assert Evaluation(acts).to_document()["decisions"] == [
        {"kind": "split", "segment_id": 3, "at": (), "reason": "msgRateIn"},
        {"kind": "split", "segment_id": 4, "at": (100, 200), "reason": "x"},
        {"kind": "merge", "left_id": 1, "right_id": 2, "reason": "cold"},
        {"kind": "rebucket", "segment_id": 5, "bucket_count": 8, "reason": "y"},
        {"kind": "recut", "segment_ids": (6, 7), "at": (9,), "reason": "z"},
    ]


def test_the_text_is_canonical_and_leaves_out_what_is_not_known() -> None:
    refusal = Refusal(3, Lane.LOAD, RefusalReason.LOWER_SCORE, "msg_rate_in", 1.5, 2.0)
    text = Evaluation((), (refusal,), 77).to_json()
    assert text == (
        '{"decisions":[],"refusals":[{"lane":"load","metric":"msg_rate_in","needed":2,"reason":"lower-score",'
        '"segment_id":3,"value":1.5}],"valid_until":77}'
    )


def test_figures_json_has_no_number_for_are_written_as_text() -> None:
    refusal = Refusal(None, None, RefusalReason.INVALID_POLICY, "split_msg_rate_in", float("nan"), 0)
    (row,) = json.loads(Evaluation((), (refusal,)).to_json())["refusals"]
    assert row["value"] == "NaN"
