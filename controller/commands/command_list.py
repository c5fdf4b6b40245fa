"""What `cleave` can do, by name; each command's file is loaded when the command is asked for.

Loading them all would take a second of processor, most of it for libraries of other commands. So the list says what
each command is about, and the command says the same in its own help.
"""

from __future__ import annotations

import gc
import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from controller.commands.remote_verbs import gated

GENERATED = "actions:group"
"""Place of a subject whose commands are all generated from its actions."""
_PACKAGE = "controller.commands"


class Listed(TyperCommand):
    """Stands for a command until it is asked for: it has the name and the help, and knows where the rest is."""

    def __init__(self, name: str, where: str, about: str) -> None:
        """`where` is `file:attribute`."""
        super().__init__(name, help=about)
        self._where = where

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 - the signature is the library's
        """The whole sentence: the list breaks it into lines."""
        return self.help or ""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """What runs, completes and explains it from here on is the command itself."""
        return self.load().make_context(*arguments, **options)

    def load(self) -> Any:
        """The command."""
        file, attribute = self._where.split(":")
        gc.disable()  # while libraries load nothing becomes garbage, and looking for it takes a tenth of that time
        try:
            found = getattr(importlib.import_module(f"{_PACKAGE}.{file}"), attribute)
            if self._where == GENERATED:
                found = found(self.name)
        finally:
            gc.freeze()
            gc.enable()
        if isinstance(found, typer.Typer):
            found.rich_markup_mode = None
            command: Any = typer.main.get_group(found)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command()(found)
            command = typer.main.get_command(alone)
        command.name, command.help = self.name, self.help
        _gate(command, self.name or "")
        return command


def _gate(command: Any, verb: str) -> None:
    """Have the command and its verbs refuse where they cannot go: see `reach.verbs`."""
    for name, one in getattr(command, "commands", {}).items():
        _gate(one, f"{verb} {name}")
    if command.callback is not None:
        command.callback = gated(verb, command.callback)


_COMMANDS = {
    "topics": ("topics:app", "Topics: create, adopt, attach, detach, recover, list, show, delete."),
    "segments": (GENERATED, "Segments: split, merge, rebucket, recut by hand."),
    "policy": (
        GENERATED,
        "Auto-scaling policies of cluster, namespace, topic: get, set, remove, effective; and candidates: propose, promote.",
    ),
    "subscriptions": ("subscriptions:app", "Subscriptions: create, list, cursors, set, delete, seek."),
    "consumers": (
        "subscriptions:consumers_app",
        "Consumers of a stream subscription: register, unregister, list, lag, and why nothing comes.",
    ),
    "dead-letters": (
        GENERATED,
        "Messages that a subscription could not handle: list, and put back into the topic.",
    ),
    "bundles": (
        "bundles:app",
        "Namespace bundles: show, draw, split, unload; collect, aggregate, propose, approve, apply; why, and replay.",
    ),
    "decide": (
        "decide:decide",
        "Say what would be decided and what would be left alone, and why; changes nothing.",
    ),
    "what-if": (
        "what_if:what_if",
        "Say what another policy would decide for a topic, beside the one in force; changes nothing.",
    ),
    "backtest": (
        "backtest:backtest",
        "Say what policies would have cost on the load that was recorded, and how far that is from the best possible.",
    ),
    "approvals": (
        GENERATED,
        "What waits for a person: operations that a policy holds back, bundle proposals, promotions; list, approve, reject.",
    ),
    "backtests": ("backtest:app", "Backtests that were run: list, show, results."),
    "decisions": (
        "decisions:app",
        "Decisions: list, show, refusals; or replay them: the same inputs, the same answer.",
    ),
    "operations": ("questions:operations", "List operations, newest first."),
    "audit": ("questions:audit", "List requests that changed something or were denied, newest first."),
    "layout": ("ledger:layout", "Show the layout now, or as it was."),
    "key": (
        "ledger:key",
        "Say which segment holds a key, now or then, and which sealed segments hold its earlier messages.",
    ),
    "hot-keys": (
        "hot_keys:hot_keys",
        "Show which part of each segment has the most load, and the load that no split can take away.",
    ),
    "lineage": ("ledger:lineage", "Draw which segment came from which, as a tree."),
    "check-history": (
        "check_history:check_history",
        "Say of a run's histories whether every message came, in the order of its key; exit 1 if not.",
    ),
    "top": ("live:top", "Look at the fleet live: what needs somebody first, then what is hottest."),
    "watch": (
        "live:watch",
        "Look at a topic live: its ring, load, operations, and why nothing more is done.",
    ),
    "token": (
        "token:token",
        "Print a token for these topics, or of another role, signed with CLEAVE_API_SECRET.",
    ),
    "migrate": ("processes:migrate", "Bring the database to this version's schema: roles, tables, views."),
    "worker": (
        "processes:worker",
        "Run the worker until SIGTERM: it reacts to consumers and load, and runs operations.",
    ),
    "metrics": (
        "processes:metrics",
        "Serve the fleet's metrics to Prometheus until SIGTERM: layouts, load, operations, what is held back, out of the database.",
    ),
    "traces": (
        "traces:traces",
        "Send what was done to an OpenTelemetry collector until SIGTERM: from samples over decisions to each step of a change.",
    ),
    "serve": (
        "processes:serve",
        "Serve over HTTP until SIGTERM without working: people's calls, layouts, watches; sessions are sent to the workers.",
    ),
    "collect": (
        "processes:collect",
        "Sample the counters of every watched segment into the landing area, and see who consumes, until SIGTERM.",
    ),
    "doctor": (
        "doctor:doctor",
        (
            "Check database, roles, schema, workers, Java, Spark, samples and load, Pulsar and Airflow; exit 1 if something "
            "is wrong."
        ),
    ),
}
"""Where a command is, and what it is about, in the order of the list."""


class CommandList(TyperGroup):
    """The group of all commands. Its help and its completion are read off the list and load nothing."""

    def __init__(self, **attributes: Any) -> None:
        listed = {name: Listed(name, where, about) for name, (where, about) in _COMMANDS.items()}
        super().__init__(**{**attributes, "commands": listed})
