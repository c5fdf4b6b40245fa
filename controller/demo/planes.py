"""The data planes of the demo, by the name in PLANE: the servers to start for each, and its share of the day's load.

`Stack` starts the plane together with the other servers and passes the returned settings to every process of the
demo, including Airflow's tasks. Topics, policy and traffic are defined in `story`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from controller.client.retry import retry_for
from controller.dataplane.pulsar.admin import AdminCalls, Ask
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.requirements import Namespaces
from controller.devstack.pulsar.jars import PULSAR_4, pulsar_jars
from controller.devstack.pulsar.java_server import QUICK
from controller.devstack.pulsar.standalone import CLUSTER_NAME, PulsarStandalone
from controller.devstack.pulsar.standard_client import CONSUMER, compile_programs
from controller.domain.errors import DataPlaneUnavailable, InvalidInput

TENANT = "demo"
NAMESPACE = f"{TENANT}/shop"
SERVICE_URL = "CLEAVE_PULSAR_SERVICE_URL"
"""Setting with the address to which Pulsar clients connect."""
ADMIN_TIMEOUT_SECONDS = 30.0
"""Timeout of the first calls to a broker, which loads its classes during them."""
CLUSTER_PATIENCE_SECONDS = 60.0
_EXISTS = frozenset({409})


class Plane:
    """One data plane of the demo. This class is the plane of the embedded logs, which are in Cleave's own PostgreSQL; a
    subclass is a plane with servers of its own.
    """

    name = "embedded"
    """Name in the registry, which PLANE gives."""
    load_share = 1.0
    """Part of the day's rates that is sent; the policy's thresholds are the same part of theirs."""

    def prepare(self, say: Callable[[str], None]) -> None:
        """Fetch the files that `start` needs: none for the embedded logs. A subclass raises CleaveError, before
        anything is started, if its files are not available.
        """

    def start(self, running: ExitStack, directory: Path) -> Mapping[str, str]:  # noqa: ARG002 - the embedded logs need no server
        """Start the servers of the plane with files in `directory`, to be stopped by `running`, and return the settings
        with which Cleave finds the plane. The embedded logs need neither.
        """
        return {}

    def standard_consumer(self, directory: Path) -> Sequence[str | Path] | None:  # noqa: ARG002 - the embedded logs have no broker
        """Compile a consumer on Pulsar's standard Java client into `directory`, and return its command without
        arguments. None for the embedded logs, which are not topics of a broker. A subclass raises DevstackFailed if
        this machine cannot compile the consumer.
        """
        return None


class PulsarPlane(Plane):
    """One Pulsar broker with a namespace for the demo's topic."""

    name = "pulsar"
    load_share = 0.5
    """Half of the rates, because broker, bookie and client library share two cores with Airflow and Spark."""

    def prepare(self, say: Callable[[str], None]) -> None:
        """Fetch the broker unless it is in the cache. Raises MavenMissing, DevstackFailed."""
        say(f"Pulsar {PULSAR_4}: from the cache, or fetched with Maven the first time (240 MB)")
        pulsar_jars()

    def start(self, running: ExitStack, directory: Path) -> Mapping[str, str]:
        """Start the broker and create tenant and namespace; the broker's log is `pulsar/pulsar.log`. Raises DevstackFailed if the broker
        does not start, and the errors of `make_namespace`.
        """
        broker = running.enter_context(PulsarStandalone(directory / "pulsar", jvm=QUICK))
        access = PulsarAccess(admin_url=broker.admin_url, service_url=broker.service_url)
        make_namespace(access)
        return {
            "CLEAVE_PULSAR_ADMIN_URL": broker.admin_url,
            SERVICE_URL: broker.service_url,
        }

    def standard_consumer(self, directory: Path) -> Sequence[str | Path]:
        """Compile the consumer with this machine's JDK. Raises DevstackFailed if there is none."""
        return [*compile_programs(directory), CONSUMER]


def make_namespace(access: PulsarAccess) -> None:
    """Create tenant and namespace of the demo unless they exist, and change their settings to those that segments need. Waits up to
    CLUSTER_PATIENCE_SECONDS for the broker's cluster, then raises DataPlaneUnavailable. Also raises the errors of the admin API.
    """
    with closing(AdminCalls(access, call_timeout_seconds=ADMIN_TIMEOUT_SECONDS)) as admin:
        retry_for(lambda: _demand_cluster(admin), seconds=CLUSTER_PATIENCE_SECONDS)
        owner = {"allowedClusters": [CLUSTER_NAME], "adminRoles": []}
        for path, body in ((f"tenants/{TENANT}", owner), (f"namespaces/{NAMESPACE}", None)):
            admin.ask(Ask("PUT", path, f"make {path}", body=body, accept=_EXISTS), admin.deadline())
    with closing(Namespaces(access, call_timeout_seconds=ADMIN_TIMEOUT_SECONDS)) as namespaces:
        namespaces.check(NAMESPACE, fix=True)


def _demand_cluster(admin: AdminCalls) -> None:
    """Raise DataPlaneUnavailable if the broker does not report its cluster yet. A standalone broker is healthy a moment
    before, and a tenant cannot be created until then.
    """
    clusters = admin.ask(Ask("GET", "clusters", "list clusters"), admin.deadline()).document
    if CLUSTER_NAME not in clusters:
        raise DataPlaneUnavailable(f"the broker does not report cluster {CLUSTER_NAME!r} yet; try again")


EMBEDDED = Plane()
PLANES: Mapping[str, Plane] = {plane.name: plane for plane in (EMBEDDED, PulsarPlane())}


def plane_named(name: str) -> Plane:
    """Return the plane with this name; `embedded` if the name is empty. Raises InvalidInput for an unknown name."""
    plane = PLANES.get(name or EMBEDDED.name)
    if plane is None:
        raise InvalidInput(f"PLANE={name} is unknown; choose one of {', '.join(PLANES)}")
    return plane
