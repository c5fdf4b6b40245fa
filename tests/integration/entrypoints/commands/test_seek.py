"""`cleave seek`."""

from __future__ import annotations

from tests.support.command_line import CommandLine


def test_a_subscription_begins_again_and_skips(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    again = cleave.json("seek", orders, "billing", "--to", "earliest")
    skipped = cleave.json("seek", orders, "billing", "--to", "latest", "--reason", "old news")

    assert [(one["kind"], one["state"]) for one in (again, skipped)] == [("seek", "done")] * 2
    assert [row["reason"] for row in cleave.json("operations", "--topic", orders)][:1] == ["old news"]


def test_a_dry_run_shows_the_cursors_and_moves_none(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    said = cleave.rehearsed("seek", orders, "billing", "--to", "2026-11-22T10:00:00Z")
    shown = cleave.json("seek", orders, "billing", "--to", "latest", "--dry-run")

    assert "billing would go to the first message published at 1795341600000 ms or later" in " ".join(
        said.split()
    )
    assert shown["cursors"] == [
        {"segment_id": number, "state": "ACTIVE", "is_drained": False, "backlog": 0, "readers": []}
        for number in (0, 1)
    ]


def test_one_that_waits_is_given_up(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")
    cleave.ok("seek", orders, "billing", "--to", "latest", "--no-wait")

    assert "billing" not in cleave.rehearsed("seek", orders, "billing", "--give-up")
    [given_up] = cleave.json("seek", orders, "billing", "--give-up", "--reason", "the wrong one")

    assert (given_up["kind"], given_up["state"]) == ("seek", "aborted")
    assert "nothing to give up" in cleave.refused("seek", orders, "billing", "--give-up")
    for options in (("--to", "latest", "--give-up"), ()):
        assert "--give-up to give up" in cleave.refused("seek", orders, "billing", *options)


def test_what_cannot_be_sought_is_refused(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    assert "write earliest, latest" in cleave.refused("seek", orders, "billing", "--to", "yesterday")
    assert "nothing" in cleave.refused("seek", orders, "nothing", "--to", "latest", "--dry-run")
    assert "no time for consumers" in cleave.refused(
        "seek", orders, "billing", "--to", "latest", "--release-seconds", "-1"
    )
