"""`cleave check-history` as a user has it: exit codes, the table, the document, one line for a mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.client.history import Attachment, ConsumerHistory, ProducerHistory
from controller.client.history_check import Kind
from controller.commands import cli
from controller.commands.check_history import _MEANINGS
from tests.support.log_settings import logging_kept

HELD, NEXT = Attachment(3, 1, "a7"), Attachment(3, 1, "a8")


def run(arguments: list[str]) -> int:
    with logging_kept():
        return cli.run(arguments)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A clean run: three messages of a key, the last of them not acknowledged."""
    messages = [("shop", "order-1", number) for number in range(3)]
    with ProducerHistory(tmp_path / "shop.history") as producer:
        producer.sent(messages)
    with ConsumerHistory(tmp_path / "billing.history", "billing") as consumer:
        consumer.delivered(messages, HELD)
        consumer.acknowledged(messages[:2], HELD)
    return tmp_path


def put_wrong(home: Path) -> None:
    """Both acknowledged messages come again, and two are lost."""
    with ConsumerHistory(home / "other.history", "other") as consumer:
        consumer.delivered([("shop", "order-1", 0), ("shop", "order-1", 1)], NEXT)
    with ProducerHistory(home / "shop.history") as producer:
        producer.sent([("shop", "order-1", 3), ("shop", "[red]order-2[/]", 0)])


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    code = run(["check-history", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_clean_run_ends_with_0_and_says_what_it_was_judged_by(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check-history", str(home)]) == 0

    out, err = capsys.readouterr()
    assert out.startswith("no fault: 3 sent, 3 delivered, 0 redelivered, 0 ended, 2 acknowledged\n"), out
    assert [row.split("  ")[0] for row in out.splitlines()[2:]] == [kind.replace("_", " ") for kind in Kind]
    assert err == ""


def test_faults_end_with_1_and_are_shown_with_where_they_were(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_wrong(home)

    assert run(["check-history", str(home)]) == 1

    out = capsys.readouterr().out
    assert out.startswith("4 faults: 5 sent, 5 delivered, 2 redelivered, ")
    assert "[red]order-2[/]" in out
    assert "delivered again after it was acknowledged" in out
    assert "a8" in out


def test_the_document_has_every_count_and_the_examples(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, home) == (
        0,
        {
            "is_clean": True, "sent": 3, "delivered": 3, "redelivered": 0, "ended": 0, "acknowledged": 2,
            "lost": 0, "duplicated": 0, "overtaken": 0, "gap": 0, "two_owners": 0, "unconfirmed": 0, "examples": [],
        },
    )  # fmt: skip

    put_wrong(home)
    code, found = document(capsys, home, "--examples", 1)

    assert (code, found["is_clean"], found["lost"], found["duplicated"]) == (1, False, 2, 2)
    assert [one["kind"] for one in found["examples"]] == ["lost", "duplicated"]
    again = found["examples"][1]
    assert again.pop("at_ns") > 0
    assert again == {
        "kind": "duplicated", "producer": "shop", "key": "order-1", "number": 0, "consumer": "other", "segment": "3",
        "bucket": "1", "attachment": "a8", "why": "delivered again after it was acknowledged",
    }  # fmt: skip


def test_acknowledgements_are_demanded_with_a_flag(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, home, "--acknowledged")

    assert (code, found["lost"]) == (1, 1)


def test_files_may_be_named_one_by_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, home / "shop.history")

    assert (code, found["lost"], found["delivered"]) == (1, 3, 0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nowhere.history",), "nowhere.history does not exist"),
        (("empty",), "empty contains no file *.history"),
        (("broken.history",), "broken.history, line 2 "),
        (("silent.history",), "silent.history: no message was sent or delivered"),
        (("shop.history", "--examples", "-1"), "--examples"),
        ((), "Missing argument"),
    ],
)
def test_a_mistake_is_one_line_and_ends_with_2(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    named: str,
) -> None:
    monkeypatch.chdir(home)
    (home / "empty").mkdir()
    (home / "broken.history").write_text("1\tsent\tp\tk\t0\nnonsense\n")
    (home / "silent.history").touch()

    assert run(["check-history", *arguments]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert named in err
    assert err.count("\n") == 1


def test_every_kind_has_its_line() -> None:
    assert list(_MEANINGS) == list(Kind)
