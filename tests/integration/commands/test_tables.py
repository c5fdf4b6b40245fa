"""What every command prints, for people in a terminal of 80 columns and for programs with one vocabulary."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from controller import command_output
from tests.integration.commands.test_reader import READING
from tests.support.command_line import CommandLine

OTHER_KEYS = {
    "segments": "the segments of a topic or a layout",
    "parameters": "the parameters of a level, or in force",
    "subscriptions": "the subscriptions of a topic",
    "creates": "the segments an operation makes, with their ranges",
    "earlier": "the sealed segments that hold earlier messages of a key",
    "key": "a message's key",
    "segment_hash": "its hash, in hexadecimal",
    "dry_run": "whether nothing was changed",
    "check": "what doctor looked at",
    "finding": "what it found",
    "how_far": "a refusal's figures as one sentence",
    "result": "an action or a refusal",
}
"""Keys that no view of schema inspect has, and what they are."""


@pytest.fixture
def past(cleave: CommandLine, orders: str) -> str:
    """A topic with operations, decisions, a policy, a subscription and a consumer."""
    cleave.ok("subscriptions", "create", orders, "billing")
    cleave.ok("consumers", "register", orders, "billing", "reader-of-the-first-shop")
    cleave.ok(
        "segments", "split", orders, "0", "--reason", "the customers of one shop filled a whole segment"
    )
    cleave.ok("policy", "set", orders, "max_segments=16")
    cleave.execute(
        """INSERT INTO cleave.decision (topic_id, lanes, decided_by, epoch, input_version, situation, decisions, refusals, code_version)
           SELECT topic_id, '{load,merge}', 'worker host-17-abcdef', 1, 1, '{}',
                  '[{"kind": "split", "segment_id": 1, "at": [], "reason": "msgRateIn"}]',
                  '[{"lane": "load", "segment_id": 1, "reason": "would-idle-consumer", "metric": "msg_rate_in", "value": 22123.5, "needed": 10000},
                    {"lane": "merge", "segment_id": 2, "other_id": 3, "reason": "merge-cooldown", "metric": "last_merge_at",
                     "value": 1763823000000, "needed": 1763823300000, "not_before": 1763823300000}]',
                  'test' FROM cleave.topic"""
    )
    return orders


@pytest.fixture
def eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of the usual width."""
    monkeypatch.setattr(command_output.console, "_width", 80)


def whole_words(document: Any) -> set[str]:
    """What a reader copies from a table: ids of ranges and states, names, reasons' words."""
    found = re.findall(
        r'"(?:hash_range|state|kind|parameter|level|subscription|consumer|data_plane)": "([^" ]+)"', document
    )
    return set(found)


@pytest.mark.parametrize("command", [one for one in READING if "--metadata" not in one], ids=" ".join)
def test_tables_fit_eighty_columns_and_break_no_value(
    cleave: CommandLine, past: str, eighty: None, command: tuple[str, ...]
) -> None:
    words = [past if word == "TOPIC" else word for word in command]

    said = cleave.ok(*words)

    assert [line for line in said.splitlines() if len(line) > 80] == []
    shown = whole_words(cleave.ok(*words, "--json"))
    if command[0] in ("layout", "topics", "key", "policy", "subscriptions"):
        assert [word for word in shown if word not in said] == []


def test_what_is_too_wide_even_so_is_one_block_a_row(cleave: CommandLine, eighty: None) -> None:
    name = "acme/" + "n" * 40 + "/" + "t" * 40
    cleave.ok("topics", "create", name)

    said = cleave.ok("topics", "list")

    assert [line for line in said.splitlines() if len(line) > 80] == []
    assert [line.split()[0] for line in said.splitlines() if line and not line.startswith(" ")] == [
        "topic", "state", "epoch", "data"
    ]  # fmt: skip


def test_times_say_their_zone(cleave: CommandLine, past: str) -> None:
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", cleave.ok("subscriptions", "list", past))
    said = " ".join(cleave.ok("decisions", "refusals", "--topic", past).split())
    assert "last_merge_at 2025-11-22 14:50:00Z, needs 2025-11-22 14:55:00Z" in said
    [refusal] = [row for row in cleave.json("decisions", "refusals") if row["lane"] == "merge"]
    assert refusal["value_at"] == "2025-11-22T14:50:00+00:00"


def keys_of(document: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, however deep, but for what a person may name: properties, parameters, situations."""
    if isinstance(document, list):
        for one in document:
            yield from keys_of(one)
    elif isinstance(document, dict):
        for key, value in document.items():
            yield key, value
            are_named_parameters = key == "parameters" and isinstance(value, dict)
            if (
                key not in ("properties", "situation", "decisions", "refusals", "policy")
                and not are_named_parameters
            ):
                yield from keys_of(value)


def kind_of(value: Any) -> str:
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


def test_the_keys_of_json_are_one_vocabulary_and_numbers_are_numbers(cleave: CommandLine, past: str) -> None:
    with cleave.store.transaction() as tx:
        columns = set(
            tx.exec_driver_sql(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = 'inspect'"
            ).scalars()
        )
    kinds: dict[str, set[str]] = defaultdict(set)
    for command in READING:
        words = [past if word == "TOPIC" else word for word in command]
        if "--metadata" in words or words[:2] == ["policy", "get"]:  # keys of PIP-468, and of parameters
            continue
        for key, value in keys_of(cleave.json(*words)):
            if value is not None:
                kinds[key].add(kind_of(value))

    assert set(kinds) - columns - set(OTHER_KEYS) == set()
    # The value of a parameter, or what a refusal was measured by; parameters of an operation by name, and names of a candidate's.
    assert {key: found for key, found in kinds.items() if len(found) > 1} == {
        "value": {"number", "bool", "str"},
        "parameters": {"dict", "list"},
    }
    assert [key for key, found in kinds.items() if key.endswith("_seconds") and found != {"number"}] == []
