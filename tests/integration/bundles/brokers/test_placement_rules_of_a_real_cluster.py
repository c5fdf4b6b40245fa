"""Isolation policies, anti-affinity groups and failure domains of two real brokers of 4.2.4, as Cleave obeys them.

The brokers go by two hosts, since isolation policies know hosts only. The policies here name a host nobody has as
primary, so that no broker stops being everybody's while other tests use the cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import requests

from controller.bundles.broker_reports import ReportArea
from controller.bundles.brokers import BundleActions, BundleReader
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.services import balancer as bundle_balancer
from controller.bundles.services.balancer import ActReport, ApplySettings
from controller.bundles.services.manual_actions import check_manual_unload
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.namespaces import BalancingMode
from controller.bundles.store.proposals import ProposalState
from controller.clock import SystemClock
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.domain.errors import InvalidInput
from tests.support import bundle_reports as rows
from tests.support.brokers import SharedBroker
from tests.support.store_driver import StoreDriver
from tests.support.waiting import wait_until

TENANT, TOPICS, CALL_SECONDS = "rules", 8, 60.0
NOBODY = "host-that-nobody-has"


@dataclass
class Cluster:
    """Two namespaces of four bundles, all of them on the first broker, which is full; the second is idle."""

    base: str
    name: str
    bound: str
    free: str
    first: str
    second: str
    reader: BundleReader
    acts: BundleActions
    driver: StoreDriver
    area: ReportArea
    admin_urls: Collection[str]
    """Of each broker its own."""

    def put(self, path: str, document: object = None) -> None:
        answer = requests.put(f"{self.base}/admin/v2/{path}", json=document, timeout=CALL_SECONDS)
        if answer.status_code == 405:
            answer = requests.post(f"{self.base}/admin/v2/{path}", json=document, timeout=CALL_SECONDS)
        assert answer.ok or answer.status_code == 409, f"{path}: {answer.status_code} {answer.text[:300]}"

    def delete(self, path: str) -> None:
        requests.delete(f"{self.base}/admin/v2/{path}", timeout=CALL_SECONDS)

    def bind(self, host: str) -> None:
        """The bound namespace may be on this host alone, and every broker knows it: who gives a bundle away goes by its own cache."""
        limits = {"min_limit": "1", "usage_threshold": "100"}
        document = {
            "namespaces": [self.bound],
            "primary": [NOBODY],
            "secondary": [host],
            "auto_failover_policy": {"policy_type": "min_available", "parameters": limits},
        }
        path = f"clusters/{self.name}/namespaceIsolationPolicies"
        self.put(f"{path}/{self.policy}", document)
        for url in self.admin_urls:
            wait_until(
                lambda url=url: (
                    self.policy in requests.get(f"{url}/admin/v2/{path}", timeout=CALL_SECONDS).json()
                ),
                message=f"{url} knows the policy",
            )

    @property
    def policy(self) -> str:
        return self.bound.replace("/", "-")

    def propose(self, key: str) -> set[tuple[str, str]]:
        """Namespace and destination of each move of a cycle."""
        cycle = bundle_balancer.propose(
            self.driver.store,
            self.reader,
            self.area,
            settings=BalanceSettings(even_hits=1),
            request_key=key,
            decided_by="tester",
        )
        found = self.driver.do(bundle_proposals.list_proposals, self.name, cycle_id=cycle.cycle_id)
        return {(row.namespace, str(row.destination)) for row in found}

    def apply(self) -> list[ActReport]:
        [(cycle_id,)] = self.driver.sql("SELECT max(cycle_id) FROM cleave.bundle_decision")
        return bundle_balancer.apply(
            self.driver.store,
            self.acts,
            cluster=self.name,
            cycle_id=cycle_id,
            settings=ApplySettings(),
            claimant="tester",
        )

    def look_up(self, namespace: str) -> None:
        """As clients do: every bundle gets an owner."""
        for number in range(TOPICS):
            path = f"lookup/v2/topic/persistent/{namespace}/t-{number}"
            requests.get(f"{self.base}/{path}", timeout=CALL_SECONDS).raise_for_status()

    def owners(self, namespace: str) -> set[str]:
        """Who owns the namespace's bundles now."""
        found = {self.reader.owner(bundle) for bundle in self.reader.bundles(namespace).bundles}
        return {name for name in found if name is not None}


@pytest.fixture
def cluster(pulsar_cluster: SharedBroker, database: str, tmp_path: Path) -> Iterator[Cluster]:
    base = pulsar_cluster.admin_url
    [name] = [one for one in requests.get(f"{base}/admin/v2/clusters", timeout=60).json() if one != "global"]
    mark = secrets.token_hex(4)
    driver = StoreDriver(database)
    with requests.Session() as session:
        reader = BundleReader(
            session, BrokerList(session, [base]), cluster=name, deadline_seconds=CALL_SECONDS
        )
        acts = BundleActions(session, reader, settle_seconds=CALL_SECONDS)
        first, second = sorted(pulsar_cluster.brokers)
        found = Cluster(
            base,
            name,
            f"{TENANT}-{mark}/bound",
            f"{TENANT}-{mark}/free",
            first,
            second,
            reader,
            acts,
            driver,
            ReportArea(str(tmp_path)),
            pulsar_cluster.brokers.values(),
        )
        found.put(f"tenants/{TENANT}-{mark}", {"allowedClusters": [name], "adminRoles": []})
        for namespace in (found.bound, found.free):
            found.put(f"namespaces/{namespace}", {"bundles": {"numBundles": 4}})
        _load(found)
        yield found
        found.delete(f"clusters/{name}/namespaceIsolationPolicies/{found.policy}")
        found.delete(f"clusters/{name}/failureDomains/rack-1")
        driver.store.dispose()


def _load(cluster: Cluster) -> None:
    """What one aggregation run would have left; the topics are real, so that bundles have an owner."""
    bundles: list[dict[str, Any]] = []
    lists = []
    for namespace in (cluster.bound, cluster.free):
        listed = cluster.reader.bundles(namespace)
        lists.append(rows.boundaries(*listed.boundaries[1:-1], namespace=namespace))
        for number in range(TOPICS):
            topic = f"persistent://{namespace}/t-{number}"
            cluster.put(f"persistent/{namespace}/t-{number}")
            bundle = listed.bundle_of(topic)
            if cluster.reader.owner(bundle) != cluster.first:
                cluster.acts.unload(bundle, destination=cluster.first)
        rates = (
            (14.0, 4.0, 4.0, 4.0) if namespace == cluster.bound else (10.0,) * 4
        )  # so that both would move
        for (low, high), rate in zip(pairwise(listed.boundaries), rates, strict=True):
            bundles.append(rows.bundle(low, high, rate, broker=cluster.first, namespace=namespace))
    now = {"observed_at_ms": SystemClock().now_ms()}
    brokers = [rows.broker(cluster.first, 90.0, **now), rows.broker(cluster.second, 5.0, **now)]
    changes = {"boundaries": lists, "bundles": bundles, "brokers": brokers}
    for table in changes.values():
        for row in table:
            row["cluster"] = cluster.name
    cluster.driver.do(rows.merge, "run-0", changes)


def _automatic(cluster: Cluster) -> None:
    for namespace in (cluster.bound, cluster.free):
        row = cluster.driver.do(bundle_namespaces.get_namespace, cluster.name, namespace)
        cluster.driver.do(
            bundle_namespaces.set_mode,
            cluster.name,
            namespace,
            BalancingMode.AUTOMATIC,
            actor="ann",
            seen_row_version=row.row_version,
        )


def test_a_forbidden_broker_never_gets_a_bundle(cluster: Cluster) -> None:
    """Both namespaces would move; the one that is bound to the first broker's host stays, whoever asks."""
    assert cluster.propose("unbound") == {(cluster.bound, cluster.second), (cluster.free, cluster.second)}
    _automatic(cluster)
    proposed = cluster.propose("before-the-policy")
    assert (cluster.bound, cluster.second) in proposed

    cluster.bind(cluster.first.partition(":")[0].replace(".", r"\."))
    acts = cluster.apply()

    by_namespace: dict[str, set[ProposalState]] = {}
    for act in acts:
        by_namespace.setdefault(act.bundle.rpartition("/")[0], set()).add(act.state)
    assert by_namespace == {cluster.bound: {ProposalState.FAILED}, cluster.free: {ProposalState.APPLIED}}
    assert "isolation policies exclude" in next(a.outcome for a in acts if a.state is ProposalState.FAILED)
    cluster.look_up(cluster.bound)  # Pulsar itself releases bundles where a policy is set
    assert cluster.owners(cluster.bound) == {cluster.first}
    assert cluster.second in cluster.owners(cluster.free)
    assert cluster.bound not in {namespace for namespace, _ in cluster.propose("with-the-policy")}
    bundle = cluster.reader.bundles(cluster.bound).bundles[0]
    with pytest.raises(InvalidInput, match="isolation policies exclude"):
        check_manual_unload(cluster.driver.store, cluster.reader, str(bundle), cluster.second)


def test_namespaces_of_one_group_stay_apart_and_domains_are_read(cluster: Cluster) -> None:
    for namespace in (cluster.bound, cluster.free):
        assert cluster.reader.anti_affinity_group(namespace) is None
        cluster.put(f"namespaces/{namespace}/antiAffinity", cluster.policy)
        assert cluster.reader.anti_affinity_group(namespace) == cluster.policy
    cluster.put(f"clusters/{cluster.name}/failureDomains/rack-1", {"brokers": [cluster.first]})

    assert cluster.reader.failure_domains() == {cluster.first: "rack-1"}
    cluster.driver.sql(
        "UPDATE cleave.bundle_load SET broker = :second WHERE namespace = :free",
        second=cluster.second,
        free=cluster.free,
    )
    assert cluster.propose("together") == set()  # the second broker has the other one of the group
    cluster.delete(f"namespaces/{cluster.free}/antiAffinity")
    assert cluster.propose("apart") == {(cluster.bound, cluster.second)}
