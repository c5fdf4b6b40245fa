"""Each verb that goes both ways prints the same, whether it asks the database or `cleave serve`: tables and documents."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from controller.entrypoints.reach.verbs import BOTH_WAYS
from tests.support.command_line import CommandLine
from tests.support.over_http import OverHttp

TOPIC = "acme/shop/orders"
AGES = ("age_seconds",)
"""They are another a moment later."""
LOOKS = (
    "topics list",
    "topics list --namespace acme/shop --limit 1",
    "topics list --prefix acme/other",
    f"topics show {TOPIC}",
    f"layout {TOPIC}",
    f"layout {TOPIC} --at 0",
    f"layout {TOPIC} --metadata",
    f"lineage {TOPIC}",
    f"lineage {TOPIC} 2",
    f"key {TOPIC} customer-7",
    f"key {TOPIC} customer-7 --at 0",
    "operations",
    f"operations --topic {TOPIC} --limit 2",
    "operations --live",
    "operations --stuck",
)
REHEARSALS = (
    f"topics create {TOPIC}-2 --segments 3 --property team=blue",
    f"topics delete {TOPIC}",
    f"segments split {TOPIC} 1 --parts 3",
    f"segments split {TOPIC} 1 --at 0xc000",
    f"segments merge {TOPIC} 3 1",
    f"segments rebucket {TOPIC} 1 3",
)
CHANGES = (
    "topics create {topic} --segments 3 --property team=blue",
    "segments split {topic} 1",
    "segments merge {topic} 3 4",
    "segments rebucket {topic} 0 2",
    "topics delete {topic} --yes",
)
"""One after the other, on a topic of each way."""
REFUSED = (
    "topics show acme/shop/none",
    "topics create acme/shop/orders",
    "topics delete acme/shop/none --yes",
    "layout acme/shop/none",
    f"layout {TOPIC} --at 99",
    f"lineage {TOPIC} 99",
    "key acme/shop/none k",
    "operations --topic acme/shop/none",
    f"segments split {TOPIC} 0",
    f"segments split {TOPIC} 99",
    f"segments split {TOPIC} 1 --at 0x9000 --parts 2",
    f"segments merge {TOPIC} 1 1",
    f"segments rebucket {TOPIC} 0 2",
    "segments split acme/shop/none 0",
)
"""What can never be done; segment 0 is sealed."""


@pytest.fixture
def fleet(cleave: CommandLine) -> None:
    """A topic of which segment 0 was split into 2 and 3, with a subscription; another one; and one that nobody makes."""
    cleave.ok("topics", "create", TOPIC, "--segments", "2", "--property", "team=blue")
    cleave.ok("subscriptions", "create", TOPIC, "billing")
    cleave.ok("segments", "split", TOPIC, "0", "--reason", "more room")
    cleave.ok("topics", "create", "acme/other/stock")
    cleave.ok("topics", "create", "acme/shop/waits", "--no-wait")


def test_each_verb_that_goes_both_ways_is_tried_both_ways() -> None:
    lines = (*LOOKS, *REHEARSALS, *CHANGES)

    assert {verb for verb in BOTH_WAYS for line in lines if f"{line} ".startswith(f"{verb} ")} == BOTH_WAYS


@pytest.mark.usefixtures("fleet")
def test_each_look_prints_the_same(cleave: CommandLine, http: OverHttp) -> None:
    for line in LOOKS:
        assert _ageless(http.ok(*line.split())) == _ageless(cleave.ok(*line.split())), line
        there, here = http.ok(*line.split(), "--json"), cleave.ok(*line.split(), "--json")
        assert _without_age(json.loads(there)) == _without_age(json.loads(here)), line
        assert _keys(there) == _keys(here), line


@pytest.mark.usefixtures("fleet")
def test_each_rehearsal_prints_the_same_and_changes_nothing(cleave: CommandLine, http: OverHttp) -> None:
    for line in REHEARSALS:
        for form in ((), ("--json",)):
            asked = (*line.split(), *form)
            assert http.rehearsed(*asked) == cleave.rehearsed(*asked), line


def test_each_change_is_made_and_prints_the_same(cleave: CommandLine, http: OverHttp) -> None:
    for line in CHANGES:
        said = []
        for way, topic in ((cleave, "acme/shop/here"), (http, "acme/shop/hier")):
            document = way.json(*line.format(topic=topic).split())
            assert (document["state"], document["actor"]) == ("done", "ada"), line
            said.append(json.dumps(_without(document, "operation_id", "origin")).replace(topic, "TOPIC"))
        assert said[0] == said[1], line
    origins = {row["topic"]: row["origin"] for row in cleave.json("operations")}
    assert origins == {"topic://acme/shop/here": "manual", "topic://acme/shop/hier": "api"}


@pytest.mark.usefixtures("fleet")
def test_each_refusal_is_the_same_line(cleave: CommandLine, http: OverHttp) -> None:
    for line in REFUSED:
        assert http.refused(*line.split()) == cleave.refused(*line.split()), line


def _ageless(table: str) -> str:
    """Without how old something was when it was asked for, and the widths that come of it."""
    return re.sub(r"[ \d.,]+", " ", table) if "age" in table else table


def _without_age(document: Any) -> Any:
    return [_without(one, "age_seconds") for one in document] if isinstance(document, list) else document


def _without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def _keys(text: str) -> list[str]:
    """Of the document, in their order."""
    return re.findall(r'"(\w+)":', text)
