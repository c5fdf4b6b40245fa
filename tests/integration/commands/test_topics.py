"""`cleave topics`."""

from __future__ import annotations

import io

import pytest

from tests.support.command_line import CommandLine


def test_a_topic_is_created_listed_shown_and_deleted(cleave: CommandLine) -> None:
    created = cleave.json(
        "topics", "create", "acme/shop/orders", "--segments", "2", "--properties", "team=blue"
    )
    listed = cleave.json("topics", "list")
    shown = cleave.json("topics", "show", "topic://acme/shop/orders")
    deleted = cleave.json("topics", "delete", "acme/shop/orders", "--yes")

    assert (created["kind"], created["state"], created["actor"]) == ("create", "done", "ada")
    assert created["children"] == [0, 1]
    assert [(row["topic"], row["state"]) for row in listed] == [("topic://acme/shop/orders", "live")]
    assert [(row["segment_id"], row["hash_range"], row["state"]) for row in shown["segments"]] == [
        (0, "0000-7fff", "ACTIVE"),
        (1, "8000-ffff", "ACTIVE"),
    ]
    assert shown["properties"] == {"team": "blue"}
    assert (deleted["kind"], deleted["state"]) == ("delete", "done")
    assert cleave.json("topics", "list") == []


def test_people_get_tables(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    listed, shown = cleave.ok("topics", "list"), cleave.ok("topics", "show", orders)

    assert listed.splitlines()[0].split() == ["topic", "state", "epoch", "data", "plane"]
    assert shown.startswith(f"topic://{orders}: live, epoch 0, 2 active segments, embedded\n")
    assert "billing" in shown


def test_a_range_that_begins_with_a_letter_is_printed(cleave: CommandLine, orders: str) -> None:
    """Such a range looks like markup to the library that draws the tables."""
    said = cleave.ok("segments", "split", orders, "1")

    assert "3 [c000-ffff]" in said


def test_nothing_is_said_where_nothing_is(cleave: CommandLine) -> None:
    assert cleave.ok("topics", "list") == "nothing found\n"


def test_a_list_is_by_name_limited_and_a_prefix_is_taken_as_it_stands(cleave: CommandLine) -> None:
    names = [f"acme/shop/{name}" for name in ("B", "a", "ab", "b%", "b_")]
    for name in [*names, "acme/other/a"]:
        cleave.ok("topics", "create", name, "--no-wait")

    def listed(*options: str) -> list[str]:
        return [row["topic"].removeprefix("topic://") for row in cleave.json("topics", "list", *options)]

    assert listed("--namespace", "acme/shop") == sorted(names)
    assert listed("--prefix", "acme/shop/b") == sorted(names[3:])
    assert listed("--prefix", "acme/shop/b%") == ["acme/shop/b%"]
    assert listed("--limit", "2") == ["acme/other/a", "acme/shop/B"]
    assert "greater than or equal to 1" in cleave.refused("topics", "list", "--limit", "0")


def test_without_waiting_the_intent_is_in_the_journal(cleave: CommandLine) -> None:
    created = cleave.json("topics", "create", "acme/shop/orders", "--no-wait", "--reason", "a new shop")

    assert created["state"] == "intended"
    (journalled,) = cleave.json("operations", "--live")
    assert (journalled["operation_id"], journalled["reason"]) == (created["operation_id"], "a new shop")


def test_dry_runs_say_what_would_happen(cleave: CommandLine, orders: str) -> None:
    created = cleave.rehearsed("topics", "create", "acme/shop/returns", "--segments", "4")
    deleted = cleave.rehearsed("topics", "delete", orders)

    assert created.startswith("topic://acme/shop/returns: create would create 0 [0000-3fff], 1 [4000-7fff]")
    assert "c000-ffff" in created
    assert deleted.startswith(f"topic://{orders} would lose 2 segments and all their messages\n")


def test_a_dry_run_refuses_what_the_real_run_would(cleave: CommandLine, orders: str) -> None:
    assert "exists" in cleave.refused("topics", "create", orders, "--dry-run")
    assert "'paper' is not configured" in cleave.refused(
        "topics", "create", "acme/shop/returns", "--data-plane", "paper", "--dry-run"
    )


def test_a_deletion_that_is_not_confirmed_does_not_happen(
    cleave: CommandLine, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))

    answer = cleave("topics", "delete", orders, "--json")

    assert (answer.code, answer.out.strip()) == (1, "")
    assert "with all its segments and messages?" in answer.err
    assert answer.err.endswith("cleave: stopped\n")
    assert [row["state"] for row in cleave.json("topics", "list")] == ["live"]
