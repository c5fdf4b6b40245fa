"""What `cleave` can do, by name; each command's file is loaded when the command is asked for.

Loading them all would take a second of processor, most of it for libraries of other commands. So the list has a
sentence for each; a test compares it with what the command says of itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

_PACKAGE = "controller.entrypoints.commands"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is, as `file:attribute`, and what it is about."""

    where: str
    help: str
    hidden: bool = False

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002
        """As the library asks a command that it offers to a shell."""
        return self.help


COMMANDS = {
    "topics": Entry("topics:app", "Topics: create, adopt, attach, detach, list, show, delete."),
    "segments": Entry("segments:app", "Segments: split, merge, rebucket by hand."),
    "policy": Entry(
        "policy:app", "Auto-scaling policies of cluster, namespace, topic: get, set, remove, effective."
    ),
    "subscriptions": Entry("subscriptions:app", "Subscriptions: create, list, delete."),
    "consumers": Entry(
        "subscriptions:consumers_app", "Consumers of a stream subscription: register, unregister, list."
    ),
    "bundles": Entry(
        "bundles:app",
        "Namespace bundles: show, split, unload; collect, aggregate, propose, approve, apply; why, and replay.",
    ),
    "decide": Entry("decide:decide", "Say what would be decided and what would be left alone, and why."),
    "decisions": Entry("ledger:decisions", "List decisions of the ledger, newest first."),
    "operations": Entry("ledger:operations", "List operations, newest first."),
    "layout": Entry("ledger:layout", "Show the layout now, or as it was."),
    "key": Entry(
        "ledger:key",
        "Say which segment holds a key, now or then, and which sealed segments hold its earlier messages.",
    ),
    "lineage": Entry("ledger:lineage", "Draw which segment came from which, as a tree."),
    "check-history": Entry(
        "check_history:check_history",
        "Say of a run's histories whether every message came, in the order of its key; exit 1 if not.",
    ),
    "migrate": Entry(
        "processes:migrate", "Bring the database to this version's schema: roles, tables, views."
    ),
    "worker": Entry(
        "processes:worker",
        "Run the worker until SIGTERM: it reacts to consumers and load, and runs operations.",
    ),
    "collect": Entry(
        "processes:collect",
        "Sample the counters of every watched segment into the landing area, and see who consumes, until SIGTERM.",
    ),
    "doctor": Entry(
        "doctor:doctor",
        "Check database, roles, schema, workers, Java, Spark, samples and load, Pulsar and Airflow; exit 1 if something "
        "is wrong.",
    ),
}


class _Loaded(dict[str, Any]):
    """The commands by name. Looking one up loads its file."""

    def __missing__(self, name: str) -> Any:
        entry = COMMANDS[name]
        file, attribute = entry.where.split(":")
        found = getattr(importlib.import_module(f"{_PACKAGE}.{file}"), attribute)
        if isinstance(found, typer.Typer):
            found.rich_markup_mode = None
            command: Any = typer.main.get_group(found)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(name)(found)
            command = typer.main.get_command(alone)
        command.name = name
        self[name] = command
        return command

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in COMMANDS else default

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS

    def keys(self) -> Any:
        return COMMANDS.keys()

    def items(self) -> Any:
        return [(name, self[name]) for name in COMMANDS]


class CommandList(TyperGroup):
    """The group of all commands. Its help and its completion are read off the list and load nothing."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Loaded()
        self._is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is the library's
        """In the order of the list."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command, loaded, with logging set for it: standard output is for the command's own text."""
        if self._is_listing:
            return COMMANDS[cmd_name]
        command = self.commands.get(cmd_name)
        if command is not None:
            _configure_logging()
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """The list in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Names that begin so."""
        self._is_listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._is_listing = False


def _configure_logging() -> None:
    import logging

    from controller import telemetry

    telemetry.configure_logging(level=logging.WARNING)
