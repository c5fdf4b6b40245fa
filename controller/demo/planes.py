"""The data planes the demo runs on, by PLANE's name: what is started for each, and how much of the day's load it is
sent.

`Stack` starts the plane beside the other servers and hands the settings it answers with to every process of the demo,
Airflow's tasks included. Topics, policy and traffic are `story`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

from controller.client.patience import patiently
from controller.dataplane.pulsar.access import PulsarAccess
from controller.dataplane.pulsar.admin import AdminCalls, Ask
from controller.dataplane.pulsar.namespaces import Namespaces
from controller.devstack.pulsar.jars import PULSAR_4, pulsar_jars
from controller.devstack.pulsar.java_server import QUICK
from controller.devstack.pulsar.standalone import CLUSTER_NAME, PulsarStandalone
from controller.domain.errors import DataPlaneUnavailable, InvalidInput

TENANT = "demo"
NAMESPACE = f"{TENANT}/shop"
ADMIN_TIMEOUT_SECONDS = 30.0
"""The time for the first calls of a broker, which loads its classes meanwhile."""
CLUSTER_PATIENCE_SECONDS = 60.0
_EXISTS = frozenset({409})


class Plane(Protocol):
    """One data plane of the demo."""

    @property
    def name(self) -> str:
        """The registry's name, which PLANE gives."""

    @property
    def load_share(self) -> float:
        """Part of the day's rates it is sent; the policy's thresholds are the same part of theirs."""

    def prepare(self, say: Callable[[str], None]) -> None:
        """Fetch what `start` needs. Raises CleaveError before anything runs if it cannot be had."""

    def start(self, running: ExitStack, directory: Path) -> Mapping[str, str]:
        """Start it with files in `directory`; `running` stops it. The settings by which Cleave finds it."""


class EmbeddedPlane:
    """Logs in Cleave's own PostgreSQL: nothing more to start."""

    name = "embedded"
    load_share = 1.0

    def prepare(self, say: Callable[[str], None]) -> None:
        """Nothing is needed."""

    def start(self, running: ExitStack, directory: Path) -> Mapping[str, str]:  # noqa: ARG002 - the protocol's
        """Cleave finds it where no setting says otherwise."""
        return {}


class PulsarPlane:
    """One Pulsar broker with a namespace for the demo's topic."""

    name = "pulsar"
    load_share = 0.5
    """Broker, bookie and client library take the rest of two cores that also carry Airflow and Spark."""

    def prepare(self, say: Callable[[str], None]) -> None:
        """Fetch the broker unless it is in the cache. Raises MavenMissing, DevstackFailed."""
        say(f"Pulsar {PULSAR_4}: from the cache, or fetched with Maven the first time (240 MB)")
        pulsar_jars()

    def start(self, running: ExitStack, directory: Path) -> Mapping[str, str]:
        """Broker, tenant, namespace; its log is `pulsar/pulsar.log`."""
        broker = running.enter_context(PulsarStandalone(directory / "pulsar", jvm=QUICK))
        access = PulsarAccess(admin_url=broker.admin_url, service_url=broker.service_url)
        make_namespace(access)
        return {
            "CLEAVE_PULSAR_ADMIN_URL": broker.admin_url,
            "CLEAVE_PULSAR_SERVICE_URL": broker.service_url,
        }


def make_namespace(access: PulsarAccess) -> None:
    """Tenant and namespace of the demo, new or as they are, set as segments need them."""
    with closing(AdminCalls(access, call_timeout_seconds=ADMIN_TIMEOUT_SECONDS)) as admin:
        patiently(lambda: _demand_cluster(admin), seconds=CLUSTER_PATIENCE_SECONDS)
        owner = {"allowedClusters": [CLUSTER_NAME], "adminRoles": []}
        for path, body in ((f"tenants/{TENANT}", owner), (f"namespaces/{NAMESPACE}", None)):
            admin.ask(Ask("PUT", path, f"make {path}", body=body, accept=_EXISTS), admin.deadline())
    with closing(Namespaces(access, call_timeout_seconds=ADMIN_TIMEOUT_SECONDS)) as namespaces:
        namespaces.check(NAMESPACE, fix=True)


def _demand_cluster(admin: AdminCalls) -> None:
    """A standalone broker is healthy a moment before its cluster is known, and no tenant can be made until then."""
    known = admin.ask(Ask("GET", "clusters", "list clusters"), admin.deadline()).document
    if CLUSTER_NAME not in known:
        raise DataPlaneUnavailable(f"the broker knows no cluster {CLUSTER_NAME!r} yet; try again")


EMBEDDED = EmbeddedPlane()
PLANES: Mapping[str, Plane] = {plane.name: plane for plane in (EMBEDDED, PulsarPlane())}


def plane_named(name: str) -> Plane:
    """The plane of that name; `embedded` where it is empty. Raises InvalidInput."""
    plane = PLANES.get(name or EMBEDDED.name)
    if plane is None:
        raise InvalidInput(f"PLANE={name} is not known here; it is one of {', '.join(PLANES)}")
    return plane
