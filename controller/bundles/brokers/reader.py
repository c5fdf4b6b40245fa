"""Reads brokers for bundle balancing: which there are, what each carries and owns, how namespaces are cut.

Each call is one read within one deadline. An answer that is not complete is none (Retryable). Acts are in `acts`.
The session has the certificates and tokens; `BrokerList` knows where brokers are.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

import requests

from controller.bundles.brokers import documents
from controller.bundles.brokers.calls import Reply, error_of, send
from controller.bundles.brokers.documents import SystemReport, TopicReport
from controller.bundles.domain.isolation import IsolationPolicy
from controller.bundles.domain.ring.boundaries import NamespaceBundles
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.dataplane.pulsar_load.brokers import Broker, BrokerList
from controller.dataplane.pulsar_load.http import blocks, origin
from controller.domain.errors import DataPlaneUnavailable, NotFound

_WATCHED = (b"\npulsar_lb_", b"\npulsar_version_info")


class BundleReader:
    """One cluster. It is safe to share between threads if its session is."""

    def __init__(
        self,
        session: requests.Session,
        admin_url: str,
        brokers: BrokerList,
        *,
        cluster: str,
        deadline_seconds: float,
    ) -> None:
        """`admin_url` is the web address of any broker or of a proxy; `cluster` is Pulsar's name of the cluster."""
        self._session, self._brokers = session, brokers
        self._admin_url = admin_url.rstrip("/")
        self.cluster = cluster
        self.deadline_seconds = deadline_seconds

    def deadline(self) -> float:
        """The end of a call that begins now, in `time.monotonic` seconds."""
        return time.monotonic() + self.deadline_seconds

    def brokers(self) -> tuple[Broker, ...]:
        """Active brokers by name. Raises Retryable as long as none has ever answered."""
        return self._brokers.current(self.deadline())

    def trusted(self) -> Collection[str]:
        """Origins a redirect may lead to."""
        return {origin(self._admin_url), *(origin(broker.url) for broker in self.brokers())}

    def system(self, broker: Broker) -> SystemReport:
        """The broker's load report, or the figures on its metrics page if its load manager has no report."""
        reply = self._get(f"{broker.url}/admin/v2/broker-stats/load-report")
        if reply.is_success:
            return documents.load_report(reply.body)
        if reply.status not in (404, 500):  # the extensible load manager answers 500
            raise error_of(reply)
        return documents.metrics_report(self._system_lines(f"{broker.url}/metrics/"))

    def topics(self, broker: Broker) -> Iterable[TopicReport]:
        """Every topic that the broker serves now, as of its last count of rates."""
        return documents.topics(self._demand(f"{broker.url}/admin/v2/broker-stats/topics"))

    def owned(self, broker: Broker) -> tuple[NamespaceBundle, ...]:
        """The bundles that the broker owns now."""
        path = f"/admin/v2/brokers/{self.cluster}/{broker.name}/ownedNamespaces"
        return documents.owned_bundles(self._demand(broker.url + path))

    def bundles(self, namespace: str) -> NamespaceBundles:
        """How the namespace is cut now. Raises NotFound if there is no such namespace."""
        reply = self._get(f"{self._admin_url}/admin/v2/namespaces/{namespace}/bundles")
        if reply.status == 404:
            raise NotFound(f"no namespace {namespace} in cluster {self.cluster}; see `admin/v2/namespaces`")
        if not reply.is_success:
            raise error_of(reply)
        return NamespaceBundles(namespace, documents.boundaries(reply.body))

    def isolation_policies(self) -> tuple[IsolationPolicy, ...]:
        """The cluster's isolation policies. Older brokers answer 404 where there are none."""
        return documents.isolation_policies(self._of_cluster("namespaceIsolationPolicies"))

    def failure_domains(self) -> dict[str, str]:
        """The failure domain of each broker that is in one."""
        return documents.failure_domains(self._of_cluster("failureDomains"))

    def anti_affinity_group(self, namespace: str) -> str | None:
        """The namespace's anti-affinity group; None if it has none, or is gone."""
        reply = self._get(f"{self._admin_url}/admin/v2/namespaces/{namespace}/antiAffinity")
        if reply.status in (204, 404):
            return None
        if not reply.is_success:
            raise error_of(reply)
        return documents.anti_affinity_group(reply.body)

    def topic_hashes(self, bundle: NamespaceBundle) -> dict[str, int]:
        """The hash of each topic in the bundle. Raises BundleNotFound if the namespace has no such bundle."""
        path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range_text}/topicHashPositions"
        reply = self._get(self._admin_url + path)
        if reply.status in (404, 412):
            self.bundles(bundle.namespace).require(bundle)
        if not reply.is_success:
            raise error_of(reply)
        return documents.topic_hashes(reply.body)

    def owner(self, bundle: NamespaceBundle, *, first: Iterable[str] = ()) -> str | None:
        """Who owns the bundle, None for nobody. Brokers in `first` are asked first. Asking makes no broker load it.

        Raises DataPlaneUnavailable if no broker that answered owns it and one was silent, which may be its owner.
        """
        order = {name: place for place, name in enumerate(first)}
        silent: list[str] = []
        for broker in sorted(self.brokers(), key=lambda one: order.get(one.name, len(order))):
            try:
                if bundle in self.owned(broker):
                    return broker.name
            except DataPlaneUnavailable:
                silent.append(broker.name)
        if silent:
            raise DataPlaneUnavailable(
                f"no broker that answers owns bundle {bundle}, and {', '.join(silent)} did not answer; ask again"
            )
        return None

    def _of_cluster(self, what: str) -> bytes:
        reply = self._get(f"{self._admin_url}/admin/v2/clusters/{self.cluster}/{what}")
        if reply.status == 404:
            return b"{}"
        if not reply.is_success:
            raise error_of(reply)
        return reply.body

    def _get(self, url: str) -> Reply:
        return send(self._session, "GET", url, self.deadline(), trusted=self.trusted())

    def _demand(self, url: str) -> bytes:
        reply = self._get(url)
        if not reply.is_success:
            raise error_of(reply)
        return reply.body

    def _system_lines(self, url: str) -> bytes:
        """The few lines that are used of a page of any length. An incomplete page raises an error."""
        kept: list[bytes] = []
        rest = b"\n"
        for block in blocks(self._session, url, self.deadline()):
            text = rest + block
            end = text.rfind(b"\n")
            for mark in _WATCHED:
                at = text.find(mark, 0, end)
                while at >= 0:
                    stop = text.find(b"\n", at + 1)
                    kept.append(text[at + 1 : stop])
                    at = text.find(mark, stop, end)
            rest = text[end:]
        return b"\n".join(kept)
