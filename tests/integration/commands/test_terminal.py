"""The real command on a real pseudo-terminal: whatever applications and brokers are called, a terminal obeys none of it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Mapping

import pytest

from controller.settings import PROJECT_ROOT
from tests.support.command_line import CommandLine
from tests.support.terminal_attacks import ATTACKS, is_safe

ALL = "|".join(ATTACKS.values())
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""What the command itself writes on a terminal that has colours."""


@pytest.fixture
def attacked(cleave: CommandLine, orders: str) -> str:
    """The topic, with a subscription and consumers of before names were refused, and others that brokers report."""
    cleave.ok("subscriptions", "create", orders, "billing")
    cleave.execute("ALTER TABLE cleave.consumer DISABLE TRIGGER consumer_name_is_printable")
    for number, attack in enumerate(ATTACKS.values()):
        name = re.sub(r"\s", "", attack)
        cleave.execute(
            "INSERT INTO cleave.consumer (topic_id, subscription, name) SELECT topic_id, 'billing', :name FROM cleave.topic",
            name=f"{number}{name}",
        )
    cleave.execute("ALTER TABLE cleave.consumer ENABLE TRIGGER consumer_name_is_printable")
    cleave.execute(
        "INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation, said,"
        " said_since) SELECT topic_id, 'billing', 0, 0, 32767, c.name, 1, :text, clock_timestamp()"
        "   FROM cleave.consumer c WHERE c.name LIKE '0%'",
        text=f"said{ALL}",
    )
    cleave.execute(
        "INSERT INTO cleave.observed_subscription (topic_id, name, subscription_type, consumers, consumer_names)"
        " SELECT topic_id, :name, 'Shared', 1, ARRAY[:name] FROM cleave.topic",
        name=f"seen{ALL}",
    )
    cleave.execute("UPDATE cleave.operation SET reason = :text, last_error = :text", text=f"why{ALL}")
    return orders


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """All that the command writes on a terminal that is its standard output and its standard error."""
    ours, theirs = pty.openpty()
    written: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(ours, 65_536):
                written.append(part)
        except OSError:  # the other side is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    env: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT), "COLUMNS": "200", **environment}
    command = [sys.executable, "-m", "controller.commands.cli", *arguments]
    try:
        subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, check=False, timeout=120)
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return b"".join(written).decode().replace("\r\n", "\n")


LISTS = (
    ("subscriptions", "list"),
    ("consumers", "list"),
    ("consumers", "why"),
    ("consumers", "lag"),
    ("operations",),
    ("topics", "show"),
    ("watch", "--once"),
)


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_a_list_shows_attacks_escaped(cleave: CommandLine, attacked: str, command: tuple[str, ...]) -> None:
    arguments = [*command, *(() if command == ("operations",) else (attacked,))]
    if command == ("consumers", "lag"):
        arguments.append("billing")

    plain = on_a_terminal(*arguments, TERM="dumb")
    coloured = on_a_terminal(*arguments, TERM="xterm-256color")
    document = cleave(*arguments, "--json").out

    assert is_safe(plain), repr(plain)
    assert is_safe(_COLOURS.sub("", coloured)), repr(coloured)
    assert "Traceback" not in plain
    assert is_safe(document)
    json.loads(document)
    if command != ("topics", "show"):
        assert r"\x1b" in plain


def test_errors_and_usage_show_attacks_escaped(cleave: CommandLine, orders: str) -> None:
    for arguments in (
        ("topics", "show", f"acme/shop/{ALL}"),
        ("topics", "create", f"acme/shop/x{ALL}"),
        ("subscriptions", "create", orders, f"x{ALL}"),
        ("topics", "create", "acme/shop/y", "--reason", f"because{ALL}"),
        (f"to{ALL}",),
        ("topics", "list", f"--{ALL}"),
    ):
        written = on_a_terminal(*arguments, TERM="dumb")
        assert is_safe(written), repr(written)
        assert "Traceback" not in written
        assert written.startswith("cleave: ")


@pytest.mark.parametrize("name", [f"x{ATTACKS['override']}", "..", "a/../b", f"x{ATTACKS['clear']}"])
def test_a_dry_run_of_a_create_refuses_what_the_create_refuses(cleave: CommandLine, name: str) -> None:
    for more in ((), ("--dry-run",)):
        said = cleave.refused("topics", "create", f"acme/shop/{name}", *more)
        assert any(word in said for word in ("printable", "dots", "tenant/namespace/name")), said
