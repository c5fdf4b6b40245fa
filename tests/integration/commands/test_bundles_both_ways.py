"""Bundles are looked at and acted on alike, whether the database is asked or `cleave serve`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import command_output
from tests.support.bundle_operator import HIGH, LOW, NAMESPACE, TOPICS, BundleOperator, bundle_operator
from tests.support.over_http import OverHttp, serving

LOOKS = (
    "bundles show",
    f"bundles show {NAMESPACE}",
    "bundles show --limit 1",
    "bundles proposals",
    f"bundles proposals {NAMESPACE} --state proposed --cycle 1",
    "bundles proposals --state refused --state applied",
    "bundles proposals --limit 1",
    "bundles brokers",
    f"bundles hash {TOPICS[0]}",
    "bundles hash somewhere",
    "bundles merges",
    f"bundles merges {NAMESPACE}",
    f"bundles policy {NAMESPACE}",
    "bundles replay 1",
)
CHANGES = (
    f"bundles mode {NAMESPACE} approval",
    "approvals approve {approval} --level cluster",
    f"bundles set-policy {NAMESPACE} max_topics=500",
    f"bundles set-policy {NAMESPACE} max_topics=null cooldown_seconds=60",
    f"bundles set-policy {NAMESPACE} max_topics=400 --replace",
    f"bundles set-policy {NAMESPACE} --replace",
    f"bundles unload {LOW} --destination {{broker}}",
    f"bundles split {LOW} --parts 4",
    f"bundles split {HIGH} --positions 0xc0000000 --unload",
)
"""Each is rehearsed both ways, and then done: over HTTP, or by the database, one after the other."""
REFUSED = (
    "bundles show acme/none",
    "bundles hash persistent://only/two",
    "bundles merges acme/none",
    "bundles policy acme/none",
    "bundles set-policy acme/none max_topics=3",
    "bundles policy nonsense",
    "bundles set-policy nonsense",
    "bundles mode nonsense approval",
    f"bundles mode {NAMESPACE} sometimes",
    "approvals approve first",
    f"bundles set-policy {NAMESPACE} max_topics=-1",
    f"bundles set-policy {NAMESPACE} msg_rate_per_second=NaN",
    f"bundles set-policy {NAMESPACE} colour=red",
    "bundles mode acme/none approval",
    "approvals approve 99 --level cluster",
    "approvals reject 1 --level acme/shop",
    "bundles replay 99",
    f"bundles unload {LOW} --destination nobody:1",
    "bundles unload nonsense",
    f"bundles split {LOW} --positions 0x0",
    f"bundles split {LOW} --algorithm no_such_divide",
    "bundles split acme/none/HOT",
    "bundles split LARGEST",
    f"bundles split {NAMESPACE}/0x00000000_0x70000000",
)
"""While the namespace is in dry run."""


@pytest.fixture
def both(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[BundleOperator, OverHttp]]:
    """A operator with one cycle on record, and the command over HTTP on a server of the same cluster."""
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setattr(command_output.console, "width", 1_000)  # so that no line break depends on an age
    with bundle_operator(database, tmp_path, capsys, monkeypatch) as operator:
        settings = {
            name: os.environ[f"CLEAVE_{name.upper()}"]
            for name in ("pulsar_admin_url", "pulsar_cluster", "bundle_balance", "bundle_reports_url")
        }
        with serving(database, tmp_path, **settings) as server:
            operator.uneven()
            assert operator.cleave.json("bundles", "propose")["proposals"]
            yield operator, OverHttp(operator.cleave, capsys, monkeypatch, server)


def test_each_look_at_bundles_prints_the_same(both: tuple[BundleOperator, OverHttp]) -> None:
    operator, http = both
    for line in LOOKS:
        for form in ((), ("--json",)):
            there, here = (_ageless(way.ok(*line.split(), *form)) for way in (http, operator.cleave))
            assert there == here, line
    assert len(json.loads(http.ok("bundles", "show", "--json"))) == 2
    assert len(json.loads(http.ok("bundles", "brokers", "--json"))) == 2


def test_each_refusal_is_the_same_line(both: tuple[BundleOperator, OverHttp]) -> None:
    operator, http = both
    before = http.rows()
    for line in REFUSED:
        here = operator.cleave(*line.split())
        assert http(*line.split()) == here, line
        assert (here.code, here.out, here.err.count("\n")) == (2, "", 1), line
    assert http.rows() == before
    assert operator.bench.cluster.acts == []


@pytest.mark.parametrize("over_http", [True, False], ids=["over-http", "beside-the-database"])
def test_each_act_is_rehearsed_alike_and_done(both: tuple[BundleOperator, OverHttp], over_http: bool) -> None:
    operator, http = both
    way = http if over_http else operator.cleave
    named = {
        "broker": operator.bench.cluster.brokers[1],
    }
    done = []
    for line in CHANGES:
        waiting = operator.cleave.json("approvals", "list")
        asked = line.format(**named, approval=waiting[0]["approval_id"] if waiting else "").split()
        before, acts = http.rows(), list(operator.bench.cluster.acts)
        for form in ((), ("--json",)):
            rehearsed = (*asked, "--dry-run", *form)
            assert _ageless(http.ok(*rehearsed)) == _ageless(operator.cleave.ok(*rehearsed)), line
        assert (http.rows(), operator.bench.cluster.acts) == (before, acts), line
        done.append(way.json(*asked))

    mode, answers, *policies, unloaded, first, second = done
    [answer] = answers["approvals"]
    assert (mode["mode"], answer["state"]) == ("approval", "approved")
    assert [one["overrides"] for one in policies] == [
        {"max_topics": 500},
        {"cooldown_seconds": 60},
        {"max_topics": 400},
        {},
    ]
    assert (unloaded["owner"], unloaded["outcome"]) == (named["broker"], "done")
    assert ([len(one["parts"]) for one in (first, second)], second["outcome"]) == ([4, 2], "done")
    actors = operator.cleave.column("SELECT DISTINCT actor FROM inspect.bundles_namespaces")
    assert actors == ["ada"]


def test_proposals_are_rejected_for_a_reason_all_or_none(both: tuple[BundleOperator, OverHttp]) -> None:
    operator, http = both
    operator.cleave.ok("bundles", "mode", NAMESPACE, "approval")
    ids = [str(row["approval_id"]) for row in operator.cleave.json("bundles", "proposals")]
    assert "approval 99 does not exist" in http.refused("approvals", "reject", *ids, "99")

    answers = http.json("approvals", "reject", *ids, "--reason", "not now")

    assert {one["state"] for one in answers["approvals"]} == {"rejected"}
    rows = operator.cleave.json("bundles", "proposals")
    assert {(row["state"], row["outcome"]) for row in rows} == {("refused", "not now")}
    for way in (http, operator.cleave):
        assert "reason=" in way.refused("approvals", "approve", *ids, "--level", "cluster", "--reason", "")


def test_a_cycle_is_decided_again_by_the_rules_of_the_command(both: tuple[BundleOperator, OverHttp]) -> None:
    operator, http = both
    operator.cleave.execute("ALTER TABLE cleave.bundle_decision DISABLE TRIGGER USER")  # it is history
    operator.cleave.execute("UPDATE cleave.bundle_decision SET outcome = replace(outcome, '0x', '0X')")

    there, here = (way("bundles", "replay", "1") for way in (http, operator.cleave))

    assert there == here
    assert there.code == 1
    operator.cleave.execute("UPDATE cleave.bundle_decision SET inputs = NULL, outcome = NULL")
    assert "have been deleted" in http.refused("bundles", "replay", "1")


def _ageless(text: str) -> str:
    """Remove ages, and the padding of columns, whose widths depend on the ages."""
    without = re.sub(
        r"\d+ (s|min) ago *|\"(age|silent)_seconds\": [\d.]+|\"answered_at\": \"[^\"]+\"", "", text
    )
    return re.sub(" +", " ", without)
