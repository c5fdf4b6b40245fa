"""Every capability that users call or look at, in one list, so that a refactoring cannot lose any of them.

A capability that is added or removed on purpose is changed in `capabilities.json` as well:
`python -m tests.unit.test_capabilities` writes the file.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from fastapi import FastAPI
from fastapi.routing import APIRoute

from cleave_provider.get_provider_info import get_provider_info
from controller.commands.cli import app as command
from controller.web.app import routed_app

ROOT = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("capabilities.json")
_RELATION = re.compile(r"CREATE (?:VIEW|FUNCTION) (inspect\.\w+)")


def commands(group: Any, prefix: str = "") -> Iterator[str]:
    """Names of commands as they are typed."""
    for name, listed in sorted(group.commands.items()):
        sub = listed.load() if hasattr(listed, "load") else listed
        is_group = hasattr(sub, "commands")
        if not is_group or sub.invoke_without_command:
            yield f"{prefix}{name}"
        if is_group:
            yield from commands(sub, f"{prefix}{name} ")


def calls(app: FastAPI) -> list[str]:
    """Methods and paths of an application."""
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    return sorted(f"{method} {route.path}" for route in routes for method in sorted(route.methods))


def dags() -> list[str]:
    """Ids of the DAGs, which are the names of their files. A test with Airflow compares them with what Airflow finds."""
    return [path.stem for path in sorted((ROOT / "dags").glob("*.py"))]


def provider_classes() -> list[str]:
    """Public classes of the provider's operators, sensors, triggers, hooks and links."""
    found = []
    for kind in ("operators", "sensors", "triggers", "hooks", "links"):
        for path in sorted((ROOT / "cleave_provider" / kind).glob("*.py")):
            names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
            found += [f"{kind}.{path.stem}.{name}" for name in names if not name.startswith("_")]
    return found


def pages() -> list[str]:
    """Pages that the Airflow plugin shows."""
    pytest.importorskip("airflow")
    from controller.pages.app import router

    return calls_of(router)


def calls_of(router: Any) -> list[str]:
    """Methods and paths of a router."""
    return sorted(f"{method} {route.path}" for route in router.routes for method in sorted(route.methods))


def capabilities() -> dict[str, list[str]]:
    """Return every capability by kind."""
    views = (ROOT / "sql" / "views").glob("*.sql")
    return {
        "commands": sorted(commands(typer.main.get_command(command))),
        "calls": calls(routed_app()),
        "pages": pages(),
        "dags": dags(),
        "views": sorted({name for path in views for name in _RELATION.findall(path.read_text())}),
        "connection types": [one["connection-type"] for one in get_provider_info()["connection-types"]],
        "provider classes": provider_classes(),
    }


def test_every_capability_is_listed() -> None:
    assert capabilities() == json.loads(LISTED.read_text())


if __name__ == "__main__":
    LISTED.write_text(json.dumps(capabilities(), indent=2) + "\n")
