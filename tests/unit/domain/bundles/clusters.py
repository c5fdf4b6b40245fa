"""Small clusters by hand and any cluster at random, for whoever tests shedding, placement or the cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from controller.domain.bundles.balance_settings import PLACEMENT_NAMES, SHEDDER_NAMES, BalanceSettings
from controller.domain.bundles.balance_state import BalanceState, BrokerAverages
from controller.domain.bundles.cluster import Broker, BrokerReport, Bundle, Cluster, NamespacePolicy
from controller.domain.bundles.figures import BundleLoad, TimeAverage
from controller.domain.bundles.resources import BrokerResources, ResourceUsage
from controller.domain.bundles.stats import BundleStats

NOW_MS = 1_800_000_000_000
MIB = 2.0**20


def bundle_id(index: int, namespace: str = "t/ns") -> str:
    return f"{namespace}/0x{index:08x}_0x{index + 1:08x}"


def bundle(index: int, owner: str | None, mib: float, *, namespace: str = "t/ns", topics: int = 1) -> Bundle:
    """A bundle of ``mib`` MiB/s each way, a thousand bytes a message, for as long as anybody remembers."""
    rate, messages = mib * MIB, mib * MIB / 1_000
    stats = BundleStats(messages, messages, rate, rate, topic_count=topics)
    return Bundle(bundle_id(index, namespace), owner, stats, BundleLoad().with_sample(stats))


def broker(
    name: str,
    percent: float,
    bundles: Sequence[Bundle] = (),
    *,
    age_ms: int = 0,
    limit: float = 100.0,
    domain: str | None = None,
) -> Broker:
    """A broker whose processor and both directions are used to ``percent``; its totals are its bundles'."""
    owned = [one.stats for one in bundles if one.owner == name and one.stats is not None]
    stats = BundleStats(
        sum(one.msg_rate_in for one in owned),
        sum(one.msg_rate_out for one in owned),
        sum(one.byte_rate_in for one in owned),
        sum(one.byte_rate_out for one in owned),
    )
    usage = ResourceUsage(percent * limit / 100, limit)
    resources = BrokerResources(usage, ResourceUsage(), usage, usage)
    return Broker(name, BrokerReport(resources, stats, NOW_MS - age_ms), domain)


def cluster(usages: Mapping[str, float], loads: Mapping[str, Sequence[float]]) -> Cluster:
    """Brokers at these percents with bundles of so many MiB/s; bundles are numbered through."""
    bundles = []
    for owner, rates in loads.items():
        bundles += [bundle(len(bundles) + i, owner, mib) for i, mib in enumerate(rates)]
    return Cluster(tuple(broker(name, percent, bundles) for name, percent in usages.items()), tuple(bundles))


def observed(of: Cluster, **state: object) -> BalanceState:
    """A state in which each broker's reported averages are what it reports now."""
    averages = {
        name: BrokerAverages(report.resources.cpu.fraction, report.stats.byte_rate, report.reported_at)
        for name, report in of.reporting
    }
    return BalanceState(broker_averages=averages, **state)  # type: ignore[arg-type]


_NAMES = st.sampled_from(["b-1", "b-2", "b-3", "b-4", "b-5"])
_RATES = st.sampled_from([0.0, 0.0, 1.0, 5.0, 5.0, 20.0, 300.0]) | st.floats(0, 100)


@st.composite
def bundles(draw: st.DrawFn, index: int) -> Bundle:
    namespace = draw(st.sampled_from(["t/ns", "t/ns", "t/other", "pulsar/system", "pulsar/h:8080"]))
    made = bundle(index, draw(st.none() | _NAMES | _NAMES), draw(_RATES), namespace=namespace)
    short = TimeAverage(10, draw(st.integers(0, 10)), *(draw(_RATES) * unit for unit in (1e3, 1e3, MIB, MIB)))
    known = draw(st.sampled_from([True, True, True, False]))
    return Bundle(
        made.bundle_id, made.owner, made.stats if known else None, BundleLoad(short) if known else None
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    names = sorted(draw(st.sets(_NAMES, min_size=1)))
    found = [draw(bundles(index)) for index in range(draw(st.integers(0, 8)))]
    brokers = tuple(
        broker(
            name,
            draw(st.integers(0, 120) | st.floats(0, 100)),
            found,
            age_ms=draw(st.sampled_from([0, 0, 0, 10_000_000])),
            limit=draw(st.sampled_from([0.0, 100.0, 100.0, 800.0])),
            domain=draw(st.sampled_from([None, "rack-1", "rack-2"])),
        )
        if draw(st.integers(0, 9))
        else Broker(name)
        for name in names
    )
    policies = st.builds(
        NamespacePolicy, st.none() | st.frozensets(_NAMES), st.sampled_from([None, None, "group"])
    )
    return Cluster(
        brokers, tuple(found), draw(st.dictionaries(st.sampled_from(["t/ns", "t/other"]), policies))
    )


@st.composite
def states(draw: st.DrawFn) -> BalanceState:
    hits = st.dictionaries(_NAMES, st.integers(0, 9), max_size=4)
    instants = st.integers(NOW_MS - 4_000_000, NOW_MS)
    averages = st.builds(BrokerAverages, st.floats(0, 1.2), st.floats(0, 1e9), instants)
    usages = st.dictionaries(_NAMES, st.floats(0, 1.2), max_size=4)
    return BalanceState(
        usage_averages=draw(usages),
        placement_averages=draw(usages),
        broker_averages=draw(st.dictionaries(_NAMES, averages, max_size=4)),
        low_hits=draw(hits),
        high_hits=draw(hits),
        hot_hits=draw(hits),
        cold_hits=draw(hits),
        condition_hits=draw(st.integers(0, 5)),
        unloaded_bundles=draw(st.dictionaries(st.integers(0, 12).map(bundle_id), instants, max_size=3)),
        unloaded_brokers=draw(st.dictionaries(_NAMES, instants, max_size=2)),
        filled_brokers=draw(st.dictionaries(_NAMES, instants, max_size=2)),
        planned=draw(st.dictionaries(st.integers(0, 12).map(bundle_id), _NAMES, max_size=4)),
        round_robin=draw(st.integers(0, 5)),
        draws=draw(st.integers(0, 1_000)),
    )


@st.composite
def settings(draw: st.DrawFn) -> BalanceSettings:
    """Valid ones, eager ones preferred: low floors, few hits."""
    return BalanceSettings(
        shedder=draw(st.sampled_from(SHEDDER_NAMES)),
        placement=draw(st.sampled_from(PLACEMENT_NAMES)),
        excluded_namespaces=draw(st.sampled_from(["", "", "t/other", "t/x, t/ns"])),
        shed_bundles_with_policies=draw(st.booleans()),
        max_moves_per_cycle=draw(st.sampled_from([0, 1, 2, 256])),
        overloaded_usage=draw(st.sampled_from([0.3, 0.85])),
        threshold_min_byte_rate=draw(st.sampled_from([0.0, 10 * MIB])),
        threshold_lower_boundary=draw(st.booleans()),
        uniform_byte_rate_ratio=draw(st.sampled_from([0.0, 1.1, 4.0])),
        uniform_msg_rate_difference=draw(st.sampled_from([0.0, 0.1])),
        unload_fraction=draw(st.sampled_from([0.2, 1.0])),
        min_unload_msg_rate=draw(st.sampled_from([0.0, 1_000.0])),
        min_unload_byte_rate=draw(st.sampled_from([0.0, MIB])),
        max_unload_bundles=draw(st.sampled_from([-1, 0, 2])),
        avg_low_hits=draw(st.sampled_from([1, 8])),
        transfer_target_std=draw(st.sampled_from([0.05, 0.25])),
        transfer_hits=draw(st.sampled_from([0, 3])),
        transfer_enabled=draw(st.booleans()),
        transfer_top_bundles=draw(st.sampled_from([2, 10])),
        even_hits=draw(st.sampled_from([1, 2])),
        strict_pulsar=draw(st.booleans()),
    )
