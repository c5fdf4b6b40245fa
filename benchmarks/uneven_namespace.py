"""A namespace of a real cluster whose bundles are all on one broker, under uneven traffic, and the figures that brokers report of it.

For the proof of bundle balancing: `tests/integration/airflow/test_bundle_balance.py` and `bench_bundle_cluster`. It calls Pulsar's admin
API itself, so that the result is not judged by Cleave's own reads.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from controller.bundles.domain.ring import NamespaceBundles, topic_hash

CALL_SECONDS = 60.0
PARAMETERS: Final[Mapping[str, float | str]] = {
    "shedder": "uniform",
    "unload_fraction": 0.5,
    "min_unload_msg_rate": 10,
    "min_unload_byte_rate": 0,
    "overloaded_usage": 1,
}
"""Usage does not tell brokers of one machine apart, unless each is in a control group (`bench_bundle_even`). Each
reports the whole machine's processor (185.6 and 186.0 of 200 at the same moment), and of a virtual network card no
speed (a limit of -1000, which counts as unknown). So a shedder by usage, the default `even` too, finds nothing to do,
and a machine that is busy with other things makes both brokers overloaded, whatever they carry: hence the last
parameter. Traffic does tell them apart: `uniform` levels messages a second, half the difference at once, with a floor
below what flows here.
"""


def _patient_session() -> requests.Session:
    """Return a session that repeats reads to which a broker answers 500, as it does while bundles move."""
    session = requests.Session()
    retry = Retry(total=10, backoff_factor=0.1, status_forcelist=[500, 503], allowed_methods=["GET"])
    session.mount("http://", HTTPAdapter(max_retries=retry))
    return session


@dataclass
class UnevenNamespace:
    """A namespace under uneven traffic. `rates`: messages per second into each topic; each bundle has two topics."""

    admin_url: str
    brokers: Mapping[str, str]
    """Admin address by the broker's name (host:port)."""
    name: str
    bundles: NamespaceBundles
    rates: dict[str, float]
    session: requests.Session = field(default_factory=_patient_session)

    def owners(self) -> dict[str, str]:
        """Return the broker of each bundle that has one."""
        owners: dict[str, str] = {}
        [cluster] = [
            cluster_name
            for cluster_name in self.get(f"{self.admin_url}/admin/v2/clusters")
            if cluster_name != "global"
        ]
        for broker, url in self.brokers.items():
            owned = self.get(f"{url}/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces")
            owners |= {bundle: broker for bundle in owned if bundle.startswith(f"{self.name}/")}
        return owners

    def load(self) -> None:
        """Create and look up every topic, so that its bundle has an owner."""
        for topic in self.rates:
            path = f"persistent/{topic.partition('://')[2]}"
            made = self.session.put(f"{self.admin_url}/admin/v2/{path}", timeout=CALL_SECONDS)
            assert made.status_code in (204, 409), made.text
            self.get(f"{self.admin_url}/lookup/v2/topic/{path}")

    def move_all_to(self, broker: str) -> None:
        """Unload the bundles of other brokers until the broker owns all of them; clients of the traffic look the bundles up there."""
        for bundle in map(str, self.bundles.bundles):
            self.move(bundle, broker)

    def move(self, bundle: str, destination: str) -> None:
        """Unload the bundle until the destination owns it, because a broker may ignore the destination (apache/pulsar#24884)."""
        _until(lambda: self.unload(bundle, destination) == destination, f"{destination} owns {bundle}")

    def unload(self, bundle: str, destination: str) -> str:
        """Unload the bundle as `pulsar-admin` does, unless the destination owns it. Return the broker to which its clients brought it."""
        if self.owners().get(bundle) != destination:
            url = f"{self.admin_url}/admin/v2/namespaces/{bundle}/unload?destinationBroker={destination}"
            self.session.put(url, timeout=CALL_SECONDS).raise_for_status()
        return self.owner_of(bundle)

    def owner_of(self, bundle: str) -> str:
        """Return the owner of the bundle; wait until it has one."""
        owners: dict[str, str] = {}

        def is_owned() -> bool:
            owners.update(self.owners())
            return bundle in owners

        _until(is_owned, f"somebody owns {bundle}")
        return owners[bundle]

    def message_rates(self) -> dict[str, float]:
        """Return the messages per second, in and out together, by broker. Waits until each topic is reported by the broker of its bundle,
        and only there.
        """
        rates_by_broker: dict[str, dict[str, float]] = {}

        def is_settled() -> bool:
            rates_by_broker.update({name: self._counted(url) for name, url in self.brokers.items()})
            owners = self.owners()
            expected = sorted(
                (owners.get(str(self.bundles.bundle_of(topic)), ""), topic) for topic in self.rates
            )
            return (
                sorted((name, topic) for name, rates in rates_by_broker.items() for topic in rates)
                == expected
            )

        _until(is_settled, "each topic's rate is told by its broker")
        return {name: sum(rates.values()) for name, rates in rates_by_broker.items()}

    def _counted(self, url: str) -> dict[str, float]:
        spaces = self.get(f"{url}/admin/v2/broker-stats/topics")
        named = [topics for domains in spaces.get(self.name, {}).values() for topics in domains.values()]
        return {
            topic: stats["msgRateIn"] + stats["msgRateOut"]
            for topics in named
            for topic, stats in topics.items()
            if stats["msgRateIn"] > 0 and stats["msgRateOut"] > 0
        }

    def get(self, url: str) -> Any:
        """Return a document of the admin API."""
        answer = self.session.get(url, timeout=CALL_SECONDS)
        answer.raise_for_status()
        return answer.json()


def make(
    admin_url: str, brokers: Mapping[str, str], name: str, bundle_rates: Sequence[float]
) -> UnevenNamespace:
    """Create the tenant and the namespace (`tenant/namespace`) with one bundle for each rate. Return it with two topic names in each
    bundle, which share the rate; the topics are not created.
    """
    made = UnevenNamespace(admin_url, brokers, name, NamespaceBundles.equal(name, len(bundle_rates)), {})
    [cluster] = [
        cluster_name
        for cluster_name in made.get(f"{admin_url}/admin/v2/clusters")
        if cluster_name != "global"
    ]
    tenant = name.partition("/")[0]
    for path, document in (
        (f"tenants/{tenant}", {"allowedClusters": [cluster], "adminRoles": []}),
        (f"namespaces/{name}", {"bundles": {"numBundles": len(bundle_rates)}}),
    ):
        answer = made.session.put(f"{admin_url}/admin/v2/{path}", json=document, timeout=CALL_SECONDS)
        assert answer.status_code in (204, 409), answer.text
    names = (f"persistent://{name}/orders-{number}" for number in itertools.count())
    for bundle, rate in zip(made.bundles.bundles, bundle_rates, strict=True):
        inside = (topic for topic in names if bundle.contains(topic_hash(topic)))
        made.rates |= dict.fromkeys(itertools.islice(inside, 2), rate / 2)
    return made


def spread(rates: Mapping[str, float]) -> float:
    """Return the population standard deviation of the brokers' rates as a share of their mean."""
    return statistics.pstdev(rates.values()) / statistics.mean(rates.values())


def _until(is_so: Callable[[], bool], what: str, timeout_seconds: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_seconds:g} s: {what}")
        time.sleep(0.1)
