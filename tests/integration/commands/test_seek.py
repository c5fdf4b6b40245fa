"""Seeks of a subscription."""

from __future__ import annotations

from tests.support.command_line import CommandLine


def test_a_subscription_begins_again_and_skips(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    again = cleave.json("subscriptions", "seek", orders, "billing", "earliest")
    skipped = cleave.json("subscriptions", "seek", orders, "billing", "latest", "--reason", "old news")

    assert [(one["kind"], one["state"]) for one in (again, skipped)] == [("seek", "done")] * 2
    assert [row["reason"] for row in cleave.json("operations", "--topic", orders)][:1] == ["old news"]


def test_a_dry_run_shows_the_cursors_and_moves_none(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    said = cleave.rehearsed("subscriptions", "seek", orders, "billing", "2026-11-22T10:00:00Z")
    shown = cleave.json("subscriptions", "seek", orders, "billing", "latest", "--dry-run")

    assert "billing would go to the first message published at 2026-11-22T10:00:00.000Z or later" in " ".join(
        said.split()
    )
    assert shown["cursors"] == [
        {
            "segment_id": number,
            "range_start": number * 0x8000,
            "is_sealed": False,
            "is_drained": False,
            "backlog": 0,
            "readers": [],
        }
        for number in (0, 1)
    ]


def test_one_that_waits_is_given_up(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")
    cleave.ok("subscriptions", "seek", orders, "billing", "latest", "--no-wait")

    assert "would cancel 1 seek" in cleave.rehearsed("subscriptions", "cancel-seek", orders, "billing")
    [given_up] = cleave.json("subscriptions", "cancel-seek", orders, "billing", "--reason", "the wrong one")[
        "operations"
    ]

    assert (given_up["kind"], given_up["state"]) == ("seek", "aborted")
    assert "nothing to cancel" in cleave.refused("subscriptions", "cancel-seek", orders, "billing")
    assert "Missing argument 'TO'" in cleave.refused("subscriptions", "seek", orders, "billing")


def test_what_cannot_be_sought_is_refused(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    assert "write earliest, latest" in cleave.refused("subscriptions", "seek", orders, "billing", "yesterday")
    assert "nothing" in cleave.refused("subscriptions", "seek", orders, "nothing", "latest", "--dry-run")
    assert "release_seconds=-1.0: input should be greater than or equal to 0" in cleave.refused(
        "subscriptions", "seek", orders, "billing", "latest", "--release-seconds", "-1"
    )
