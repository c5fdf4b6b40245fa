"""Who may ask what: bearer tokens, signed with the secret that the workers share.

A token names a role and, for clients, the topics it is for, as patterns (`topic://acme/orders/*`). It may run out; it cannot be
called back before that, so give it a life (`cleave token --days`).
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Sequence
from dataclasses import dataclass

import jwt

from controller.domain.errors import AccessDenied, AccessForbidden, InvalidInput

CLIENT = "client"
"""May look up and consume the topics that its token names, and nothing else."""
_ALGORITHM = "HS256"
SHORTEST_SECRET = 32
"""Characters; a shorter secret could be guessed from a token."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows."""

    role: str
    topics: tuple[str, ...]

    def allows(self, topic: str) -> bool:
        """Whether the token is for this topic (`topic://tenant/namespace/name`)."""
        return self.role == CLIENT and any(fnmatch.fnmatchcase(topic, pattern) for pattern in self.topics)

    def demand(self, topic: str) -> None:
        """Raises AccessForbidden unless the token is for this topic."""
        if not self.allows(topic):
            raise AccessForbidden(f"this token is not for {topic}; ask for one that names it")


def sign(secret: str, topics: Sequence[str], life_seconds: float) -> str:
    """A client's token. Raises InvalidInput for a short secret or no topics."""
    demand_secret(secret)
    if not topics:
        raise InvalidInput("a token for no topic; name topics or patterns, such as topic://acme/orders/*")
    now = time.time()
    claims = {"role": CLIENT, "topics": list(topics), "iat": int(now), "exp": int(now + life_seconds)}
    return jwt.encode(claims, secret, algorithm=_ALGORITHM)


def read(secret: str, authorization: str | None) -> Grant:
    """What the header `Authorization: Bearer …` allows. Raises AccessDenied."""
    kind, _, token = (authorization or "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise AccessDenied("no token; send Authorization: Bearer and a token of `cleave token`")
    try:
        claims = jwt.decode(token.strip(), secret, algorithms=[_ALGORITHM], options={"require": ["exp"]})
    except jwt.ExpiredSignatureError:
        raise AccessDenied("the token has run out; ask for a new one") from None
    except jwt.InvalidTokenError:
        raise AccessDenied("the token is not valid here; ask for one of this installation") from None
    topics = claims.get("topics")
    if not isinstance(topics, list) or not all(isinstance(one, str) for one in topics):
        raise AccessDenied("the token names no topics; ask for a new one")
    return Grant(str(claims.get("role")), tuple(topics))


def demand_secret(secret: str) -> None:
    """Raises InvalidInput for a secret that is too short."""
    if len(secret) < SHORTEST_SECRET:
        raise InvalidInput(
            f"CLEAVE_API_SECRET has {len(secret)} characters; give at least {SHORTEST_SECRET}, "
            "for instance of `openssl rand -hex 32`"
        )
