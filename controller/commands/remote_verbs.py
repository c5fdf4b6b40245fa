"""Which commands go over HTTP too. A verb is a command as it is typed: `topics list`. One that is not listed needs the database.

Collecting, aggregating, proposing and applying are processes of the machine, beside which the database is; they stay there.
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
"""Commands that are written by hand and perform actions or ask questions; generated commands are not listed."""
NEITHER_WAY = frozenset({"token", "check-history"})
"""They ask nobody: it is the same to them whether a server is named."""

_PROCESS = "it is a process of the machine"
_A_SESSION = "over HTTP a consumer registers itself, by a session that lasts as long as it is there"
WHY: Mapping[str, str] = MappingProxyType(
    {
        **{f"bundles {verb}": _PROCESS for verb in ("collect", "aggregate", "propose", "apply")},
        "consumers register": _A_SESSION,
        "consumers unregister": _A_SESSION,
        "decisions replay --from-history": "it reads all that was recorded in the time, which takes longer than a call",
        "backtest --trace": "the file is here",
        "backtest --engine": "a server computes without Spark; the DAG policy_backtest takes one",
        "backtest --html": "a report has every step of the simulation in it",
    }
)
"""Of verbs and options that need the database, what is not plain from their names."""


def gated(verb: str, act: Callable[..., Any]) -> Callable[..., Any]:
    """`act`, which refuses where a server is named and the verb needs the database. Raises Unsupported."""
    if verb in BOTH_WAYS or verb in NEITHER_WAY or hasattr(act, "is_generated"):
        return act

    @functools.wraps(act)
    def on_database(*arguments: Any, **options: Any) -> Any:
        demand_database(verb)
        return act(*arguments, **options)

    return on_database


def demand_database(verb: str) -> None:
    """Refuse where a server is named: the verb, or the verb with that option, needs the database. Raises Unsupported."""
    url = _named()
    if url is not None:
        why = f": {WHY[verb]}" if verb in WHY else ""
        raise Unsupported(
            f"`cleave {verb}` needs the database and the machine themselves{why}; a server is named ({url}): unset "
            "CLEAVE_API_URL, leave out --api-url, and set CLEAVE_DATABASE_URL"
        )


def _named() -> str | None:
    try:
        return server_choice.server_url()
    except InvalidInput:  # of another setting it may be: the command says it, `doctor` among others
        return None
