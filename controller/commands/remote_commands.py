"""The commands that also work over HTTP. A verb is a command as it is typed: `topics list`. A verb that is not listed needs the database.

Collecting, aggregating, proposing and applying are processes that run next to the database.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from controller.commands import server_choice
from controller.domain.errors import InvalidInput, Unsupported

BOTH_WAYS = frozenset(
    {
        "topics show",
        "decide",
        "what-if",
        "decisions replay",
        "bundles brokers",
        "bundles replay",
        "backtest",
        "backtests show",
        "hot-keys",
        "top",
        "watch",
        "layout",
        "lineage",
        "key",
    }
)
"""Handwritten commands that perform actions or read questions on the database and over HTTP. Generated commands are not listed."""
NEITHER_WAY = frozenset({"token", "check-history"})
"""Commands that use neither the database nor a server."""

_PROCESS = "it runs as a process on the machine"
_A_SESSION = "over HTTP a consumer registers itself with a session"
WHY: Mapping[str, str] = MappingProxyType(
    {
        **{f"bundles {verb}": _PROCESS for verb in ("collect", "aggregate", "propose", "apply")},
        "consumers register": _A_SESSION,
        "consumers unregister": _A_SESSION,
        "decisions replay --from-history": "it reads the whole recorded history, which takes longer than a call",
        "backtest --trace": "the file is here",
        "backtest --engine": "a server computes without Spark; use the DAG policy_backtest",
        "backtest --html": "a report contains every step of the simulation",
    }
)
"""Reasons why verbs and options need the database, where their names do not show it."""


def gated(verb: str, act: Callable[..., Any]) -> Callable[..., Any]:
    """Return `act` wrapped so that it raises Unsupported if a server is used. A verb that works over HTTP, or needs no database, is
    returned unchanged.
    """
    if verb in BOTH_WAYS or verb in NEITHER_WAY or hasattr(act, "is_generated"):
        return act

    @functools.wraps(act)
    def on_database(*arguments: Any, **options: Any) -> Any:
        demand_database(verb)
        return act(*arguments, **options)

    return on_database


def demand_database(verb: str) -> None:
    """Raise Unsupported if a server is used, because the verb, or the verb with that option, needs the database. Does nothing if the
    server's address or another setting is invalid, which the command itself reports.
    """
    url = _named()
    if url is not None:
        why = f": {WHY[verb]}" if verb in WHY else ""
        raise Unsupported(
            f"`cleave {verb}` needs the database and the machine{why}; CLEAVE_API_URL or --api-url names a server ({url}): unset "
            "CLEAVE_API_URL, leave out --api-url, and set CLEAVE_DATABASE_URL"
        )


def _named() -> str | None:
    """Return the address of the server; None if there is none, or if the settings are invalid."""
    try:
        return server_choice.server_url()
    except InvalidInput:  # another setting may be wrong, which the command itself reports
        return None
