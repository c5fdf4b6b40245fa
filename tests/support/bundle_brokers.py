"""Web services that answer for namespace bundles as brokers do (observed on 4.2.4), and misbehave on demand.

Real HTTP on loopback. Two brokers share one `StagedCluster`; a call on a bundle is redirected to its owner with 307. `trouble` is the
failure of the next action, and the state shows the true effect.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests

from controller.bundles.brokers import BundleActions, BundleReader
from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles, edge_text, topic_hash
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.domain.errors import CleaveError

CLUSTER = "staged"
DEADLINE_SECONDS = 1.5
"""Of a call where a test does not say; every test of silence waits for it."""
TOKEN = "Bearer secret-of-the-session"  # made up
_USAGE = {"usage": 50.0, "limit": 100.0}


class ActionFailure(Enum):
    """Failure of the next action."""

    SILENT_BEFORE = auto()
    """Never done, never answered."""
    SILENT_AFTER = auto()
    """Done, never answered."""
    BROKEN_AFTER = auto()
    """Done, and the connection breaks."""
    ERROR_BEFORE = auto()
    """503, not done."""
    ERROR_AFTER = auto()
    """500, done."""
    SPLIT_BY_OTHERS = auto()
    """Somebody else halves the bundle just before."""
    CLIENTS_FIRST = auto()
    """Released, and clients ask twice: the first look-up has the destination, the others the old owner."""
    LIST_BEFORE = auto()
    """Done and answered, and the next list of bundles is the one from before: another broker's cache is behind."""
    NOT_DONE = auto()
    """Answered with success, not done."""
    AWAY = auto()
    """307 to a host that is no broker."""


class StagedCluster:
    """State that two brokers share."""

    def __init__(self) -> None:
        self.lists: dict[str, NamespaceBundles] = {}
        self.owners: dict[NamespaceBundle, str] = {}
        self.destinations: dict[NamespaceBundle, tuple[str, str]] = {}
        """Of bundles that were released and not looked up: where the first look-up leads, and where every other."""
        self.topics: dict[str, dict[str, Any]] = {}
        self.idle: set[str] = set()
        """Topics that nobody uses: their bundle lists them, statistics do not."""
        self.isolation: dict[str, Any] = {}
        self.failure_domains: dict[str, list[str]] = {}
        self.groups: dict[str, str] = {}
        """Anti-affinity groups by namespace."""
        self.is_extensible = False
        self.page_status = 200
        """Of the metrics page."""
        self.trouble: ActionFailure | None = None
        self.silent: set[str] = set()
        self.acts: list[tuple[str, str, Any]] = []
        """Method, path with its parameters, body: what brokers were asked to do."""
        self.tokens: set[str] = set()
        self.outdated: dict[str, NamespaceBundles] = {}
        """By namespace: what the next list of bundles shows in place of the present ones."""
        self.released = threading.Event()
        self.brokers: list[str] = []

    def add(self, namespace: str, *cuts: int) -> NamespaceBundles:
        """Add a namespace whose bundles belong to the brokers in turn. Return its bundles."""
        self.lists[namespace] = NamespaceBundles(namespace, (0, *cuts, 0xFFFFFFFF))
        for number, bundle in enumerate(self.lists[namespace].bundles):
            self.owners[bundle] = self.brokers[number % 2]
        return self.lists[namespace]

    def publish(self, topic: str, rate: float = 1.0) -> None:
        """Add a topic with that rate in each direction, 100 bytes per message."""
        consumers = {"s": {"consumers": [{"consumerName": "a"}, {"consumerName": "b"}]}}
        rates = {
            "msgRateIn": rate,
            "msgRateOut": rate,
            "msgThroughputIn": 100 * rate,
            "msgThroughputOut": 100 * rate,
        }
        self.topics[topic] = {
            **rates,
            "producerCount": 1,
            "subscriptions": consumers,
            "publishers": [{"x": 1}],
        }

    def bundle_of(self, topic: str) -> NamespaceBundle:
        namespace = "/".join(topic.partition("://")[2].split("/")[:2])
        return self.lists[namespace].bundle_at(topic_hash(topic))

    def split(self, bundle: NamespaceBundle, cuts: list[int]) -> None:
        owner = self.owners.pop(bundle)
        listed = self.lists[bundle.namespace]
        self.lists[bundle.namespace] = replace(listed, boundaries=tuple(sorted((*listed.boundaries, *cuts))))
        self.owners.update(dict.fromkeys(bundle.parts(cuts), owner))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _cluster(self) -> StagedCluster:
        return self.server.cluster  # type: ignore[attr-defined,no-any-return]

    @property
    def _name(self) -> str:
        return self.server.server_name_and_port  # type: ignore[attr-defined,no-any-return]

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._note_token()
        path = urlsplit(self.path).path
        if self._name in self._cluster.silent:
            self._cluster.released.wait(30)
            return
        if path in ("/admin/v2/brokers", "/admin/v2/brokers/staged", "/admin/v2/brokers/other"):
            self._answer(200, self._cluster.brokers)
        elif path.startswith("/lookup/v2/topic/persistent/"):
            bundle = self._cluster.bundle_of("persistent://" + path.split("/", 5)[5])
            self._cluster.owners[bundle] = self._cluster.destinations.pop(bundle, (self._name, ""))[0]
            self._answer(200, {})
        elif path.endswith("/ownedNamespaces"):
            while self._cluster.destinations:  # clients were faster than whoever asks for owners
                bundle, (_, old) = self._cluster.destinations.popitem()
                self._cluster.owners[bundle] = old
            owned = [str(b) for b, owner in self._cluster.owners.items() if owner == self._name]
            heartbeat = f"pulsar/{self._name}/0x00000000_0xffffffff"
            self._answer(200, {text: {"is_active": True} for text in [*owned, heartbeat]})
        elif path == "/admin/v2/broker-stats/load-report":
            self._load_report()
        elif path == "/admin/v2/broker-stats/topics":
            self._answer(200, self._topics())
        elif path == "/metrics/":
            self._page()
        elif path.startswith("/admin/v2/clusters/") or path.endswith("/antiAffinity"):
            self._rules(path)
        else:
            self._of_namespace(path.split("/"))

    def do_PUT(self) -> None:
        self._note_token()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        _, _, _, _, tenant, name, range_text, act = urlsplit(self.path).path.split("/")
        bundle = NamespaceBundle.parse(f"{tenant}/{name}/{range_text}")
        owner = self._cluster.owners.get(bundle)
        if owner is not None and owner != self._name:
            self._answer(307, None, {"Location": f"http://{owner}{self.path}"})
            return
        cluster, trouble = self._cluster, self._cluster.trouble
        cluster.trouble = None
        document = json.loads(body) if body else None
        cluster.acts.append(("PUT", self.path, document))
        if trouble is ActionFailure.AWAY:
            self._answer(307, None, {"Location": f"http://127.0.0.1:9{self.path}"})
        elif trouble is ActionFailure.SILENT_BEFORE:
            cluster.released.wait(30)
        elif trouble is ActionFailure.ERROR_BEFORE:
            self._answer(503, {"reason": "not ready"}, {"Retry-After": "7"})
        else:
            self._perform(act, bundle, document, trouble)

    def _perform(
        self, act: str, bundle: NamespaceBundle, document: Any, trouble: ActionFailure | None
    ) -> None:
        cluster = self._cluster
        if trouble is ActionFailure.LIST_BEFORE:
            cluster.outdated[bundle.namespace] = cluster.lists[bundle.namespace]
        if trouble is ActionFailure.SPLIT_BY_OTHERS:
            cluster.split(bundle, [bundle.lower + bundle.width // 2])
        try:
            cluster.lists[bundle.namespace].require(bundle)
            status, reason = (
                self._split(bundle, document, trouble) if act == "split" else self._unload(bundle, trouble)
            )
        except CleaveError as error:
            status, reason = 412, error.message
        if trouble is ActionFailure.SILENT_AFTER:
            cluster.released.wait(30)
        elif trouble is ActionFailure.BROKEN_AFTER:
            self.close_connection = True
        elif trouble is ActionFailure.ERROR_AFTER:
            self._answer(500, {"reason": "--- An unexpected error\n\nMessage: late\n\nStacktrace:\n at x"})
        else:
            self._answer(status, {"reason": reason} if reason else None)

    def _split(
        self, bundle: NamespaceBundle, cuts: list[int], trouble: ActionFailure | None
    ) -> tuple[int, str]:
        assert parse_qs(urlsplit(self.path).query)["splitAlgorithmName"] == ["specified_positions_divide"]
        if self._cluster.is_extensible and len(cuts) > 1:
            return 412, "Split bundle failed due to invalid request"
        if trouble is not ActionFailure.NOT_DONE:
            self._cluster.split(bundle, cuts)
        return 204, ""

    def _unload(self, bundle: NamespaceBundle, trouble: ActionFailure | None) -> tuple[int, str]:
        destination = parse_qs(urlsplit(self.path).query).get("destinationBroker", [None])[0]
        if destination is not None and destination not in self._cluster.brokers:
            return 409, "Not allowed unload namespace bundle to inactive destination broker"
        old = self._cluster.owners.pop(bundle, None)
        if destination is not None and trouble is ActionFailure.CLIENTS_FIRST:
            self._cluster.destinations[bundle] = destination, old or self._name
        elif destination is not None:
            self._cluster.owners[bundle] = destination
        return 204, ""

    def _load_report(self) -> None:
        if self._cluster.is_extensible:
            self._answer(500, {"reason": "Message: null Stacktrace: UnsupportedOperationException"})
            return
        signals = dict.fromkeys(("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut"), _USAGE)
        stats = {str(b): {"cacheSize": 7} for b, owner in self._cluster.owners.items() if owner == self._name}
        more = {"lastUpdate": 1, "brokerVersionString": "4.2.4", "lastStats": stats, "numTopics": 3}
        self._answer(200, {**signals, **more})

    def _page(self) -> None:
        rest = "".join(f'pulsar_rate_in{{topic="t{n}"}} 0.0\n' for n in range(40_000))  # more than one block
        signals = {
            "cpu": 99.5,
            "memory": 20.0,
            "directMemory": 3.0,
            "bandwidth_in": 0.0,
            "bandwidth_out": "NaN",
        }
        lines = "".join(
            f'# TYPE pulsar_lb_{s}_usage gauge\npulsar_lb_{s}_usage{{cluster="c", metric="loadBalancing"}} {v}\n'
            for s, v in signals.items()
        )
        text = f'{rest}pulsar_version_info{{cluster="c",version="4.2.4",commit="x"}} 1.0\n{lines}'
        self._answer(self._cluster.page_status, text.encode())

    def _topics(self) -> dict[str, Any]:
        by_namespace: dict[str, Any] = {f"pulsar/{self._name}": {"0x00000000_0xffffffff": {"persistent": {}}}}
        for topic, stats in self._cluster.topics.items():
            bundle = self._cluster.bundle_of(topic)
            if self._cluster.owners.get(bundle) == self._name:
                place = by_namespace.setdefault(bundle.namespace, {}).setdefault(bundle.range_text, {})
                place.setdefault("persistent", {})[topic] = stats
        return by_namespace

    def _rules(self, path: str) -> None:
        """Return placement rules: policies and failure domains of the cluster, or the group of a namespace."""
        if path.endswith("/namespaceIsolationPolicies"):
            self._answer(200, self._cluster.isolation)
        elif path.endswith("/failureDomains"):
            domains = self._cluster.failure_domains.items()
            self._answer(200, {name: {"brokers": brokers} for name, brokers in domains})
        else:
            group = self._cluster.groups.get("/".join(path.split("/")[4:6]))
            self._answer(200 if group else 204, group.encode() if group else None)

    def _of_namespace(self, parts: list[str]) -> None:
        namespace = "/".join(parts[4:6])
        if namespace not in self._cluster.lists:
            self._answer(404, {"reason": "Namespace does not exist"})
        elif parts[-1] == "bundles":
            shown = self._cluster.outdated.pop(namespace, self._cluster.lists[namespace])
            edges = [edge_text(edge) for edge in shown.boundaries]
            self._answer(200, {"boundaries": edges, "numBundles": len(edges) - 1})
        else:
            bundle = NamespaceBundle.parse(f"{namespace}/{parts[6]}")
            existing = self._cluster.topics.keys() | self._cluster.idle
            inside = {t: topic_hash(t) for t in existing if self._cluster.bundle_of(t) == bundle}
            is_known = bundle in self._cluster.owners
            self._answer(
                200 if is_known else 412,
                {"topicHashPositions": inside} if is_known else {"reason": "Invalid upper boundary"},
            )

    def _note_token(self) -> None:
        self._cluster.tokens.add(self.headers.get("Authorization", ""))

    def _answer(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        body = (
            document
            if isinstance(document, bytes)
            else json.dumps(document).encode()
            if document is not None
            else b""
        )
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Bench:
    """The cluster, with readers and actions on its first broker, or on `admin_urls`."""

    def __init__(
        self, cluster: StagedCluster, deadline_seconds: float, admin_urls: Sequence[str] = ()
    ) -> None:
        self.cluster = cluster
        self.session = requests.Session()
        self.session.headers["Authorization"] = TOKEN
        brokers = BrokerList(self.session, admin_urls or [f"http://{cluster.brokers[0]}"])
        self.reader = BundleReader(self.session, brokers, cluster=CLUSTER, deadline_seconds=deadline_seconds)
        self.acts = BundleActions(self.session, self.reader, settle_seconds=deadline_seconds)


@contextlib.contextmanager
def staged_bench(deadline_seconds: float = DEADLINE_SECONDS) -> Iterator[Bench]:
    """Run two brokers until the end of the block, and yield a bench on them."""
    cluster = StagedCluster()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Handler) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        server.cluster = cluster  # type: ignore[attr-defined]
        server.server_name_and_port = f"127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    cluster.brokers = sorted(f"127.0.0.1:{server.server_address[1]}" for server in servers)
    try:
        yield Bench(cluster, deadline_seconds)
    finally:
        cluster.released.set()
        for server in servers:
            server.shutdown()
            server.server_close()
