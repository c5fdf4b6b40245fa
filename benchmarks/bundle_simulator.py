"""A simulated cluster of brokers: bundles carry traffic, brokers report it, cycles move bundles.

A cycle is one minute. A broker reports the traffic of its bundles over the previous minute, with a little noise, so a move is visible in
the next report. The seed determines everything. Bundles of a broker that fails are placed at once by the placement, as by a lookup; only
the shedder moves bundles otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev

from controller.bundles.domain.balancing.balance import BalanceInputs, balance, place
from controller.bundles.domain.balancing.moves import BalanceState, Move
from controller.bundles.domain.balancing.placement import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Broker, BrokerReport, Bundle, Cluster
from controller.bundles.domain.load import BrokerResources, BundleLoad, BundleStats, ResourceUsage

CYCLE_MS = 60_000
BYTES_PER_MESSAGE = 1_000.0
_START_MS = 1_800_000_000_000


@dataclass(frozen=True)
class Cycle:
    """State of the cluster at one cycle before its moves: usage by broker, and the moves."""

    usage: dict[str, float]
    moves: tuple[Move, ...]
    moved_bytes: float

    @property
    def std(self) -> float:
        """Population standard deviation of usage, as Pulsar's transfer shedder measures it."""
        return pstdev(self.usage.values())

    @property
    def spread(self) -> float:
        """The standard deviation as a share of the mean."""
        mean = fmean(self.usage.values())
        return self.std / mean if mean else 0.0


@dataclass
class Simulation:
    """A simulated cluster. `capacity`: bytes per second that a broker can carry in each direction; `traffic`: bytes per second of a
    bundle in each direction; `owners`: the broker of each bundle.
    """

    capacity: dict[str, float]
    traffic: dict[str, float]
    owners: dict[str, str]
    settings: BalanceSettings
    seed: int = 0
    noise: float = 0.0
    cycle_ms: int = CYCLE_MS
    most_moves: int | None = None
    """So many of the moves decided are carried out in a cycle; the rest waits for the next one."""
    cycles: list[Cycle] = field(default_factory=list)
    state: BalanceState = field(default_factory=BalanceState)
    stays: dict[str, list[str]] = field(default_factory=dict)
    _loads: dict[str, BundleLoad] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.now_ms = _START_MS

    def usage(self) -> dict[str, float]:
        """Return the true usage by broker: bytes in one direction divided by the capacity."""
        carried = dict.fromkeys(self.capacity, 0.0)
        for bundle, owner in self.owners.items():
            carried[owner] += self.traffic[bundle]
        return {name: carried[name] / self.capacity[name] for name in self.capacity}

    def step(self) -> Cycle:
        """Perform one cycle: report, decide, move at most `most_moves` bundles. Return its record."""
        self.now_ms += self.cycle_ms
        cluster = self._cluster()
        inputs = BalanceInputs(cluster=cluster, settings=self.settings, state=self.state, now_ms=self.now_ms)
        verdict = balance(inputs)
        moves = verdict.moves[: self.most_moves]
        cycle = Cycle(self.usage(), moves, 2 * sum(self.traffic[m.bundle_id] for m in moves))
        for move in moves:
            assert self.owners[move.bundle_id] == move.source
            self.stays.setdefault(move.bundle_id, [move.source]).append(str(move.destination))
            self.owners[move.bundle_id] = str(move.destination)
        self.state = verdict.state.after(moves, self.now_ms)
        self.cycles.append(cycle)
        return cycle

    def run(self, cycles: int) -> None:
        """Perform `cycles` cycles."""
        for _ in range(cycles):
            self.step()

    def join(self, name: str, capacity: float) -> None:
        """Add a new, empty broker."""
        self.capacity[name] = capacity

    def fail(self, name: str) -> None:
        """Remove a broker, and place each of its bundles on a remaining broker."""
        del self.capacity[name]
        lost = sorted(bundle for bundle, owner in self.owners.items() if owner == name)
        for bundle in lost:
            self.owners[bundle] = ""
        cluster = self._cluster()
        occupancy, state = Occupancy(cluster, self.settings), self.state
        for bundle in lost:
            choice = place(cluster.bundle_by_id[bundle], occupancy, self.settings, state)
            assert choice.broker is not None
            occupancy.move(bundle, choice.broker)
            self.owners[bundle], state = choice.broker, choice.state
        self.state = state

    def forget(self) -> None:
        """Delete the balancing state and the record of cycles; bundles keep their averages."""
        self.state = BalanceState()
        self.cycles.clear()
        self.stays.clear()

    def _cluster(self) -> Cluster:
        bundles = tuple(self._bundle(name, owner) for name, owner in self.owners.items())
        totals = {name: BundleStats() for name in self.capacity}
        for bundle in bundles:
            if bundle.owner is not None and bundle.stats is not None:
                totals[bundle.owner] = _sum(totals[bundle.owner], bundle.stats)
        return Cluster(tuple(self._broker(name, stats) for name, stats in totals.items()), bundles)

    def _bundle(self, name: str, owner: str) -> Bundle:
        rate = self.traffic[name] * (1 + self.noise * self._random.uniform(-1, 1))
        messages = rate / BYTES_PER_MESSAGE
        stats = BundleStats(messages, messages, rate, rate, topic_count=1)
        self._loads[name] = self._loads.get(name, BundleLoad()).with_sample(stats)
        return Bundle(name, owner or None, stats, self._loads[name])

    def _broker(self, name: str, stats: BundleStats) -> Broker:
        limit = self.capacity[name]
        usages = (ResourceUsage(rate, limit) for rate in (stats.byte_rate_in, stats.byte_rate_out))
        bandwidth_in, bandwidth_out = usages
        resources = BrokerResources(bandwidth_in, ResourceUsage(), bandwidth_in, bandwidth_out)
        return Broker(name, BrokerReport(resources, stats, self.now_ms))


def _sum(first: BundleStats, second: BundleStats) -> BundleStats:
    return replace(
        first,
        msg_rate_in=first.msg_rate_in + second.msg_rate_in,
        msg_rate_out=first.msg_rate_out + second.msg_rate_out,
        byte_rate_in=first.byte_rate_in + second.byte_rate_in,
        byte_rate_out=first.byte_rate_out + second.byte_rate_out,
        topic_count=first.topic_count + second.topic_count,
    )


def named_case(usages: Sequence[float], bundles_each: int, settings: BalanceSettings) -> Simulation:
    """Return a cluster of equal brokers at these usages (percent), each with `bundles_each` equal bundles, none if idle."""
    capacity = 100.0 * 2**20
    traffic, owners = {}, {}
    for index, usage in enumerate(usages):
        for part in range(bundles_each if usage else 0):
            bundle = f"t/ns{index}/0x{part:08x}_0x{part + 1:08x}"
            traffic[bundle], owners[bundle] = usage / 100 * capacity / bundles_each, f"broker-{index}"
    return Simulation({f"broker-{i}": capacity for i in range(len(usages))}, traffic, owners, settings)


def zipf_cluster(brokers: int, settings: BalanceSettings, seed: int, mean_usage: float = 0.4) -> Simulation:
    """Return a cluster of equal brokers with 16 bundles each on average, placed at random as hashing does; traffic by Zipf's law.

    There are 64 topics for each bundle, in random bundles; the k-th most used carries 1/k^0.9 of the first. The traffic of a bundle is
    kept below half of the mean usage of a broker, as by splitting.
    """
    rng = random.Random(seed)
    capacity, count = 100.0 * 2**20, 16 * brokers
    weights = [0.0] * count
    for rank in range(64 * count):
        weights[rng.randrange(count)] += 1 / (rank + 1) ** 0.9
    total = mean_usage * capacity * brokers
    scale = total / sum(weights)
    heaviest = capacity * mean_usage / 2
    names = [f"t/ns{i % 64}/0x{i:08x}_0x{i + 1:08x}" for i in range(count)]
    traffic = {name: min(weight * scale, heaviest) for name, weight in zip(names, weights, strict=True)}
    owners = {name: _name(rng.randrange(brokers)) for name in names}
    return Simulation(
        {_name(i): capacity for i in range(brokers)}, traffic, owners, settings, seed, noise=0.05
    )


def _name(index: int) -> str:
    return f"broker-{index:04d}"


def least_load_to_move(usage: dict[str, float], spread: float = 0.25) -> float:
    """Return the usage that any method must move, if load were a liquid, so that std is `spread` times the mean (equal brokers).

    Load moves from the fullest to the emptiest: for each amount the highest are cut to one level and the lowest filled to one level,
    which gives the least deviation for that amount. The amount is found by bisection.
    """
    loads = sorted(usage.values())
    mean = fmean(loads)
    enough = sum(max(0.0, load - mean) for load in loads)
    low, high = 0.0, enough
    if pstdev(loads) <= spread * mean:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        levelled = _levelled(loads, middle, mean)
        low, high = (low, middle) if pstdev(levelled) <= spread * mean else (middle, high)
    return high


def _levelled(loads: list[float], amount: float, mean: float) -> list[float]:
    top = _level_at(amount, mean, max(loads), lambda line: sum(max(0.0, load - line) for load in loads))
    bottom = _level_at(amount, mean, min(loads), lambda line: sum(max(0.0, line - load) for load in loads))
    return [min(max(load, bottom), top) for load in loads]


def _level_at(amount: float, near: float, far: float, moved: Callable[[float], float]) -> float:
    """Return the level between the mean and an extreme beyond which exactly `amount` lies."""
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (near, middle) if moved(middle) < amount else (middle, far)
    return (near + far) / 2
