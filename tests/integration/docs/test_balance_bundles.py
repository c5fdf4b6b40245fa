"""What the how-to on balancing bundles tells people to type, typed: two real brokers, all traffic on one of them.

In its order, with this cluster's addresses and a namespace of this test's own in place of the page's, and the numbers of
the proposals that were made in place of 1 and 2. Brokers of one machine report the same usage, so
`benchmarks.uneven_namespace.PARAMETERS` are added where the page chooses `uniform`, which is what it says to do then.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from pathlib import Path

import pytest
from sqlalchemy import text

from benchmarks.steady_traffic import SteadyTraffic
from benchmarks.uneven_namespace import PARAMETERS, UnevenNamespace, make
from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.proposals import ProposalRow, ProposalState
from tests.support.approvals import pending
from tests.support.brokers import SharedBroker
from tests.support.command_line import CommandLine
from tests.support.spark_session import MASTER

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.chaos]  # a minute and a half

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "balance-bundles.md"
_BLOCK = re.compile(r"^```(sh|sql)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CLUSTER = "cleave"
BUNDLES, LOADED, RATE = 16, 6, 20.0
"""Bundles of the namespace, so many of them with traffic, and messages a second into each of those."""


@pytest.fixture
def uneven(pulsar_cluster: SharedBroker) -> UnevenNamespace:
    """A namespace of its own; of its bundles the ones around the page's own have topics."""
    name = f"acme/shop{secrets.token_hex(4)}"
    made = make(pulsar_cluster.admin_url, pulsar_cluster.brokers, name, [RATE] * BUNDLES)
    loaded = made.bundles.bundles[BUNDLES // 2 :][:LOADED]
    made.rates = {
        topic: rate for topic, rate in made.rates.items() if made.bundles.bundle_of(topic) in loaded
    }
    return made


class Reader:
    """Somebody who types what the page says."""

    def __init__(
        self, cleave: CommandLine, monkeypatch: pytest.MonkeyPatch, uneven: UnevenNamespace, reports: Path
    ) -> None:
        self.cleave, self.namespace, self.typed = cleave, uneven.name, 0
        self._monkeypatch = monkeypatch
        self._words = {
            "http://broker-1:8080": uneven.admin_url,
            "broker-1:8080": min(uneven.brokers),
            "/srv/cleave/bundle-reports": str(reports),
            "acme/shop": uneven.name,
        }
        self._place = re.compile("|".join(map(re.escape, self._words)))  # the longer address comes first

    def follow(self, block: str) -> None:
        """Type a block's lines; a line ends the test unless it does what it should."""
        for line in block.splitlines():
            said = self._place.sub(lambda found: self._words[found[0]], line)
            name, *arguments = shlex.split(said)
            if name == "export":
                variable, _, value = arguments[0].partition("=")
                self._export(variable, value)
                continue
            assert name == "cleave", line
            self.cleave.ok(*self._numbered(arguments))
            self.typed += 1

    def _export(self, variable: str, value: str) -> None:
        if variable == "CLEAVE_PULSAR_CLUSTER":
            value = CLUSTER
        if variable == "CLEAVE_BUNDLE_BALANCE":
            value = json.dumps({**PARAMETERS, **json.loads(value)})
        self._monkeypatch.setenv(variable, value)

    def _numbered(self, arguments: list[str]) -> list[str]:
        if arguments[0] != "approvals" or arguments[1] == "list":
            return arguments
        mine = {row.proposal_id for row in self.proposals(ProposalState.PROPOSED)}
        ids = sorted(row.approval_id for row in pending(self.cleave.store) if row.subject_id in mine)
        return [*arguments[:2], str(ids[0]), *arguments[3:]]

    def proposals(self, *states: ProposalState) -> list[ProposalRow]:
        """Of the namespace, by number."""
        with self.cleave.store.transaction() as tx:
            found = bundle_proposals.list_proposals(tx, CLUSTER, states=states or tuple(ProposalState))
        return sorted((r for r in found if r.namespace == self.namespace), key=lambda r: r.proposal_id)


@pytest.mark.usefixtures("spark")
def test_each_command_of_the_page_does_what_it_is_told(
    database: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    uneven: UnevenNamespace,
    pulsar_cluster: SharedBroker,
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
    monkeypatch.setenv("CLEAVE_CALL_TIMEOUT_SECONDS", "30")
    monkeypatch.setenv("SPARK_MASTER", MASTER)
    monkeypatch.chdir(tmp_path)
    cleave = CommandLine(database, capsys)
    reader = Reader(cleave, monkeypatch, uneven, tmp_path / "reports")
    full = min(pulsar_cluster.brokers)
    with SteadyTraffic(pulsar_cluster.service_url, uneven.rates):
        for bundle in sorted({str(uneven.bundles.bundle_of(topic)) for topic in uneven.rates}):
            uneven.move(bundle, full)
        uneven.message_rates()  # once they are told
        for kind, block in _BLOCK.findall(PAGE.read_text()):
            if kind == "sql":
                with cleave.store.transaction() as tx:
                    for statement in filter(str.strip, block.split(";")):
                        tx.execute(text(statement))
            else:
                reader.follow(block)
        owners = uneven.owners()
    cleave.store.dispose()

    assert reader.typed >= 14
    assert (tmp_path / "ring.html").stat().st_size > 0
    done = reader.proposals(ProposalState.APPLIED, ProposalState.VERIFIED, ProposalState.FAILED)
    assert [row.broker for row in done] == [full]
    assert [row.outcome for row in reader.proposals(ProposalState.REFUSED)] == ["not this one"]
    [taken_back] = re.findall(r"bundles unload acme/shop/(\S+)", PAGE.read_text())
    assert owners[str(NamespaceBundle.parse(f"{uneven.name}/{taken_back}"))] == full
