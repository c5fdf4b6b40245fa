"""Reads brokers for bundle balancing: the list of brokers, their load and bundles, the boundaries of namespaces, and the placement rules.

Each call is one read within one deadline. An incomplete answer counts as no answer (Retryable). `checked_changes`
changes bundles. The session has the certificates and tokens; `BrokerList` knows the addresses of the brokers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import requests

from controller.bundles.brokers import documents
from controller.bundles.brokers.calls import Reply, error_of, send
from controller.bundles.brokers.documents import SystemReport, TopicReport
from controller.bundles.domain.placement_rules import IsolationPolicy, PlacementRules
from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles
from controller.dataplane.pulsar_load.brokers import Broker, BrokerList
from controller.dataplane.pulsar_load.http import blocks, origin
from controller.domain.errors import CleaveError, DataPlaneUnavailable, InvalidInput, NotFound, Retryable

_WATCHED = (b"\npulsar_lb_", b"\npulsar_version_info")


class BundleReader:
    """Reader of one cluster. Thread-safe if its session is.

    Each read raises DataPlaneUnavailable if a broker does not answer, or answers with a document of another shape; DataPlaneTimeout for
    an incomplete answer at the deadline; and for a status that the method does not name the error of `error_of`: DataPlaneUnavailable for
    429 and from 500 on, Terminal for any other status.
    """

    def __init__(
        self,
        session: requests.Session,
        brokers: BrokerList,
        *,
        cluster: str,
        deadline_seconds: float,
    ) -> None:
        """Create a reader, without a request. `brokers` lists the brokers and knows the admin addresses; `cluster` is Pulsar's name of the
        cluster. `deadline_seconds` limits each request, and each reading of the list.
        """
        self._session, self._brokers = session, brokers
        self.cluster = cluster
        self.deadline_seconds = deadline_seconds

    def deadline(self) -> float:
        """Return the deadline of a call that begins now, in `time.monotonic` seconds."""
        return time.monotonic() + self.deadline_seconds

    def brokers(self) -> tuple[Broker, ...]:
        """Return the active brokers by name, as listed in the last 30 s; an older list while no broker answers. Raises Retryable as long
        as no broker has ever answered.
        """
        return self._brokers.current(self.deadline())

    @contextmanager
    def admin_address(self) -> Iterator[str]:
        """Yield the web address of the broker or proxy that receives the requests about the cluster, without a slash at its end. If the
        block raises a Retryable, because the address may be dead, a later call tries the other addresses. Raises Retryable as
        `brokers` does.
        """
        try:
            yield self._brokers.admin_url(self.deadline())
        except Retryable:
            self._brokers.refresh_soon()
            raise

    def trusted(self) -> Collection[str]:
        """Return the origins to which a redirect may lead: those of the admin address in use and of the listed brokers. Raises Retryable as
        `brokers` does, because it may read the list.
        """
        admin_url = self._brokers.admin_url(self.deadline())
        return {origin(admin_url), *(origin(broker.url) for broker in self.brokers())}

    def system(self, broker: Broker) -> SystemReport:
        """Return the load report of the broker. If the request for the report gets 404 or 500, the load manager has
        no report, and the figures of the broker's metrics page are returned.

        Raises the error of `error_of` for any other refusal; DataPlaneUnavailable if the broker cannot be reached, if
        the answer has another shape, or if the metrics page has no usage of the CPU; and DataPlaneTimeout if an
        answer is incomplete at the deadline.
        """
        reply = self._get(f"{broker.url}/admin/v2/broker-stats/load-report")
        if reply.is_success:
            return documents.load_report(reply.body)
        if reply.status not in (404, 500):  # the extensible load manager answers 500
            raise error_of(reply)
        return documents.metrics_report(self._system_lines(f"{broker.url}/metrics/"))

    def topics(self, broker: Broker) -> Iterable[TopicReport]:
        """Return an iterator over all topics that the broker serves now, as of its last count of rates. The statistics are read by the
        call; a document of another shape raises DataPlaneUnavailable at the first iteration.
        """
        return documents.topics(self._demand(f"{broker.url}/admin/v2/broker-stats/topics"))

    def owned(self, broker: Broker) -> tuple[NamespaceBundle, ...]:
        """Return the bundles that the broker owns now, by namespace and lower boundary."""
        path = f"/admin/v2/brokers/{self.cluster}/{broker.name}/ownedNamespaces"
        return documents.owned_bundles(self._demand(broker.url + path))

    def bundles(self, namespace: str) -> NamespaceBundles:
        """Return the present boundaries of the namespace. Raises NotFound if the namespace does not exist;
        InvalidInput for a text that is no namespace name; InvalidRange if the listed boundaries do not cover the
        ring; the error of `error_of` for another refusal; DataPlaneUnavailable if no broker can be reached or the
        answer has another shape; and DataPlaneTimeout if the answer is incomplete at the deadline.
        """
        reply = self._ask(f"/admin/v2/namespaces/{namespace}/bundles")
        if reply.status == 404:
            raise NotFound(
                f"there is no namespace {namespace} in cluster {self.cluster}; see `admin/v2/namespaces`"
            )
        if not reply.is_success:
            raise error_of(reply)
        return NamespaceBundles(namespace, documents.boundaries(reply.body))

    def isolation_policies(self) -> tuple[IsolationPolicy, ...]:
        """Return the isolation policies of the cluster, in the broker's order; empty if there are none, for which older brokers answer
        404.
        """
        return documents.isolation_policies(self._of_cluster("namespaceIsolationPolicies"))

    def failure_domains(self) -> dict[str, str]:
        """Return the failure domain of each broker that has one, by the broker's name; empty if the cluster has no failure domains."""
        return documents.failure_domains(self._of_cluster("failureDomains"))

    def anti_affinity_group(self, namespace: str) -> str | None:
        """Return the anti-affinity group of the namespace. None if the namespace has no group, or does not exist.
        Raises the error of `error_of` for a refusal, DataPlaneUnavailable if no broker can be reached, and
        DataPlaneTimeout if the answer is incomplete at the deadline.
        """
        reply = self._ask(f"/admin/v2/namespaces/{namespace}/antiAffinity")
        if reply.status in (204, 404):
            return None
        if not reply.is_success:
            raise error_of(reply)
        return documents.anti_affinity_group(reply.body)

    def topic_hashes(self, bundle: NamespaceBundle) -> dict[str, int]:
        """Return the hash of each topic in the bundle, by complete name, including topics that are not in use. Empty
        for a bundle without topics.

        Raises NotFound if the namespace does not exist; BundleNotFound if the namespace has no such bundle; the error
        of `error_of` for another refusal; DataPlaneUnavailable if no broker can be reached; and DataPlaneTimeout if
        the answer is incomplete at the deadline.
        """
        path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range_text}/topicHashPositions"
        reply = self._ask(path)
        if reply.status in (404, 412):
            self.bundles(bundle.namespace).require(bundle)
        if not reply.is_success:
            raise error_of(reply)
        return documents.topic_hashes(reply.body)

    def owner(self, bundle: NamespaceBundle, *, first: Iterable[str] = ()) -> str | None:
        """Return the name of the broker that owns the bundle; None if no broker owns the bundle. Reads the bundles of
        one listed broker after the other, beginning with the brokers named in `first`. The call makes no broker load
        the bundle, and does not check that the bundle exists.

        Raises DataPlaneUnavailable if no broker that answered owns the bundle and another broker, which may own the
        bundle, did not answer. Also raises the errors of reading the list of brokers, and Terminal if a broker
        refuses the request.
        """
        order = {name: index for index, name in enumerate(first)}
        silent: list[str] = []
        for broker in sorted(self.brokers(), key=lambda broker: order.get(broker.name, len(order))):
            try:
                if bundle in self.owned(broker):
                    return broker.name
            except DataPlaneUnavailable:
                silent.append(broker.name)
        if silent:
            raise DataPlaneUnavailable(
                f"no broker that answers owns bundle {bundle}, and {', '.join(silent)} did not answer; retry"
            )
        return None

    def _of_cluster(self, what: str) -> bytes:
        """Return the body of the cluster's document at the admin path `what`, below the cluster's name; an empty JSON
        object for 404. Raises the error of `error_of` for any other refusal, DataPlaneUnavailable if no broker can be
        reached, and DataPlaneTimeout if the answer is incomplete at the deadline.
        """
        reply = self._ask(f"/admin/v2/clusters/{self.cluster}/{what}")
        if reply.status == 404:
            return b"{}"
        if not reply.is_success:
            raise error_of(reply)
        return reply.body

    def _ask(self, path: str) -> Reply:
        """Send a GET request for the path to the admin address, and return the answer whatever its status. Raises the errors of `_get`."""
        with self.admin_address() as admin_url:
            return self._get(admin_url + path)

    def _get(self, url: str) -> Reply:
        """Send a GET request, and return the answer whatever its status. Raises DataPlaneUnavailable or DataPlaneTimeout if there is no
        complete answer.
        """
        return send(self._session, "GET", url, self.deadline(), trusted=self.trusted())

    def _demand(self, url: str) -> bytes:
        """Return the body of a successful answer to a GET request. Raises the error of `error_of` for an answer with
        any other status, DataPlaneUnavailable if the broker cannot be reached, and DataPlaneTimeout if the answer is
        incomplete at the deadline.
        """
        reply = self._get(url)
        if not reply.is_success:
            raise error_of(reply)
        return reply.body

    def _system_lines(self, url: str) -> bytes:
        """Read a metrics page block by block, and return only the lines of load and version. Raises DataPlaneUnavailable for an
        incomplete page, and the error of `error_of` for a refusal.
        """

        def refusal(where: str, status: int) -> CleaveError:
            return error_of(Reply(status, b"", where))

        lines: list[bytes] = []
        unread = b"\n"
        for block in blocks(self._session, url, self.deadline(), refusal):
            text = unread + block
            end = text.rfind(b"\n")
            for mark in _WATCHED:
                start = text.find(mark, 0, end)
                while start >= 0:
                    stop = text.find(b"\n", start + 1)
                    lines.append(text[start + 1 : stop])
                    start = text.find(mark, stop, end)
            unread = text[end:]
        return b"\n".join(lines)


_AT_ONCE: Final = 16  # calls for anti-affinity groups, of which there is one for each namespace


def ask_rules(reader: BundleReader, namespaces: Iterable[str]) -> PlacementRules:
    """Return the active brokers, isolation policies, failure domains, and the anti-affinity groups of these namespaces.

    Namespaces without a group are left out of the groups. Raises Retryable while no broker answers and Terminal for a refusal, so that
    bundles are never placed by outdated rules; the list of active brokers alone may be older.
    """
    names = sorted(set(namespaces))
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="placement-rules") as pool:
        answers = zip(names, pool.map(reader.anti_affinity_group, names), strict=True)
        groups = {namespace: group for namespace, group in answers if group is not None}
    return PlacementRules(
        active=frozenset(broker.name for broker in reader.brokers()),
        isolation=reader.isolation_policies(),
        failure_domains=reader.failure_domains(),
        anti_affinity_groups=groups,
    )


def demand_allowed(reader: BundleReader, namespace: str, destination: str) -> None:
    """Raise InvalidInput if `destination` is not an active broker (`host:port` as brokers are listed), or if isolation policies exclude it
    for the namespace. Reads the rules from the cluster; raises Retryable while no broker answers, and Terminal for a refusal.
    """
    rules = ask_rules(reader, ())
    active = sorted(rules.active or ())
    if destination not in active:
        raise InvalidInput(
            f"{destination} is not an active broker of cluster {reader.cluster}; choose one of {', '.join(active)}"
        )
    allowed = rules.allowed(namespace)
    if allowed is not None and destination not in allowed:
        rest = ", ".join(sorted(allowed)) or "none that is active"
        raise InvalidInput(
            f"isolation policies exclude broker {destination} for namespace {namespace}; they allow {rest}"
        )
