"""Pulsar's namespace isolation policies: which brokers a namespace's bundles may be on, and which are everybody's.

The rules are those of `LoadManagerShared.applyNamespacePolicies` in 4.2.4. A policy names namespaces and brokers by
regular expressions over the whole name. A broker's name here is its host, without the port. A namespace belongs to the
first policy that names it. Its bundles may be on the primary brokers. While fewer than `min_primaries` primary ones are
active, they may be on the secondary ones too. A namespace without a policy may be on every broker that is primary in no
policy.

Pulsar reads the expressions as Java's. An expression that Python cannot read permits nothing. Among a policy's
namespaces it names every namespace. Among its brokers it names none that they may have, and it keeps namespaces without
a policy off all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """One policy of a cluster; all but `min_primaries` are regular expressions."""

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
        """The active brokers that the namespace's policy allows; None where no policy names it."""
        found = (one for one in self._policies if _any_matches(one.namespaces, namespace, unreadable=True))
        policy = next(found, None)
        if policy is None:
            return None
        primary = {name for name in self._active if _names_broker(policy.primary, name)}
        secondary = {name for name in self._active if _names_broker(policy.secondary, name)}
        return frozenset(primary | secondary if len(primary) < policy.min_primaries else primary)

    @property
    def without_broker(self) -> tuple[IsolationPolicy, ...]:
        """The policies that name no active broker, neither a primary nor a secondary one."""
        return tuple(
            one
            for one in self._policies
            if not any(_names_broker((*one.primary, *one.secondary), name) for name in self._active)
        )

    @property
    def shared(self) -> frozenset[str] | None:
        """The active brokers that are primary in no policy; None where there is no policy."""
        if not self._policies:
            return None
        return frozenset(
            name
            for name in self._active
            if not any(_names_broker(one.primary, name, unreadable=True) for one in self._policies)
        )


def _names_broker(expressions: Iterable[str], broker: str, *, unreadable: bool = False) -> bool:
    return _any_matches(expressions, broker.rpartition(":")[0], unreadable=unreadable)


def _any_matches(expressions: Iterable[str], name: str, *, unreadable: bool) -> bool:
    for expression in expressions:
        pattern = _compiled(expression)
        if unreadable if pattern is None else pattern.fullmatch(name):
            return True
    return False


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> re.Pattern[str] | None:
    try:
        return re.compile(expression)
    except re.error:
        return None
