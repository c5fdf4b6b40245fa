"""The commands of `cleave` by name. The file of a command is loaded when the command is used.

Loading all files would take a second of processor time, most of it for libraries of other commands. So the list has a summary of each
command, which the command's own help repeats.
"""

from __future__ import annotations

import gc
import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from controller.commands.remote_commands import gated

GENERATED = "actions:group"
"""Location of a subject whose commands are all generated from its actions."""
_PACKAGE = "controller.commands"


class Listed(TyperCommand):
    """A command that is not loaded yet: its name, its summary and its location."""

    def __init__(self, name: str, location: str, about: str) -> None:
        """`location` is `file:attribute` in the package of commands; `about` is the summary."""
        super().__init__(name, help=about)
        self._where = location

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 - the signature is the library's
        """Return the whole summary; the list breaks it into lines."""
        return self.help or ""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Return the context of the loaded command, which runs, completes and prints help."""
        return self.load().make_context(*arguments, **options)

    def load(self) -> Any:
        """Import the command's file and return the command, whose help is the summary of the list instead of a docstring. If the command
        needs the database, running the command (not this method) raises Unsupported when a server is used. Garbage collection is off during
        the import, and on afterwards.
        """
        file, attribute = self._where.split(":")
        gc.disable()  # importing creates no garbage, and the collector would take a tenth of the time
        try:
            loaded = getattr(importlib.import_module(f"{_PACKAGE}.{file}"), attribute)
            if self._where == GENERATED:
                loaded = loaded(self.name)
        finally:
            gc.freeze()
            gc.enable()
        if isinstance(loaded, typer.Typer):
            loaded.rich_markup_mode = None
            command: Any = typer.main.get_group(loaded)
        else:
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.command()(loaded)
            command = typer.main.get_command(single)
        command.name, command.help = self.name, self.help
        _gate(command, self.name or "")
        return command


def _gate(command: Any, verb: str) -> None:
    """Change the command and its subcommands so that they raise Unsupported if they need the database and a server is used. `verb` is the
    command as it is typed, such as `topics list`.
    """
    for name, subcommand in getattr(command, "commands", {}).items():
        _gate(subcommand, f"{verb} {name}")
    if command.callback is not None:
        command.callback = gated(verb, command.callback)


_COMMANDS = {
    "topics": ("topics:app", "Topics: create, adopt, attach, detach, recover, list, show, delete."),
    "segments": (GENERATED, "Segments: split, merge, rebucket, recut by hand."),
    "policy": (
        GENERATED,
        "Auto-scaling policies of cluster, namespace, topic: get, set, remove, effective; and candidates: propose, promote.",
    ),
    "subscriptions": (GENERATED, "Subscriptions: create, list, cursors, set, delete, seek."),
    "consumers": (
        "consumers:app",
        "Consumers of a stream subscription: register, unregister, list, lag, and why nothing comes.",
    ),
    "dead-letters": (
        GENERATED,
        "Messages that a subscription could not handle: list, and redrive (publish again to the topic).",
    ),
    "bundles": (
        "bundles:app",
        "Namespace bundles: show, draw, split, unload; collect, aggregate, propose, approve, apply, and replay.",
    ),
    "decide": (
        "decide:decide",
        "Show what would be decided now, with the reasons for no action; changes nothing.",
    ),
    "what-if": (
        "what_if:what_if",
        "Compare the decisions of another policy with the policy in force; changes nothing.",
    ),
    "backtest": (
        "backtest:backtest",
        "Compute the cost of policies on recorded load, and compare it with the least possible cost.",
    ),
    "approvals": (
        GENERATED,
        "Approvals of operations that a policy holds back, of bundle proposals and of promotions: list, approve, reject.",
    ),
    "backtests": ("backtest:app", "Earlier backtests: list, show, results."),
    "decisions": (
        "decisions:app",
        "Decisions: list, show, refusals; or replay them from their stored inputs.",
    ),
    "operations": ("questions:operations", "List operations, newest first."),
    "audit": ("questions:audit", "List requests that changed something or were denied, newest first."),
    "layout": ("layouts:layout", "Show the layout, now or at a past epoch or instant."),
    "key": (
        "layouts:key",
        "Show which segment holds a key, now or in the past, and which sealed segments hold its earlier messages.",
    ),
    "hot-keys": (
        "hot_keys:hot_keys",
        "Show which part of each segment has the most load, and the load that no split can take away.",
    ),
    "lineage": ("layouts:lineage", "Draw the lineage of segments as a tree."),
    "check-history": (
        "check_history:check_history",
        "Check in a run's histories that every message was delivered in the order of its key; exit 1 if not.",
    ),
    "top": ("live:top", "Watch the fleet: topics that need attention first, then the hottest."),
    "watch": (
        "live:watch",
        "Watch a topic: its ring, load, operations, and the reasons for no further action.",
    ),
    "token": (
        "token:token",
        "Print a token for topics, or of another role, signed with CLEAVE_API_SECRET.",
    ),
    "migrate": ("migrate:migrate", "Bring the database to this version's schema: roles, tables, views."),
    "worker": (
        "processes:worker",
        "Run the worker until SIGTERM: it reacts to consumers and load, and runs operations.",
    ),
    "metrics": (
        "processes:metrics",
        "Serve the fleet's metrics to Prometheus until SIGTERM: layouts, load, operations and approvals, from the database.",
    ),
    "traces": (
        "traces:traces",
        "Send traces of operations to an OpenTelemetry collector until SIGTERM: samples, aggregation, decision and steps.",
    ),
    "serve": (
        "processes:serve",
        "Serve HTTP until SIGTERM without a worker: people's calls, layouts and watches; sessions are redirected to workers.",
    ),
    "collect": (
        "processes:collect",
        "Write counter samples of watched segments to the landing area, and observe consumers, until SIGTERM.",
    ),
    "doctor": (
        "doctor:doctor",
        (
            "Check database, roles, schema, workers, Java, Spark, samples and load, Pulsar and Airflow; exit 1 if something "
            "is wrong."
        ),
    ),
}
"""Location and summary of each command, in the order of the list."""


class CommandList(TyperGroup):
    """The group of all commands. Help and completion read the list and load no command."""

    def __init__(self, **attributes: Any) -> None:
        listed = {name: Listed(name, where, about) for name, (where, about) in _COMMANDS.items()}
        super().__init__(**{**attributes, "commands": listed})
