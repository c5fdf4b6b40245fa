"""Shell completion of topics, policy levels, policy parameters and data planes.

A shell waits for the answer and cannot show a message, so any error results in no proposals.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import typer

from controller.dataplane.registry import PLANE_NAMES
from controller.domain.policy import PARAMETERS

if TYPE_CHECKING:
    from controller.questions.question import Row

MOST = 100
"""Maximum number of proposed names."""
_SCHEME = "topic://"
SERVER_SECONDS = 2.0
"""Timeout of a server's answer."""


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return up to `MOST` names of topics that begin with the typed word; none after an error. The word may lack `topic://`, and the names
    then lack it too, because bash splits words at a colon. Names that are not printable are left out.
    """
    scheme = _SCHEME if incomplete.startswith(_SCHEME) else ""
    prefix = _SCHEME + incomplete.removeprefix(_SCHEME)
    rows = _answers(context, "topics list", prefix)
    names = [str(row["topic"]) for row in rows]
    return [scheme + name.removeprefix(_SCHEME) for name in names if name.isprintable()]


def levels(context: typer.Context, incomplete: str) -> list[str]:
    """Return the policy levels that begin with the typed word: the cluster, namespaces and topics; up to `MOST` of each kind. After an
    error, namespaces and topics are left out.
    """
    cluster = [level for level in ("cluster",) if level.startswith(incomplete)]
    namespaces = _answers(context, "topics namespaces", incomplete)
    return [*cluster, *(str(row["namespace"]) for row in namespaces), *topics(context, incomplete)]


def parameters(context: typer.Context, incomplete: str) -> list[str]:
    """Return the policy parameters that begin with the typed word, followed by `=`; in commands of bundles, the parameters of a split
    policy.
    """
    names: Collection[str] = PARAMETERS
    if "bundles" in context.command_path.split():
        from controller.bundles.domain.splitting.policy import SplitPolicy

        names = SplitPolicy.__dataclass_fields__
    return [f"{parameter}=" for parameter in names if parameter.startswith(incomplete)]


def planes(incomplete: str) -> list[str]:
    """Return the data planes that begin with the typed word, configured or not."""
    return [plane for plane in PLANE_NAMES if plane.startswith(incomplete)]


def _answers(context: typer.Context, name: str, prefix: str) -> Sequence[Row]:
    """Return up to MOST rows of the topic question `name` with the prefix, from the server of the typed line or of the settings, otherwise
    from the database. Any error gives no rows.

    The server's address is read from the line, because the options of an incomplete line have not been processed.
    """
    try:
        from controller.commands.server_choice import ask, name_server
        from controller.questions.question import questions_of

        name_server(context.find_root().params.get("api_url"))
        [question] = [question for question in questions_of("topics") if question.name == name]
        return list(ask(question, {"prefix": prefix}, limit=MOST, most_seconds=SERVER_SECONDS))
    except Exception:  # noqa: BLE001 - a shell in the middle of a line can do nothing with it
        return []
