"""`cleave topics recover` on a database that is older than the logs, asked directly and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.services.segment_admin import splitting
from tests.support.bench import Bench
from tests.support.command_line import CommandLine
from tests.support.older_journal import Backups, lost_child, unread_by_log
from tests.support.over_http import OverHttp, serving

TOPIC = "acme/shop/orders"


@pytest.fixture
def topic(bench: Bench) -> None:
    """A topic of one segment with messages that nobody has read."""
    bench.topic_with()
    bench.publish(0, 4)


@pytest.fixture(params=["direct", "http"])
def command_on(
    request: pytest.FixtureRequest,
    cleave: CommandLine,
    database: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Callable[[str], CommandLine]]:
    """`cleave` on the journal of a URL, with the logs of the test's database."""
    monkeypatch.delenv("LOGNAME", raising=False)  # Python prefers it to USER
    with ExitStack() as stack:

        def on(url: str) -> CommandLine:
            monkeypatch.setenv("CLEAVE_DATABASE_URL", url)
            monkeypatch.setenv("CLEAVE_EMBEDDED_URL", database)
            direct = CommandLine(url, capsys)
            stack.callback(direct.store.dispose)
            if request.param == "direct":
                return direct
            server = stack.enter_context(serving(url, tmp_path, embedded_url=database))
            return OverHttp(direct, capsys, monkeypatch, server)

        yield on


@pytest.mark.usefixtures("topic")
def test_a_topic_whose_logs_are_ahead_is_recovered(
    bench: Bench, backups: Backups, command_on: Callable[[str], CommandLine]
) -> None:
    backup = backups.take()
    bench.reshape(splitting(0))
    bench.publish(1, 5)
    ranges, unread, epoch = [str(s.hash_range) for s in bench.layout.active], unread_by_log(bench), 1
    backups.restore(backup)
    cleave = command_on(backup)

    would = cleave.rehearsed("topics", "recover", TOPIC)
    assert would.startswith(f"topic://{TOPIC}: epoch 0, 1 finding(s)\n")
    assert "logs-ahead" in would
    recovered = cleave.json("topics", "recover", TOPIC)

    assert (recovered["topic"], recovered["held_reason"]) == (f"topic://{TOPIC}", None)
    assert recovered["epoch"] > epoch
    [finding] = recovered["findings"]
    assert (finding["kind"], finding["error"]) == ("logs-ahead", None)
    assert "are ahead of the journal" in finding["reason"]
    assert [str(s.hash_range) for s in bench.layout.active] == ranges
    assert unread_by_log(bench) == unread
    assert cleave.column("SELECT actor FROM inspect.layout_changes WHERE kind = 'recover'") == ["ada"]
    again = cleave.json("topics", "recover", TOPIC)
    assert (again["findings"], again["epoch"]) == ([], recovered["epoch"])


@pytest.mark.usefixtures("topic")
def test_a_topic_that_stays_held_ends_in_one_line_with_the_reason(
    bench: Bench, command_on: Callable[[str], CommandLine], database: str
) -> None:
    log = lost_child(bench)
    cleave = command_on(database)

    cleave.rehearsed("topics", "recover", TOPIC)
    answer = cleave("topics", "recover", TOPIC, "--json")

    assert answer.code == 1
    assert answer.err.startswith(
        f"cleave: nothing acts on topic://{TOPIC}: the logs are ahead of the journal"
    )
    assert "still accepts appends; see docs/runbook/CleaveTopicHeld.md\n" in answer.err
    assert answer.err.count("\n") == 1
    assert log in json.loads(answer.out)["held_reason"]
    refused = cleave.refused("segments", "split", TOPIC, "0", code=75)
    assert f"see `cleave topics recover topic://{TOPIC} --dry-run`" in refused

    bench.plane.delete_segment(log)
    assert cleave.json("topics", "recover", TOPIC)["held_reason"] is None


def test_a_topic_that_the_backup_lacks_needs_its_data_plane(
    bench: Bench, backups: Backups, command_on: Callable[[str], CommandLine]
) -> None:
    backup = backups.take()
    bench.topic_with()
    bench.publish(0, 4)
    bench.reshape(splitting(0))
    ranges, unread = [str(s.hash_range) for s in bench.layout.active], unread_by_log(bench)
    backups.restore(backup)
    cleave = command_on(backup)

    assert "name the data plane" in cleave.refused("topics", "recover", TOPIC)
    assert "no log of topic" in cleave.refused(
        "topics", "recover", "acme/shop/none", "--data-plane", "embedded"
    )
    assert "not configured here" in cleave.refused("topics", "recover", TOPIC, "--data-plane", "nowhere")
    would = cleave.rehearsed("topics", "recover", TOPIC, "--data-plane", "embedded")
    assert would.startswith(f"topic://{TOPIC}: not in the database, 1 finding(s)\n")
    recovered = cleave.json("topics", "recover", TOPIC, "--data-plane", "embedded")

    assert recovered["held_reason"] is None
    assert [str(s.hash_range) for s in bench.layout.active] == ranges
    assert unread_by_log(bench) == unread


@pytest.mark.usefixtures("topic")
def test_a_topic_whose_broker_keeps_the_layout_has_nothing_to_recover(
    bench: Bench, cleave: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CLEAVE_PULSAR_SERVICE_URL", "pulsar://127.0.0.1:1")
    bench.execute("UPDATE cleave.topic SET data_plane = 'pulsar_scalable', row_version = row_version + 1")

    assert "the broker keeps the layout" in cleave.refused("topics", "recover", TOPIC)
