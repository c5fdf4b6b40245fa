"""Selection of the destination of a bundle: the permitted brokers (`Occupancy`), the rules that choose among them, and
the rules by the name that the settings give.

- `least_long_term_rate`: the broker with the lowest long-term message rate. Pulsar's `LeastLongTermMessageRate`, its default.
- `least_usage` and `least_reported_usage`: a broker well below the mean usage. Pulsar's `LeastResourceUsageWithWeight`, in the variants
  of both load managers. The modular manager keeps its own moving averages, and every choice advances them. The extensible manager uses
  the averages of the brokers' reports, and leaves brokers without a report out of the mean.
- `round_robin`: one broker after the other. Pulsar's `RoundRobinBrokerSelector`.
- `planned`: the broker that the shedder `avg` planned for the bundle. The placement of Pulsar's `AvgShedder`.

The filters of permitted brokers are those of Pulsar's modular manager, in its order: isolation policy, too many topics, anti-affinity, even
spread of the namespace. If they leave no broker, every broker that the isolation policy allows is a candidate again. A bundle of an
anti-affinity group then has no candidate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.bundles.domain.balancing.moves import BalanceState
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Bundle, Cluster
from controller.bundles.domain.load import UNKNOWN_LOAD, moving_average, weighted_max_usage
from controller.domain.named import entry_named
from controller.domain.pulsar_names import is_system_namespace


class Occupancy:
    """The owners of a cluster's bundles while a cycle decides, at first those in the cluster, and the brokers that may take a bundle. `move`
    changes the owners; the other public methods only read. `settings` gives the limit of topics and whether namespaces are spread. An
    instance serves one decision.
    """

    def __init__(self, cluster: Cluster, settings: BalanceSettings) -> None:
        """Count the topics, bundles and long-term rates of each broker by the owners in the cluster."""
        self.cluster = cluster
        self._settings = settings
        self._active = tuple(name for name, _ in cluster.reporting)
        self._topics: Counter[str] = Counter()
        self._bundles: Counter[tuple[str, str]] = Counter()  # (broker, namespace)
        self._long_term: defaultdict[str, float] = defaultdict(float)
        self._owner: dict[str, str | None] = {}
        for bundle in cluster.bundles:
            self._settle(bundle, bundle.owner)

    def long_term_msg_rate(self, broker: str) -> float:
        """Return the sum of the long-term rates (messages per second) of the broker's bundles, after the moves so far. A bundle without
        averages counts with the 100 of `UNKNOWN_LOAD`.
        """
        return self._long_term[broker]

    def move(self, bundle_id: str, destination: str) -> None:
        """Change the owner of the bundle to the destination, and the counts of both brokers; no filter is checked. The cluster itself does
        not change. Raises KeyError for a bundle that is not in the cluster.
        """
        bundle = self.cluster.bundle_by_id[bundle_id]
        source = self._owner[bundle_id]
        if source is not None:
            self._count(bundle, source, -1)
        self._settle(bundle, destination)

    def allowed(self, bundle: Bundle) -> tuple[str, ...]:
        """Return the brokers with a report that isolation policies allow for the namespace of the bundle, by name."""
        brokers = self.cluster.allowed_for(bundle.namespace)
        return self._active if brokers is None else tuple(name for name in self._active if name in brokers)

    def may_take(self, bundle: Bundle, broker: str) -> bool:
        """Return True if the broker has a report, the isolation policy allows the broker, and the bundle's topics
        would not bring the broker above `max_topics_per_broker`. For a bundle of an anti-affinity group the broker
        must also be among the best brokers for the group. The even spread of namespaces is not checked.

        `broker` must not be the bundle's owner: the topics of the bundle would count twice.
        """
        policy, allowed = self.cluster.policy_of(bundle.namespace), self.cluster.allowed_for(bundle.namespace)
        if broker not in self._active or (allowed is not None and broker not in allowed):
            return False
        if self._topics[broker] + _topics_of(bundle) > self._settings.max_topics_per_broker:
            return False
        if policy.anti_affinity_group is None:
            return True
        return broker in self._apart(bundle, self._with_room(self.allowed(bundle)))

    def candidates(self, bundle: Bundle) -> tuple[str, ...]:
        """Return the brokers to choose from, by name: the brokers with a report that the isolation policy allows,
        without those that would exceed `max_topics_per_broker` or that are not the best for the anti-affinity group.
        With `spread_namespaces`, and for a system namespace, only the brokers with the fewest bundles of the
        namespace remain.

        If these filters leave no broker, all allowed brokers are candidates; for a bundle of an anti-affinity group
        the result is empty. Empty also if the policy allows no broker with a report.
        """
        allowed = self.allowed(bundle)
        candidates = self._apart(bundle, self._with_room(allowed))
        if not candidates and self.cluster.policy_of(bundle.namespace).anti_affinity_group is not None:
            return ()
        if self._settings.spread_namespaces or is_system_namespace(bundle.namespace):
            candidates = _fewest(candidates, lambda name: (self._bundles[name, bundle.namespace],))
        return candidates or allowed

    def _with_room(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the brokers with at most `max_topics_per_broker` topics, not counting those of a bundle that may come."""
        max_topics = self._settings.max_topics_per_broker
        return tuple(name for name in names if self._topics[name] <= max_topics)

    def _apart(self, bundle: Bundle, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the brokers of `names` with the fewest namespaces of the bundle's anti-affinity group: the fewest in
        the broker's failure domain, and among equal brokers the fewest on the broker itself. For a namespace without
        a group, return all `names`.

        From this result, brokers are removed that have more of the group's *other* namespaces than the present owner,
        compared in the same way, even if no broker remains; Pulsar makes this check before it unloads a bundle. If
        the bundle has no owner in the cluster, no broker is removed.
        """
        group = self.cluster.policy_of(bundle.namespace).anti_affinity_group
        if group is None:
            return names
        members = [ns for ns, policy in self.cluster.policies.items() if policy.anti_affinity_group == group]
        company = self._company(members)
        fewest = _fewest(names, lambda name: company[name])
        owner = self._owner.get(bundle.bundle_id)
        if owner is None or owner not in company:
            return fewest
        counts_of_others = self._company([name for name in members if name != bundle.namespace])
        return tuple(name for name in fewest if counts_of_others[name] <= counts_of_others[owner])

    def _company(self, namespaces: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return, by broker of the cluster (with or without a report), the number of these namespaces in its failure domain, and the number
        on the broker itself. A namespace on two brokers of a domain counts twice in the first number.

        A broker without a failure domain is a domain of its own.
        """
        on_broker = {
            broker.name: sum(self._bundles[broker.name, namespace] > 0 for namespace in namespaces)
            for broker in self.cluster.brokers
        }
        domain_of = {broker.name: broker.failure_domain or broker.name for broker in self.cluster.brokers}
        in_domain: Counter[str] = Counter()
        for name, count in on_broker.items():
            in_domain[domain_of[name]] += count
        return {name: (in_domain[domain_of[name]], count) for name, count in on_broker.items()}

    def _settle(self, bundle: Bundle, owner: str | None) -> None:
        """Record the owner of the bundle, and add the bundle to the owner's counts. The counts of a previous owner do not change."""
        self._owner[bundle.bundle_id] = owner
        if owner is not None:
            self._count(bundle, owner, 1)

    def _count(self, bundle: Bundle, broker: str, sign: int) -> None:
        """Add the bundle to the counts of the broker (`sign` 1), or subtract the bundle from them (-1)."""
        self._topics[broker] += sign * _topics_of(bundle)
        self._bundles[broker, bundle.namespace] += sign
        self._long_term[broker] += sign * (bundle.load or UNKNOWN_LOAD).long_term.msg_rate


def _topics_of(bundle: Bundle) -> int:
    return bundle.stats.topic_count if bundle.stats else 0


def _fewest(names: tuple[str, ...], counts_of: Callable[[str], tuple[int, ...]]) -> tuple[str, ...]:
    """Return the names whose counts are lowest, in their order; empty without names. The first counts are compared
    first, and later counts decide between equal ones.
    """
    counts = {name: counts_of(name) for name in names}
    least = min(counts.values(), default=())
    return tuple(name for name in names if counts[name] == least)


@dataclass(frozen=True, slots=True)
class Choice:
    """The broker chosen, None without candidates. `among`: the brokers that were equally good. `state`: the state after the choice."""

    broker: str | None
    among: tuple[str, ...]
    state: BalanceState


Placement = Callable[[str, Sequence[str], Occupancy, BalanceSettings, BalanceState], Choice]
"""Chooses for a bundle, which is named first, one of the candidates: names of brokers with a report. Pure; it returns the
state after it.

Where Pulsar draws at random, a counter in the state decides. The same state gives the same choice.
"""


def any_of(best: Sequence[str], candidates: Sequence[str], state: BalanceState) -> Choice:
    """Choose one of `best` at random, or one of the candidates if `best` is empty; the state in the result counts the draw. If both are
    empty, the broker is None and the state is unchanged.
    """
    among = tuple(best) or tuple(candidates)
    if not among:
        return Choice(None, (), state)
    index, state = state.draw(len(among))
    return Choice(among[index], among, state)


def least_long_term_rate(
    bundle_id: str,  # noqa: ARG001 -- every bundle is placed alike
    candidates: Sequence[str],
    occupancy: Occupancy,
    settings: BalanceSettings,
    state: BalanceState,
) -> Choice:
    """Choose at random among the candidates with the lowest long-term message rate (`Occupancy.long_term_msg_rate`). Candidates whose
    weighted usage is above `overloaded_usage` are left out; if all are, choose at random among all. Without candidates the broker is None.
    Each candidate must have a report.

    The threshold is strict here (the overload shedder also takes brokers at the threshold). Bundles that are to come count already.
    Bundles that are to leave no longer count; in Pulsar they count until the next report.
    """
    reports = occupancy.cluster.report_of
    scores = {
        name: occupancy.long_term_msg_rate(name)
        for name in candidates
        if not weighted_max_usage(reports[name].resources, settings.weights) > settings.overloaded_usage
    }
    least = min(scores.values(), default=0.0)
    return any_of([name for name, score in scores.items() if score == least], candidates, state)


def least_usage(
    bundle_id: str,  # noqa: ARG001 -- every bundle is placed alike
    candidates: Sequence[str],
    occupancy: Occupancy,
    settings: BalanceSettings,
    state: BalanceState,
) -> Choice:
    """Choose at random among the candidates whose average usage is at least `placement_usage_gap` below the mean of all candidates; if
    there is none, among all candidates. Advance the candidates' averages in the state (`placement_averages`), as the modular manager
    does.

    The average of a broker without bundles or messages starts again from its present usage. Without candidates the broker is None.
    PIP-364 names six brokers at 40, 40, 40, 40, 69 and 70, where none is low enough, so that the fullest may be chosen.
    """
    averages = dict(state.placement_averages)
    reports = occupancy.cluster.report_of
    for name in candidates:
        usage = weighted_max_usage(reports[name].resources, settings.weights)
        idle = not occupancy.cluster.bundles_of(name) or reports[name].stats.msg_rate == 0
        averages[name] = moving_average(None if idle else averages.get(name), usage, settings.history_weight)
    best = _well_below({name: averages[name] for name in candidates}, settings)
    return any_of(best, candidates, replace(state, placement_averages=averages))


def least_reported_usage(
    bundle_id: str,  # noqa: ARG001 -- every bundle is placed alike
    candidates: Sequence[str],
    occupancy: Occupancy,  # noqa: ARG001 -- reported averages are in the state
    settings: BalanceSettings,
    state: BalanceState,
) -> Choice:
    """Choose as `least_usage` does, but by the averages of the brokers' reports (`broker_averages`), as the extensible manager does. A
    candidate without an average does not count in the mean, and can be chosen only if no other is low enough.
    """
    averages = state.broker_averages
    return any_of(
        _well_below({name: averages[name].usage for name in candidates if name in averages}, settings),
        candidates,
        state,
    )


def _well_below(usages: Mapping[str, float], settings: BalanceSettings) -> list[str]:
    """Return the brokers whose usage is at least `placement_usage_gap` below the mean of all; empty without brokers."""
    if not usages:
        return []
    mean = sum(usages.values()) / len(usages)
    return [name for name, usage in usages.items() if usage + settings.placement_usage_gap <= mean]


LAST_TURN: Final = 2**31 - 1
"""After this the counter starts again from 0, as in Pulsar."""


def round_robin(
    bundle_id: str,  # noqa: ARG001 -- every bundle is placed alike
    candidates: Sequence[str],
    occupancy: Occupancy,  # noqa: ARG001 -- load plays no part
    settings: BalanceSettings,  # noqa: ARG001 -- nothing to set
    state: BalanceState,
) -> Choice:
    """Choose the candidate whose turn it is: the index in `candidates` is the state's counter modulo their number. The counter advances by
    1, and starts again from 0 after `LAST_TURN`. Without candidates the broker is None, and the counter stays. Bundle, load and settings
    play no part.

    The order of the candidates is by name, so the choice is a function of the counter and the candidates. Pulsar keeps an order, and
    renews it only when the number of candidates changes or the chosen broker has left.
    """
    if not candidates:
        return Choice(None, (), state)
    turn = state.round_robin
    chosen = candidates[turn % len(candidates)]
    following = replace(state, round_robin=0 if turn >= LAST_TURN else turn + 1)
    return Choice(chosen, (chosen,), following)


def planned(
    bundle_id: str,
    candidates: Sequence[str],
    occupancy: Occupancy,  # noqa: ARG001 -- load was looked at when the plan was made
    settings: BalanceSettings,  # noqa: ARG001 -- nothing to set
    state: BalanceState,
) -> Choice:
    """Choose the broker that the state has planned for the bundle; without a plan, or if this broker is no candidate, a random candidate,
    which becomes the plan. Without candidates the broker is None.
    """
    planned_broker = state.planned.get(bundle_id)
    if planned_broker in candidates and planned_broker is not None:
        return Choice(planned_broker, (planned_broker,), state)
    choice = any_of((), sorted(candidates), state)
    if choice.broker is None:
        return choice
    plans = {**choice.state.planned, bundle_id: choice.broker}
    return replace(choice, state=replace(choice.state, planned=plans))


PLACEMENTS: Mapping[str, Placement] = {
    "least_long_term_rate": least_long_term_rate,
    "least_usage": least_usage,
    "least_reported_usage": least_reported_usage,
    "round_robin": round_robin,
    "planned": planned,
}


def placement(name: str) -> Placement:
    """Return the placement of that name. Raises InvalidInput for an unknown name; the message lists the names."""
    return entry_named("placement", name, PLACEMENTS)
