"""Small clusters by hand and random clusters, for tests of shedding, placement and the cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from controller.bundles.domain.balancing.moves import BalanceState, BrokerAverages
from controller.bundles.domain.balancing.settings import PLACEMENT_NAMES, SHEDDER_NAMES, BalanceSettings
from controller.bundles.domain.cluster import Broker, BrokerReport, Bundle, Cluster, NamespacePolicy
from controller.bundles.domain.load import (
    BrokerResources,
    BundleLoad,
    BundleStats,
    ResourceUsage,
    TimeAverage,
)

NOW_MS = 1_800_000_000_000
MIB = 2.0**20


def bundle_id(index: int, namespace: str = "t/ns") -> str:
    return f"{namespace}/0x{index:08x}_0x{index + 1:08x}"


def bundle(index: int, owner: str | None, mib: float, *, namespace: str = "t/ns", topics: int = 1) -> Bundle:
    """A bundle of `mib` MiB/s each way, a thousand bytes a message, in both averages."""
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
    """A broker whose processor and both directions are used to `percent`; its totals are its bundles'."""
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
    """Brokers at these percentages with bundles of these MiB/s; bundles are numbered across brokers."""
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
# Most bundles are with the first two, have traffic and are known: clusters in which something moves.
_OWNERS = st.sampled_from(["b-1"] * 6 + ["b-2"] * 3 + ["b-3", "b-4", "b-5", None])
_RATES = st.sampled_from([1.0, 1.0, 2.0, 3.0, 5.0, 5.0, 8.0, 13.0, 21.0, 0.0, 300.0])
_NAMESPACES = st.sampled_from(["t/ns"] * 6 + ["t/other", "pulsar/system", "pulsar/h:8080"])
_PERCENTS = st.sampled_from([0, 5, 10, 20, 35, 50, 65, 120])
_POLICIES = st.builds(
    NamespacePolicy, st.none() | st.frozensets(_NAMES, min_size=2), st.sampled_from([None, None, "group"])
)


@st.composite
def bundles(draw: st.DrawFn, index: int) -> Bundle:
    owner, rate, namespace = draw(st.tuples(_OWNERS, _RATES, _NAMESPACES))
    made = bundle(index, owner, rate, namespace=namespace)
    known = draw(st.integers(0, 11))
    if known == 0:
        return Bundle(made.bundle_id, owner)
    if known == 1:  # the last minutes were not what this minute is
        short = TimeAverage(10, 3, *(draw(_RATES) * unit for unit in (1e3, 1e3, MIB, MIB)))
        return Bundle(made.bundle_id, owner, made.stats, BundleLoad(short))
    return made


@st.composite
def brokers(draw: st.DrawFn, name: str, found: Sequence[Bundle]) -> Broker:
    odd = draw(st.integers(0, 19))
    percent = draw(st.sampled_from([70, 90, 95, 100]) if name == "b-1" else _PERCENTS)
    if odd == 0:
        return Broker(name)
    return broker(
        name,
        percent,
        found,
        age_ms=10_000_000 if odd == 1 else 0,
        limit={2: 0.0, 3: 800.0}.get(odd, 100.0),
        domain=draw(st.sampled_from([None, "rack-1", "rack-2"])),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    names = ["b-1", *(f"b-{i}" for i in range(2, draw(st.integers(1, 5)) + 1))]
    found = [draw(bundles(index)) for index in range(draw(st.integers(0, 10)))]
    policies = draw(st.just({}) | st.dictionaries(st.sampled_from(["t/ns", "t/other"]), _POLICIES))
    return Cluster(tuple(draw(brokers(name, found)) for name in names), tuple(found), policies)


@st.composite
def states(draw: st.DrawFn) -> BalanceState:
    """Half of the time an empty state, which refuses no move."""
    if draw(st.booleans()):
        return BalanceState()
    hits = st.dictionaries(_NAMES, st.integers(0, 9), max_size=4)
    instants = st.integers(NOW_MS - 4_000_000, NOW_MS)
    averages = st.builds(BrokerAverages, st.floats(0, 1.2), st.floats(0, 1e9), instants)
    usages = st.dictionaries(_NAMES, st.floats(0, 1.2), max_size=4)
    numbered = st.integers(0, 9).map(bundle_id)
    return BalanceState(
        usage_averages=draw(usages),
        placement_averages=draw(usages),
        broker_averages=draw(st.dictionaries(_NAMES, averages, max_size=4)),
        low_hits=draw(hits),
        high_hits=draw(hits),
        hot_hits=draw(hits),
        cold_hits=draw(hits),
        condition_hits=draw(st.integers(0, 5)),
        unloaded_bundles=draw(st.dictionaries(numbered, instants, max_size=3)),
        unloaded_brokers=draw(st.dictionaries(_NAMES, instants, max_size=2)),
        filled_brokers=draw(st.dictionaries(_NAMES, instants, max_size=2)),
        planned=draw(st.dictionaries(numbered, _NAMES, max_size=4)),
        round_robin=draw(st.integers(0, 5)),
        draws=draw(st.integers(0, 1_000)),
    )


@st.composite
def settings(draw: st.DrawFn, shedders: Sequence[str] = SHEDDER_NAMES) -> BalanceSettings:
    """Valid ones, most of them eager: low floors, few hits."""
    patient = draw(st.integers(0, 9)) == 0
    return BalanceSettings(
        shedder=draw(st.sampled_from(shedders)),
        placement=draw(st.sampled_from(PLACEMENT_NAMES)),
        excluded_namespaces=draw(st.sampled_from(["", "", "", "t/other", "t/x, t/ns"])),
        shed_bundles_with_policies=draw(st.sampled_from([True, True, False])),
        max_moves_per_cycle=draw(st.sampled_from([0, 1, 2, 256])),
        threshold_min_byte_rate=1.0 * MIB if patient else 0.0,
        threshold_lower_boundary=draw(st.booleans()),
        uniform_byte_rate_ratio=draw(st.sampled_from([0.0, 1.1, 4.0])),
        uniform_msg_rate_difference=draw(st.sampled_from([0.0, 0.1])),
        unload_fraction=draw(st.sampled_from([0.2, 0.5, 1.0])),
        min_unload_msg_rate=1_000.0 if patient else 0.0,
        min_unload_byte_rate=1.0 * MIB if patient else 0.0,
        max_unload_bundles=draw(st.sampled_from([-1, -1, 0, 2])),
        avg_low_hits=8 if patient else 1,
        avg_high_hits=2 if patient else 1,
        transfer_target_std=draw(st.sampled_from([0.05, 0.25])),
        transfer_hits=3 if patient else 0,
        transfer_enabled=draw(st.booleans()),
        transfer_top_bundles=draw(st.sampled_from([2, 10])),
        even_hits=2 if patient else 1,
        strict_pulsar=draw(st.booleans()),
    )
