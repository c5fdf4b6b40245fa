"""`cleave decide` and `cleave decisions`: verdicts with every refusal, live and what-if."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from controller.domain.formatting import counted
from tests.support.command_line import CommandLine

HOT = 20_000.0


def write_load(cleave: CommandLine, segment_id: int, msg_rate_in: float) -> None:
    cleave.execute(
        "INSERT INTO cleave.load_source VALUES ('broker-1', clock_timestamp()) ON CONFLICT DO NOTHING"
    )
    cleave.execute(
        "INSERT INTO cleave.segment_load SELECT max(topic_id), :s, :r, 0, 0, 0, 'broker-1', clock_timestamp() FROM cleave.topic",
        s=segment_id,
        r=msg_rate_in,
    )


def snapshot(cleave: CommandLine, topic: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(cleave.ok("decide", topic, "--print-snapshot"))
    return document


def test_a_live_topic_is_decided_on_and_left_as_it_is(cleave: CommandLine, orders: str) -> None:
    write_load(cleave, 0, HOT)
    write_load(cleave, 1, 1.0)
    before = cleave.rows()

    verdict = cleave.json("decide", orders)
    table = cleave.ok("decide", orders)

    assert [(act["kind"], act["segment_id"], act["reason"]) for act in verdict["decisions"]] == [
        ("split", 0, "msgRateIn")
    ]
    assert [(refusal["lane"], refusal["reason"]) for refusal in verdict["refusals"]] == [
        ("merge", "not-cold")
    ]
    assert table.startswith("1 action, 1 refusal; ")
    assert cleave.rows() == before


def test_every_refusal_has_its_row_with_instants_a_person_can_read(cleave: CommandLine, orders: str) -> None:
    """The cooldown after a split: since when, until when."""
    cleave.ok("segments", "split", orders, "1")
    for segment_id in (0, 2, 3):
        write_load(cleave, segment_id, HOT)

    verdict = cleave.json("decide", orders)
    lines = cleave.ok("decide", orders).splitlines()

    assert len(lines) == 2 + len(verdict["refusals"])
    cooldowns = [line for line in lines if "split-cooldown" in line]
    assert [line.split()[:3] for line in cooldowns] == [["no", "action", number] for number in "023"]
    assert all(line.count(":") == 6 for line in cooldowns)  # three instants: value, needed, not before
    assert lines[0].startswith(f"no actions, {counted(len(verdict['refusals']), 'refusal')}; valid until 20")


def test_a_snapshot_can_be_edited_and_asked_again(
    cleave: CommandLine, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file and from standard input, with no database at all."""
    write_load(cleave, 0, 1.0)
    write_load(cleave, 1, 1.0)
    what_if = snapshot(cleave, orders)
    what_if["loads"]["1"]["msg_rate_in"] = HOT
    (tmp_path / "what-if.json").write_text(json.dumps(what_if))
    monkeypatch.setenv("CLEAVE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nowhere")

    from_file = cleave.json("decide", "--snapshot", str(tmp_path / "what-if.json"))
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(what_if)))
    from_stdin = cleave.json("decide", "--snapshot", "-")

    assert [(act["kind"], act["segment_id"]) for act in from_file["decisions"]] == [("split", 1)]
    assert from_stdin == from_file


def broken(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Snapshots that are none, each with a word of what is said."""

    def changed(**changes: Any) -> str:
        return json.dumps({**document, **changes})

    first, second = document["segments"]
    return [
        ("", "not an evaluation input"),
        ("[" * 100_000, "not an evaluation input"),
        ("[]", "not an evaluation input"),
        ("{}", "'segments'"),
        (changed(now="soon"), "now = 'soon'; give a whole number"),
        (changed(stream_consumers={"s": float("inf")}), "stream_consumers = inf; give a whole number"),
        (changed(capabilities={"recut": "no"}), "recut = 'no'; give true or false"),
        (changed(policy={"max_segments": "many"}), "whole number"),
        (changed(policy={"nonsense": 1}), "cannot be set here"),
        (changed(segments=[]), "do not tile the ring"),
        (changed(segments=[first]), "do not tile the ring"),
        (changed(segments=[first, second, {**second, "id": 9}]), "do not tile the ring"),
        (changed(segments=[{**first, "range": "0000-zzzz"}, second]), "not a hash range"),
        (changed(loads={"0": {"msg_rate_in": 1}}), "not an evaluation input"),
    ]


def test_what_is_no_snapshot_is_refused_in_one_line(cleave: CommandLine, orders: str, tmp_path: Path) -> None:
    write_load(cleave, 0, 1.0)
    path = tmp_path / "snapshot.json"
    for text, word in broken(snapshot(cleave, orders)):
        path.write_text(text)

        assert word in cleave.refused("decide", "--snapshot", str(path)), text[:200]


def test_an_invalid_policy_in_a_snapshot_is_a_refusal_not_an_error(
    cleave: CommandLine, orders: str, tmp_path: Path
) -> None:
    document = snapshot(cleave, orders)
    document["policy"]["max_segments"] = 0
    (tmp_path / "snapshot.json").write_text(json.dumps(document))

    verdict = cleave.json("decide", "--snapshot", str(tmp_path / "snapshot.json"))

    assert [refusal["reason"] for refusal in verdict["refusals"]] == ["invalid-policy"]


def test_the_ledger_is_listed_with_and_without_refusals(cleave: CommandLine, orders: str) -> None:
    cleave.execute(
        """INSERT INTO cleave.decision (topic_id, lanes, decided_by, epoch, input_version, situation, decisions, refusals, code_version)
           SELECT topic_id, '{load}', 'tests', 0, 1, '{}',
                  '[{"kind": "split", "segment_id": 0, "at": [], "reason": "msgRateIn"}]',
                  '[{"lane": "load", "segment_id": 1, "reason": "at-max-segments", "metric": "segments", "value": 2, "needed": 2}]',
                  'test' FROM cleave.topic"""
    )

    (decision,) = cleave.json("decisions", "list", "--topic", orders)
    (refusal,) = cleave.json("decisions", "refusals", "--topic", orders)

    assert decision["acts"] == ["split 0 (msgRateIn)"]
    assert (refusal["segment_id"], refusal["reason"], refusal["needed"]) == (1, "at-max-segments", 2)
    assert "split 0 (msgRateIn)" in cleave.ok("decisions", "list")
    assert "at-max-segments" in cleave.ok("decisions", "refusals")
