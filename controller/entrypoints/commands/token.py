"""`cleave token`: what an application shows the workers when it produces or consumes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from controller.client.servers import topic_path
from controller.domain.errors import InvalidInput
from controller.entrypoints.commands.options import AsJson, topic_name
from controller.entrypoints.output import emit, say
from controller.entrypoints.web import access
from controller.settings import load_settings

LONGEST_DAYS = 3660


def token(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC...",
            help="What the token is for: topics, or patterns in quotes such as 'acme/shop/*'.",
        ),
    ],
    days: Annotated[
        int,
        typer.Option(
            "--days", help=f"Days until it runs out, 1 to {LONGEST_DAYS}; it cannot be called back earlier."
        ),
    ] = 30,
    as_json: AsJson = False,
) -> None:
    """Print a token with which an application produces to and consumes these topics, signed with CLEAVE_API_SECRET."""
    secret = load_settings().api_secret
    if secret is None:
        raise InvalidInput(
            "CLEAVE_API_SECRET is not set, so no worker would take this token; set the secret that the workers have"
        )
    if not 1 <= days <= LONGEST_DAYS:
        raise InvalidInput(f"--days {days} is no life of a token; give 1 to {LONGEST_DAYS}")
    names = [topic_name(one) for one in topics]
    for name in names:
        topic_path(name)  # raises for what no topic is called
    life = timedelta(days=days)
    signed = access.sign(secret.get_secret_value(), names, life.total_seconds())
    if as_json:
        expires_at = datetime.now(UTC).replace(microsecond=0) + life
        emit(True, {"token": signed, "topics": names, "expires_at": expires_at}, "")
    else:
        say(signed)
