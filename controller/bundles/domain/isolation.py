"""Pulsar's namespace isolation policies: the brokers on which a namespace's bundles may be, and the brokers that all namespaces share.

The rules are those of `LoadManagerShared.applyNamespacePolicies` in 4.2.4. A policy names namespaces and brokers by regular expressions
over the whole name. A broker's name here is its host, without the port. A namespace belongs to the first policy that names it. Its
bundles may be on the primary brokers. While fewer than `min_primaries` primary brokers are active, they may be on the secondary ones too.
A namespace without a policy may be on every broker that is primary in no policy.

Pulsar reads the expressions as Java's. An expression that Python cannot read permits nothing: as a namespace it matches every namespace,
as a broker it allows none, and it keeps namespaces without a policy off all brokers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """One policy of a cluster. `namespaces` are regular expressions over the whole name of a namespace, `primary` and `secondary` over the
    whole host of a broker, without the port. `min_primaries`: number of active primary brokers below which the secondary brokers may be
    used too.
    """

    name: str
    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_primaries: int = 1


class Isolation:
    """The policies of one cluster with its active brokers (`host:port`)."""

    def __init__(self, policies: Sequence[IsolationPolicy], active: Iterable[str]) -> None:
        self._policies = tuple(policies)
        self._active = tuple(sorted(active))

    def allowed(self, namespace: str) -> frozenset[str] | None:
        """Return the active brokers that the first policy for the namespace allows: the policy's primary brokers.
        While fewer than `min_primaries` of the primary brokers are active, the policy's secondary brokers are
        included. Empty if no such broker is active; None if no policy names the namespace.

        An expression that Python cannot read matches every namespace, and no broker.
        """
        matching = (
            candidate
            for candidate in self._policies
            if _any_matches(candidate.namespaces, namespace, unreadable=True)
        )
        policy = next(matching, None)
        if policy is None:
            return None
        primary = {name for name in self._active if _names_broker(policy.primary, name)}
        secondary = {name for name in self._active if _names_broker(policy.secondary, name)}
        return frozenset(primary | secondary if len(primary) < policy.min_primaries else primary)

    @property
    def without_broker(self) -> tuple[IsolationPolicy, ...]:
        """The policies that name no active broker, neither a primary nor a secondary one."""
        return tuple(
            policy
            for policy in self._policies
            if not any(_names_broker((*policy.primary, *policy.secondary), name) for name in self._active)
        )

    @property
    def shared(self) -> frozenset[str] | None:
        """The active brokers that no policy names as primary; None if there is no policy. If a policy has a primary
        expression that Python cannot read, the expression counts as naming every broker, so the result is empty.
        """
        if not self._policies:
            return None
        return frozenset(
            name
            for name in self._active
            if not any(_names_broker(policy.primary, name, unreadable=True) for policy in self._policies)
        )


def _names_broker(expressions: Iterable[str], broker: str, *, unreadable: bool = False) -> bool:
    """Return True if an expression matches the whole host of the broker (`host:port`). `unreadable`: True if an expression that Python
    cannot read counts as a match.
    """
    return _any_matches(expressions, broker.rpartition(":")[0], unreadable=unreadable)


def _any_matches(expressions: Iterable[str], name: str, *, unreadable: bool) -> bool:
    """Return True if an expression matches the whole name. `unreadable`: True if an expression that Python cannot read counts as a
    match.
    """
    for expression in expressions:
        pattern = _compiled(expression)
        if unreadable if pattern is None else pattern.fullmatch(name):
            return True
    return False


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> re.Pattern[str] | None:
    """Return the compiled expression. None if Python cannot read the expression."""
    try:
        return re.compile(expression)
    except re.error:
        return None
