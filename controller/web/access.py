"""Bearer tokens and the rights they give. A token is signed with the secret that the workers share.

A token names a role, a holder and a scope: topics for a client, namespaces for an operator, both as patterns (`topic://acme/orders/*`,
`acme/*`). A token cannot be revoked, so limit its lifetime (`cleave token --days`). A right that no role has is denied.

A server that mounts the REST API, such as Airflow, authenticates its users itself; `grant_of_user` gives them their rights.
"""

from __future__ import annotations

import fnmatch
import functools
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import jwt

from controller.actions.rights import Right
from controller.domain.errors import AccessDenied, AccessForbidden, InvalidInput, TokenOutOfTime
from controller.domain.formatting import shown


class Role(StrEnum):
    """Role of the holder of a token."""

    CLIENT = "client"
    """An application: it looks up and consumes the topics that its token names."""
    READER = "reader"
    """Reads everything except the audit and dead letters. Changes nothing, and starts no backtest."""
    OPERATOR = "operator"
    """A reader who splits, merges and sets policies in the namespaces that its token names."""
    ADMIN = "admin"
    """Reads and changes everything, and consumes nothing."""
    BROKER = "broker"
    """Writes load, and has no other right."""


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
"""Latest expiry of a token; `exp` may be any number."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights of one token: the role, the holder (`subject`) and the scope. `topics` and `namespaces` are patterns, in which `*` stands for
    any text.
    """

    role: Role
    topics: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    subject: str = ""
    ends_at: float = math.inf
    """`time.time()` at which the token expires."""

    def stream_until(self, now: float) -> float:
        """Return the time (`time.time()`) at which a stream that is opened at `now` must end: the expiry of the token. If the token has
        expired and is accepted within the clock leeway, the end of the leeway.
        """
        return self.ends_at if now < self.ends_at else self.ends_at + CLOCK_LEEWAY_SECONDS

    def may(self, right: Right, *, topic: str | None = None, namespace: str | None = None) -> bool:
        """Return True if the role has the right and the scope of the grant includes the topic or the namespace
        (`tenant/namespace`). `topic` is compared only for a client: with `topic` None, a client has each right of its
        role. `namespace` is compared only for an operator that wants to operate: with `namespace` None, the result is
        False.
        """
        if self.role not in _ROLES_WITH[right]:
            return False
        if self.role is Role.CLIENT:
            return topic is None or _fits(topic, self.topics)
        if self.role is Role.OPERATOR and right is Right.OPERATE:
            return namespace is not None and _fits(namespace, self.namespaces)
        return True

    def may_look_into(self, namespace: str) -> bool:
        """Return False if no topic of the namespace (`tenant/namespace`) can match a topic pattern of a client. True for
        other roles. The text of a pattern up to its first `*` is compared, so True does not mean that a topic matches.
        """
        beginning = f"topic://{namespace}/"
        return self.role is not Role.CLIENT or any(
            begun.startswith(beginning) or (wildcard != "" and beginning.startswith(begun))
            for begun, wildcard, _ in (pattern.partition("*") for pattern in self.topics)
        )

    def demand(self, right: Right, *, topic: str | None = None, namespace: str | None = None) -> None:
        """Raise AccessForbidden if `may` is False."""
        if not self.may(right, topic=topic, namespace=namespace):
            where = topic or namespace
            raise AccessForbidden(
                f"this token of role {self.role} does not include {where}; request a token that names {where}"
                if where and self.role in _ROLES_WITH[right]
                else f"this token of role {self.role} does not give the right to {right}; request a token of role {roles_with(right)}"
            )


def grant_of_user(name: str, may: Callable[[Right], bool]) -> Grant:
    """Return the grant of a user of the server that mounts the REST API. `may` says whether the user has a right. The
    role is the highest to which the user is entitled: admin with the right to administer, operator of every namespace
    with the right to operate, reader with the right to read. The subject is `name`, cut to `LONGEST_SUBJECT`
    characters. Raises AccessForbidden for a user without any of these rights.
    """
    subject = name[:LONGEST_SUBJECT]
    if may(Right.ADMINISTER):
        return Grant(Role.ADMIN, subject=subject)
    if may(Right.OPERATE):
        return Grant(Role.OPERATOR, namespaces=("*",), subject=subject)
    if may(Right.READ):
        return Grant(Role.READER, subject=subject)
    raise AccessForbidden(
        f"user {subject} may not see plugins here; ask an administrator of Airflow for the right"
    )


def roles_with(right: Right) -> str:
    """Return the names of the roles that give the right, joined by ` or `."""
    return " or ".join(role for role in Role if role in _ROLES_WITH[right])


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    """Return True if the name matches one of the patterns, in which `*` stands for any text, `/` included."""
    return any(expression.match(name) for expression in _expressions(patterns))


@functools.lru_cache(maxsize=256)
def _expressions(patterns: tuple[str, ...]) -> list[re.Pattern[str]]:
    """Return one regular expression for each pattern. The results are cached, because a watch compares many names."""
    # Names may contain the other wildcards of fnmatch, `?` and `[`; in brackets each stands for itself.
    return [re.compile(fnmatch.translate(re.sub(r"([?[])", r"[\1]", pattern))) for pattern in patterns]


def sign(
    secret: str,
    topics: Sequence[str],
    life_seconds: float,
    *,
    role: Role = Role.CLIENT,
    namespaces: Sequence[str] = (),
    subject: str | None = None,
) -> str:
    """Return a token of the role, valid for `life_seconds` from now. The holder is `subject`, or the name of the role if `subject` is
    None.

    Raises InvalidInput for a short secret, a subject that is empty, too long or not printable, a client without topics, an operator
    without namespaces, or a scope that the role does not use. The patterns and `life_seconds` are not checked.
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
    """Raise InvalidInput unless the scope fits the role: topics for a client, namespaces for an operator, nothing for other roles."""
    if role is Role.CLIENT and not topics:
        raise InvalidInput("the token names no TOPIC; name topics or patterns, such as topic://acme/orders/*")
    if role is Role.OPERATOR and not namespaces:
        raise InvalidInput(
            "an operator's token names no namespace; name namespaces or patterns, such as acme/*"
        )
    if topics and role is not Role.CLIENT:
        raise InvalidInput(f"a token of role {role} takes no topics; leave them out")
    if namespaces and role is not Role.OPERATOR:
        raise InvalidInput(f"a token of role {role} takes no namespaces; leave them out")


def read(secret: str, authorization: str | None) -> Grant:
    """Return the grant of the header `Authorization: Bearer …`.

    Raises TokenOutOfTime for a token that is expired or not yet valid, with a leeway of CLOCK_LEEWAY_SECONDS. Raises AccessDenied for no
    token, a malformed token, a token of another installation, without an expiry or of an unknown role, a client or operator token without a
    scope, and a scope that is not a list of texts. The subject of a token without `sub` is the name of the role.
    """
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
        raise TokenOutOfTime("the token has expired; request a new token") from None
    except jwt.ImmatureSignatureError:
        raise TokenOutOfTime(
            "the token is not valid yet by the clock of this worker; set the clocks, or request a new token"
        ) from None
    except jwt.InvalidTokenError:
        raise AccessDenied(
            "the token was not signed by this installation; request a token of this installation"
        ) from None
    try:
        role = Role(str(claims.get("role")))
    except ValueError:
        raise AccessDenied("the role of the token is unknown; request a new token") from None
    grant = Grant(
        role,
        _names(claims, "topics"),
        _names(claims, "namespaces"),
        str(claims.get("sub") or role),
        float(min(int(claims["exp"]), _LATEST)),
    )
    if (role is Role.CLIENT and not grant.topics) or (role is Role.OPERATOR and not grant.namespaces):
        raise AccessDenied(f"the token of role {role} names no topics or namespaces; request a new token")
    return grant


def _names(claims: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    """Return the names in the claim; empty if the token does not have the claim. Raises AccessDenied if the claim is not a list of texts."""
    names = claims.get(claim, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise AccessDenied(f"the claim {claim} of the token is not a list of names; request a new token")
    return tuple(names)


def demand_secret(secret: str) -> None:
    """Raise InvalidInput if the secret has fewer than `SHORTEST_SECRET` characters."""
    if len(secret) < SHORTEST_SECRET:
        raise InvalidInput(
            f"CLEAVE_API_SECRET has {len(secret)} characters; give at least {SHORTEST_SECRET}, "
            "for instance of `openssl rand -hex 32`"
        )
