"""`cleave token`: tokens for applications, people and brokers that call workers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from controller.client.servers import topic_path
from controller.command_output import emit, say
from controller.commands.options import AsJson
from controller.domain.errors import InvalidInput
from controller.domain.names import topic_name
from controller.settings import load_settings
from controller.web import access
from controller.web.access import Role

LONGEST_DAYS = 3660


def _topics(texts: list[str] | None) -> list[str]:
    """Return the full names of the topics, or of the patterns; empty for None. Raises InvalidInput for an invalid name."""
    names = [topic_name(text) for text in texts or []]
    for name in names:
        topic_path(name)  # raises for an invalid topic name
    return names


def _namespaces(texts: list[str] | None) -> list[str]:
    """Return the namespaces unchanged; empty for None. Raises InvalidInput unless each has the form `tenant/namespace`, in which both parts
    may be patterns, or is `*`.
    """
    for text in texts or []:
        if text != "*" and (text.count("/") != 1 or not all(text.split("/")) or " " in text):
            raise InvalidInput(
                f"{text!r} is not a namespace; write tenant/namespace, 'tenant/*', or '*' for all"
            )
    return texts or []


def token(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC...]",
            help="Topics of a client's token, or patterns in quotes such as 'acme/shop/*'.",
            callback=_topics,
        ),
    ] = None,
    role: Annotated[
        Role,
        typer.Option(
            help="client produces and consumes; reader reads everything except the audit and dead letters; operator also splits, merges and sets "
            "policies in its namespaces; admin does everything except consume; broker writes load.",
        ),
    ] = Role.CLIENT,
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            help="Namespace of an operator's token, or a pattern in quotes such as 'acme/*'; repeatable.",
            callback=_namespaces,
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(help="Holder of the token in the journal and the audit. Default: the name of the role."),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=LONGEST_DAYS, help="Lifetime in days. A token cannot be revoked.")
    ] = 30,
    as_json: AsJson = False,
) -> None:
    """Print a token of the role, signed with CLEAVE_API_SECRET; as JSON also its holder, its scope and the time of its expiry. Raises
    InvalidInput if CLEAVE_API_SECRET is not set, and the errors of `access.sign`. The help text is in `command_list`.
    """
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
    """Return the secret that signs tokens. Raises InvalidInput if CLEAVE_API_SECRET is not set."""
    secret = load_settings().api_secret
    if secret is None:
        raise InvalidInput(
            "CLEAVE_API_SECRET is not set, so no worker would accept this token; set the secret of the workers"
        )
    return secret.get_secret_value()
