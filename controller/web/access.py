"""Who may ask what: bearer tokens, signed with the secret that the workers share.

A token names a role, who holds it, and what it is for: topics for a client, namespaces for an operator, both as patterns
(`topic://acme/orders/*`, `acme/*`). It may run out; it cannot be called back before that, so give it a life (`cleave token --days`).
What no role is given is denied.
"""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import jwt

from controller.actions.rights import Right
from controller.domain.errors import AccessDenied, AccessForbidden, InvalidInput, TokenOutOfTime
from controller.domain.shown import shown


class Role(StrEnum):
    """What its holder is."""

    CLIENT = "client"
    """An application: it looks up and consumes the topics that its token names."""
    READER = "reader"
    """Sees everything and changes nothing."""
    OPERATOR = "operator"
    """A reader who splits, merges and sets policies in the namespaces that its token names."""
    ADMIN = "admin"
    """Sees and changes everything; it consumes nothing."""
    BROKER = "broker"
    """Writes load, and may do nothing else."""


CLIENT = Role.CLIENT
_PEOPLE = frozenset({Role.READER, Role.OPERATOR, Role.ADMIN})
_ROLES_WITH: Mapping[Right, frozenset[Role]] = MappingProxyType(
    {
        Right.LOOK_UP: _PEOPLE | {Role.CLIENT},
        Right.CONSUME: frozenset({Role.CLIENT}),
        Right.READ: _PEOPLE,
        Right.OPERATE: frozenset({Role.OPERATOR, Role.ADMIN}),
        Right.ADMINISTER: frozenset({Role.ADMIN}),
        Right.WRITE_LOAD: frozenset({Role.BROKER}),
    }
)
_ALGORITHM = "HS256"
CLOCK_LEEWAY_SECONDS = 60
"""The clock of the machine that signs may differ by this from the clock of the machine that checks."""
SHORTEST_SECRET = 32
"""Characters; a shorter secret could be guessed from a token."""
LONGEST_SUBJECT = 200
_LATEST = 2**53
"""No token runs out later; `exp` may be any number."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows, and to whom."""

    role: Role
    topics: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    subject: str = ""
    ends_at: float = math.inf
    """`time.time()` at which the token runs out."""

    def stream_until(self, now: float) -> float:
        """Return when a stream that is opened now ends: when the token runs out. One that is accepted only for the clocks' sake ends when no
        clock accepts it.
        """
        return self.ends_at if now < self.ends_at else self.ends_at + CLOCK_LEEWAY_SECONDS

    def allows(self, topic: str) -> bool:
        """Whether its holder may know of this topic (`topic://tenant/namespace/name`)."""
        return self.may(Right.LOOK_UP, topic=topic)

    def may(self, right: Right, *, topic: str | None = None, namespace: str | None = None) -> bool:
        """Whether it gives the right, on that topic or in that namespace (`tenant/namespace`) where one is asked for."""
        if self.role not in _ROLES_WITH[right]:
            return False
        if self.role is Role.CLIENT:
            return topic is None or _fits(topic, self.topics)
        if self.role is Role.OPERATOR and right is Right.OPERATE:
            return namespace is not None and _fits(namespace, self.namespaces)
        return True

    def demand(self, right: Right, *, topic: str | None = None, namespace: str | None = None) -> None:
        """Raises AccessForbidden unless it gives the right there."""
        if not self.may(right, topic=topic, namespace=namespace):
            where = topic or namespace
            raise AccessForbidden(
                f"this token, of role {self.role}, is not for {where}; ask for one that names it"
                if where and self.role in _ROLES_WITH[right]
                else f"this token, of role {self.role}, does not give the right to {right}; ask for one of role {roles_with(right)}"
            )


def roles_with(right: Right) -> str:
    """The roles that give a right, for a sentence."""
    return " or ".join(role for role in Role if role in _ROLES_WITH[right])


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def sign(
    secret: str,
    topics: Sequence[str],
    life_seconds: float,
    *,
    role: Role = Role.CLIENT,
    namespaces: Sequence[str] = (),
    subject: str | None = None,
) -> str:
    """A token of the role; who holds it is the role itself where nobody is named.

    Raises InvalidInput for a short secret, a client without topics, an operator without namespaces, or what the role has no use for.
    """
    demand_secret(secret)
    _demand_whole(role, topics, namespaces)
    holder = role.value if subject is None else subject
    if not 0 < len(holder) <= LONGEST_SUBJECT or not holder.isprintable():
        raise InvalidInput(
            f"{shown(holder)} is no subject; give a name of 1 to {LONGEST_SUBJECT} printable characters"
        )
    now = time.time()
    claims: dict[str, Any] = {
        "sub": holder,
        "role": role.value,
        "iat": int(now),
        "exp": int(now + life_seconds),
    }
    if topics:
        claims["topics"] = list(topics)
    if namespaces:
        claims["namespaces"] = list(namespaces)
    return jwt.encode(claims, secret, algorithm=_ALGORITHM)


def _demand_whole(role: Role, topics: Sequence[str], namespaces: Sequence[str]) -> None:
    if role is Role.CLIENT and not topics:
        raise InvalidInput("a token for no TOPIC; name topics or patterns, such as topic://acme/orders/*")
    if role is Role.OPERATOR and not namespaces:
        raise InvalidInput("an operator of no namespace; name namespaces or patterns, such as acme/*")
    if topics and role is not Role.CLIENT:
        raise InvalidInput(f"a token of role {role} is for no topics; leave them out")
    if namespaces and role is not Role.OPERATOR:
        raise InvalidInput(f"a token of role {role} is for no namespaces; leave them out")


def read(secret: str, authorization: str | None) -> Grant:
    """What the header `Authorization: Bearer …` allows. Raises TokenOutOfTime where another time would do, else AccessDenied."""
    kind, _, token = (authorization or "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise AccessDenied("no token; send Authorization: Bearer and a token of `cleave token`")
    try:
        claims = jwt.decode(
            token.strip(),
            secret,
            algorithms=[_ALGORITHM],
            options={"require": ["exp"]},
            leeway=CLOCK_LEEWAY_SECONDS,
        )
    except jwt.ExpiredSignatureError:
        raise TokenOutOfTime("the token has run out; ask for a new one") from None
    except jwt.ImmatureSignatureError:
        raise TokenOutOfTime(
            "the token was signed for a later time than it is here; set the clocks, or ask for a new one"
        ) from None
    except jwt.InvalidTokenError:
        raise AccessDenied("the token is not valid here; ask for one of this installation") from None
    try:
        role = Role(str(claims.get("role")))
    except ValueError:
        raise AccessDenied("the token names no role that is known here; ask for a new one") from None
    grant = Grant(
        role,
        _names(claims, "topics"),
        _names(claims, "namespaces"),
        str(claims.get("sub") or role),
        float(min(int(claims["exp"]), _LATEST)),
    )
    if (role is Role.CLIENT and not grant.topics) or (role is Role.OPERATOR and not grant.namespaces):
        raise AccessDenied(f"the token of a {role} does not name what it is for; ask for a new one")
    return grant


def _names(claims: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    names = claims.get(claim, [])
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise AccessDenied(f"the {claim} of the token are no names; ask for a new one")
    return tuple(names)


def demand_secret(secret: str) -> None:
    """Raises InvalidInput for a secret that is too short."""
    if len(secret) < SHORTEST_SECRET:
        raise InvalidInput(
            f"CLEAVE_API_SECRET has {len(secret)} characters; give at least {SHORTEST_SECRET}, "
            "for instance of `openssl rand -hex 32`"
        )
