"""`cleave policy`."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from controller.actions.fields import parse_parameters
from tests.support.command_line import CommandLine

LEVELS = ("cluster", "acme/shop", "topic://acme/shop/orders", "acme/shop/orders")


@pytest.mark.parametrize("level", LEVELS)
def test_a_parameter_is_set_read_and_removed_at_each_level(
    cleave: CommandLine, orders: str, level: str
) -> None:
    written = cleave.json("policy", "set", level, "max_segments=9")
    stored = cleave.json("policy", "get", level)["parameters"]
    effective = {row["parameter"]: row for row in cleave.json("policy", "effective", orders)["parameters"]}
    removed = cleave.json("policy", "remove", level)

    assert written["after"] == stored
    assert stored["max_segments"] == 9
    assert effective["max_segments"]["value"] == 9
    expected = "cluster" if level == "cluster" else "namespace" if level == "acme/shop" else "topic"
    assert effective["max_segments"]["level"] == expected
    assert removed["after"].get("max_segments") in (None, 64)
    assert {row["level"] for row in cleave.json("policy", "effective", orders)["parameters"]} == {"default"}


def test_the_nearest_level_wins_parameter_by_parameter(cleave: CommandLine, orders: str) -> None:
    cleave.ok("policy", "set", "cluster", "max_segments=32", "split_cooldown_seconds=30")
    cleave.ok("policy", "set", "acme/shop", "max_segments=16", "enabled=false")
    cleave.ok("policy", "set", orders, "enabled=true")

    found = {
        row["parameter"]: (row["value"], row["level"])
        for row in cleave.json("policy", "effective", orders)["parameters"]
    }

    assert found["split_cooldown_seconds"] == (30, "cluster")
    assert found["max_segments"] == (16, "namespace")
    assert found["enabled"] == (True, "topic")
    assert found["min_segments"] == (1, "default")


def test_setting_keeps_the_other_parameters_unless_told_to_replace(cleave: CommandLine) -> None:
    cleave.ok("policy", "set", "acme/shop", "max_segments=16", "min_segments=2")

    cleave.ok("policy", "set", "acme/shop", "max_segments=20")
    kept = cleave.json("policy", "get", "acme/shop")["parameters"]
    cleave.ok("policy", "set", "acme/shop", "min_segments=null")
    taken_back = cleave.json("policy", "get", "acme/shop")["parameters"]
    cleave.ok("policy", "set", "acme/shop", "enabled=false", "--replace")

    assert kept == {"max_segments": 20, "min_segments": 2}
    assert taken_back == {"max_segments": 20}
    assert cleave.json("policy", "get", "acme/shop")["parameters"] == {"enabled": False}


@pytest.mark.parametrize(
    ("level", "stores"),
    [
        ("cluster", "UPDATE cleave.cluster_policy SET policy = CAST(:document AS jsonb)"),
        (
            "acme/shop",
            "INSERT INTO cleave.namespace_policy VALUES ('acme/shop', CAST(:document AS jsonb), 1, 'eve')",
        ),
        (
            "acme/shop/orders",
            "UPDATE cleave.topic SET policy = CAST(:document AS jsonb), row_version = row_version + 1",
        ),
    ],
)
def test_a_policy_that_cannot_be_read_is_shown_and_set_right(
    cleave: CommandLine, orders: str, level: str, stores: str
) -> None:
    level = f"topic://{orders}" if level == orders else level
    document = '{"split_msg_rate_in": 1e400, "max_segments": 9}'
    with cleave.store.transaction() as tx:
        tx.execute(text(stores), {"document": document})

    assert cleave.json("policy", "get", level)["parameters"]["split_msg_rate_in"] == 10**400
    assert "split_msg_rate_in = 1000" in cleave.refused("policy", "set", level, "min_segments=2")
    cleave.ok("policy", "set", level, "split_msg_rate_in=null")
    assert cleave.json("policy", "get", level)["parameters"]["max_segments"] == 9
    with cleave.store.transaction() as tx:
        tx.execute(text("DELETE FROM cleave.namespace_policy"))
        tx.execute(text(stores), {"document": document})
    cleave.ok("policy", "remove", level)
    assert cleave.json("policy", "effective", orders)["parameters"]


def test_people_see_what_changed_and_from_what(cleave: CommandLine) -> None:
    said = cleave.ok("policy", "set", "cluster", "max_segments=32", "strict_pulsar=true")

    assert [line.split() for line in said.splitlines()] == [
        [
            "policy",
            "of",
            "cluster:",
            "max_segments",
            "from",
            "64",
            "to",
            "32,",
            "strict_pulsar",
            "from",
            "false",
            "to",
            "true",
        ],
        ["parameter", "was", "value"],
        ["max_segments", "64", "32"],
        ["strict_pulsar", "false", "true"],
    ]


def test_tables_show_the_values_in_force(cleave: CommandLine, orders: str) -> None:
    cleave.ok("policy", "set", "acme/shop", "target_use=0.8125", "overload_tolerance=0.15")
    changed = cleave.ok("policy", "set", "acme/shop", "target_use=0.97")

    assert changed.splitlines()[-1].split() == ["target_use", "0.8125", "0.97"]
    assert _values(cleave.ok("policy", "get", "acme/shop")) == {
        "target_use": 0.97,
        "overload_tolerance": 0.15,
    }
    for way in (("policy", "effective", orders), ("policy", "get", "cluster")):
        in_force = cleave.json(*way)["parameters"]
        if isinstance(in_force, list):
            in_force = {row["parameter"]: row["value"] for row in in_force}
        assert _values(cleave.ok(*way)) == in_force
    history = cleave.ok("policy", "history", "--limit", "1").splitlines()
    assert [line.split()[-2:] for line in history[1:2]] == [["0.8125", "0.97"]]


def _values(table: str) -> dict[str, Any]:
    """Of each parameter, as `policy set` reads it."""
    rows = [line.split() for line in table.splitlines()[2:]]
    return parse_parameters(f"{row[0]}={row[1]}" for row in rows)


@pytest.mark.parametrize("level", LEVELS)
def test_dry_runs_say_what_would_change(cleave: CommandLine, orders: str, level: str) -> None:
    cleave.ok("policy", "set", level, "max_segments=9")

    assert "would have max_segments from 9 to 10" in cleave.rehearsed(
        "policy", "set", level, "max_segments=10"
    )
    assert "would have max_segments from 9 to " in cleave.rehearsed("policy", "remove", level)


def test_parameters_that_do_not_fit_together_are_refused(cleave: CommandLine, orders: str) -> None:
    """Valid alone, wrong with the level above; a dry run says so too."""
    cleave.ok("policy", "set", "cluster", "min_segments=4")

    for level in ("acme/shop", orders):
        assert "max_segments = 3 must be >= min_segments = 4" in cleave.refused(
            "policy", "set", level, "max_segments=3"
        )
        cleave.refused("policy", "set", level, "max_segments=3", "--dry-run")
