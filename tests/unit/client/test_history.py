"""Histories as files: what is written is read back, whatever a kill left of the last line; other files are refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from controller.client.history import (
    Attachment,
    ConsumerHistory,
    Event,
    ProducerHistory,
    Readings,
    Record,
    SeekHistory,
    history_files,
    read_history,
)
from controller.domain.errors import InvalidInput

HELD = Attachment(3, 1, "a7")


def test_every_event_is_read_back_with_who_and_when(tmp_path: Path) -> None:
    before = time.monotonic_ns()
    with ProducerHistory(tmp_path / "p") as producer:
        producer.sent([("p", "größe", 0), ("p", "größe", 1)])
    with ConsumerHistory(tmp_path / "c", "c1") as consumer:
        for note in (
            consumer.delivered,
            consumer.begun,
            consumer.ended,
            consumer.acknowledged,
            consumer.failed,
        ):
            note([("p", "größe", 0)], HELD)
    with SeekHistory(tmp_path / "s") as asker, asker.seek():
        pass

    records = list(read_history(tmp_path / "p", tmp_path / "c", tmp_path / "s"))

    assert [one.event for one in records] == [Event.SENT, *Event]
    assert [one[2:5] for one in records[:7]] == [("p", "größe", number) for number in (0, 1, 0, 0, 0, 0, 0)]
    assert {one[5:] for one in records[:2]} == {("", "", "", "")}
    assert {one[5:] for one in records[2:7]} == {("c1", "3", "1", "a7")}
    assert {one[2:] for one in records[7:]} == {("", "", 0, "", "", "", "")}
    instants = [before, *(one.at_ns for one in records), time.monotonic_ns()]
    assert instants == sorted(instants)


def test_the_line_is_as_documented(tmp_path: Path) -> None:
    with ConsumerHistory(tmp_path / "c", "c1") as consumer:
        consumer.begun([("p", "k", 5)], HELD)

    at_ns, rest = (tmp_path / "c").read_text().split("\t", 1)
    assert at_ns.isdecimal()
    assert rest == "begun\tp\tk\t5\tc1\t3\t1\ta7\n"


def test_a_closed_history_is_closed_again_without_effect_and_enters_no_block(tmp_path: Path) -> None:
    history = ProducerHistory(tmp_path / "p")
    history.close()
    with (tmp_path / "other").open("w") as other:  # it may have the number of the closed file
        history.close()

        with pytest.raises(InvalidInput, match="ProducerHistory was closed; make another one"), history:
            pass
        other.write("is open")


def test_a_seek_that_failed_may_still_come_about(tmp_path: Path) -> None:
    with SeekHistory(tmp_path / "s") as asker, suppress(OSError), asker.seek():
        raise OSError

    assert [one.event for one in read_history(tmp_path / "s")] == [Event.SEEKING]


def test_names_may_hold_whatever_breaks_lines(tmp_path: Path) -> None:
    keys = ["a\tb", "a\nb", "a\rb", "a\\tb", "a\u2028b", "\udcff"]
    with ProducerHistory(tmp_path / "p") as producer:
        producer.sent([("p", key, 0) for key in keys])

    read = [one.key for one in read_history(tmp_path / "p")]

    assert len(set(read)) == len(keys)
    assert read[0] == "a\\tb"


@pytest.mark.parametrize("torn", ["123", "123\tsent\tp", "123\tsent\tp\tk\t1", "123\tsent\tp\tgr\u00f6"])
def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "p"
    with ProducerHistory(path) as producer:
        producer.sent([("p", "k", 0)])
    with path.open("ab") as cut:
        cut.write(torn.encode()[:-1] if torn.endswith("ö") else torn.encode())

    assert [one.number for one in read_history(path)] == [0]

    with ProducerHistory(path) as successor:
        successor.sent([("p", "k", 1)])
    assert [one.number for one in read_history(path)] == [0, 1]


def test_of_a_file_that_is_one_torn_line_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"1" * 200_000)

    ProducerHistory(path).close()

    assert path.read_bytes() == b""


def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from controller.client.history import ProducerHistory\n"
        "history = ProducerHistory(pathlib.Path(sys.argv[1]))\n"
        "history.sent([('p', 'k', number) for number in range(1000)]); print('written', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "p"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        os.kill(process.pid, signal.SIGKILL)

    assert [one.number for one in read_history(tmp_path / "p")] == list(range(1000))


def line(text: str) -> bytes:
    return text.replace(" ", "\t").encode() + b"\n"


@pytest.mark.parametrize(
    "wrong",
    [
        line(""),
        line("1 sent p k"),
        line("1 sent p k 0 c 0 0 1"),
        line("1 sent p k x"),
        line("1 sent p k -1"),
        line("1 sent p k 1_0"),
        line("x sent p k 0"),
        line("1.5 sent p k 0"),
        line("1 eaten p k 0"),
        line("1 begun p k 0"),
        line("1 begun p k 0 c 0 0"),
        line("1 begun p k 0  0 0 1"),
        line("1 sent"),
        line("1 seeking p k 0"),
        line("x sought"),
        line("1 begun p k 0 c 0 0 "),
        line(f"1 sent p k {10**18}"),
        line(f"{10**18} sent p k 0"),
        b"\x7fELF\x00\xff\n",
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, wrong: bytes) -> None:
    path = tmp_path / "p.history"
    path.write_bytes(line("1 sent p k 0") + wrong + line("1 sent p k 1"))

    with pytest.raises(InvalidInput, match=r"p\.history, line 2 "):
        list(read_history(path))


def test_a_directory_stands_for_the_histories_in_it(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    for path in (tmp_path / "b.history", inner / "a.history", tmp_path / "b.log"):
        path.touch()
    other = tmp_path / "other"
    other.touch()

    assert history_files([tmp_path, tmp_path / "b.history", other]) == [
        tmp_path / "b.history",
        inner / "a.history",
        other,
    ]


def test_what_holds_no_history_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere does not exist"):
        history_files([tmp_path / "nowhere"])
    with pytest.raises(InvalidInput, match="contains no file"):
        history_files([tmp_path])
    with pytest.raises(InvalidInput, match="nowhere"):
        list(read_history(tmp_path / "nowhere"))


def test_a_new_reading_of_a_segment_is_a_new_attachment() -> None:
    readings, first, second = Readings(), object(), object()

    one = readings.attachment(4, "0000-7fff", first)
    assert readings.attachment(4, "0000-7fff", first) == one
    assert one.segment == 4
    other = readings.attachment(4, "0000-7fff", second)
    elsewhere = readings.attachment(4, "8000-ffff", second)
    assert elsewhere not in (one, other)
    assert other != one
    assert Readings().attachment(4, "0000-7fff", second) not in (one, other)


def test_a_record_of_a_producer_has_no_owner() -> None:
    assert Record(1, Event.SENT, "p", "k", 0)[5:] == ("", "", "", "")
