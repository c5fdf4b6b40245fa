"""`cleave token`: what an application shows the workers when it produces or consumes, and a person or a broker who asks them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from controller.client.servers import topic_path
from controller.commands.options import AsJson
from controller.domain.errors import InvalidInput
from controller.domain.names import topic_name
from controller.settings import load_settings
from controller.terminal import emit, say
from controller.web import access
from controller.web.access import Role

LONGEST_DAYS = 3660


def _days(days: int) -> int:
    if not 1 <= days <= LONGEST_DAYS:
        raise InvalidInput(f"--days {days} is no life of a token; give 1 to {LONGEST_DAYS}")
    return days


def _topics(texts: list[str] | None) -> list[str]:
    names = [topic_name(one) for one in texts or []]
    for name in names:
        topic_path(name)  # raises for what no topic is called
    return names


def _namespaces(texts: list[str] | None) -> list[str]:
    for text in texts or []:
        if text != "*" and (text.count("/") != 1 or not all(text.split("/")) or " " in text):
            raise InvalidInput(
                f"{text!r} is no namespace; write tenant/namespace, 'tenant/*', or '*' for all"
            )
    return texts or []


Topics = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC...]",
        help="What a client's token is for: topics, or patterns in quotes such as 'acme/shop/*'.",
        callback=_topics,
    ),
]
Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        help="A namespace of an operator, or a pattern in quotes such as 'acme/*'; repeatable.",
        callback=_namespaces,
    ),
]
Holder = Annotated[
    Role,
    typer.Option(
        help="client consumes; reader sees everything; operator also splits, merges and sets policies in its namespaces; "
        "admin may do everything but consume; broker writes load.",
    ),
]
Subject = Annotated[
    str | None, typer.Option(help="Who holds it, for the journal and the audit; the role's name without.")
]
Days = Annotated[
    int,
    typer.Option(
        help=f"Days until it runs out, 1 to {LONGEST_DAYS}; it cannot be called back earlier.",
        callback=_days,
    ),
]


def token(
    topics: Topics = None,
    role: Holder = Role.CLIENT,
    namespaces: Namespaces = None,
    subject: Subject = None,
    days: Days = 30,
    as_json: AsJson = False,
) -> None:
    """Print a token for these topics, or of another role, signed with CLEAVE_API_SECRET."""
    names, where, life = topics or [], namespaces or [], timedelta(days=days)
    signed = access.sign(_secret(), names, life.total_seconds(), role=role, namespaces=where, subject=subject)
    if not as_json:
        say(signed)
        return
    document = {
        "token": signed,
        "subject": subject or role.value,
        "role": role.value,
        "topics": names,
        "namespaces": where,
        "expires_at": datetime.now(UTC).replace(microsecond=0) + life,
    }
    emit(True, document, "")


def _secret() -> str:
    secret = load_settings().api_secret
    if secret is None:
        raise InvalidInput(
            "CLEAVE_API_SECRET is not set, so no worker would take this token; set the secret that the workers have"
        )
    return secret.get_secret_value()
