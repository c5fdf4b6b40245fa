"""What is installed with the package, or with one of its extras, is all that its part of the program imports.

A developer's environment has every library there is, so a missing dependency shows only where somebody installs the wheel. Here
a process of its own is kept from all that the metadata does not ask for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMMANDS = [
    f"controller.commands.{path.stem}"
    for path in sorted((ROOT / "controller" / "commands").glob("[a-z]*.py"))
    if path.stem != "trace_spans"  # needs the extra `traces`
]
STARTS = {
    "": ["pulsar_cleave", "controller.commands.entry_point"],
    "client": ["pulsar_cleave", "controller.dataplane.pulsar.log_client"],
    "embedded": ["pulsar_cleave", "controller.dataplane.embedded.log_client"],
    "server": [
        "controller.commands.cli",
        *COMMANDS,
        "controller.dataplane.pulsar.plane",
        "controller.tasks",
        "controller.bundles.bootstrap",
        "cleave_provider.get_provider_info",
    ],
    "airflow": [
        "cleave_provider.assets.cleave",
        "cleave_provider.hooks.pulsar_admin",
        "cleave_provider.operators.cleave",
        "cleave_provider.sensors.cleave",
        "cleave_provider.triggers.cleave",
    ],
    "pulsar": ["controller.dataplane.pulsar.log_client"],
    "spark": ["spark_jobs.run_load_aggregation", "spark_jobs.run_bundle_load"],
    "backtest": [
        "controller.backtest.simulation",
        "controller.backtest.optimum",
        "spark_jobs.policy_backtest",
        "controller.commands.backtest_page",
    ],
    "pages": ["controller.pages.app", "plotly.offline"],
    "traces": ["controller.commands.trace_spans", "opentelemetry.exporter.otlp.proto.http.trace_exporter"],
    "pictures": ["controller.commands.bundle_picture", "plotly.subplots", "plotly.graph_objects"],
    "devstack": [
        "controller.devstack.postgres",
        "controller.devstack.pulsar.tokens",
        "controller.devstack.spark_connect",
    ],
}
OF_SERVERS = [
    "fastapi",
    "jwt",
    "psycopg2",
    "pyarrow",
    "pydantic",
    "rich",
    "sqlalchemy",
    "starlette",
    "typer",
    "uvicorn",
]
_IMPORT = """
import importlib, json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in forbidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

forbidden, modules = map(frozenset, json.loads(sys.argv[1]))
sys.meta_path.insert(0, Missing())
for module in sorted(modules):
    importlib.import_module(module)
"""


def installed_with(wanted: Iterable[str]) -> set[str]:
    """The distributions that these requirements bring, by canonical name."""
    found: set[str] = set()
    pending = [(Requirement(one), "") for one in wanted]
    while pending:
        requirement, extra = pending.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        is_known, _ = name in found, found.add(name)
        if is_known and not requirement.extras:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another platform or Python
            continue
        pending += [(Requirement(need), one) for need in needs for one in ("", *requirement.extras)]
    return found


def with_extra(extra: str) -> list[str]:
    """Requirements of an extra, and of those of this package's extras that it names."""
    found: list[str] = []
    for one in PROJECT["optional-dependencies"].get(extra, []):
        requirement = Requirement(one)
        is_own = requirement.name == PROJECT["name"]
        found += [each for name in requirement.extras for each in with_extra(name)] if is_own else [one]
    return found


def forbidden_modules(extra: str) -> list[str]:
    """Top-level modules of all that is installed here and not with the package and that extra."""
    allowed = installed_with([*PROJECT["dependencies"], *with_extra(extra)])
    owners: dict[str, set[str]] = defaultdict(set)
    for module, distributions in metadata.packages_distributions().items():
        owners[module] = {canonicalize_name(one) for one in distributions}
    return [module for module, names in owners.items() if not names & {*allowed, PROJECT["name"]}]


def start(modules: list[str], forbidden: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _IMPORT, json.dumps([forbidden, modules])]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("extra", "forbidden"),
    [*((extra, forbidden_modules(extra)) for extra in STARTS), ("client", OF_SERVERS)],
    ids=[*STARTS, "client without what only servers and commands need"],
)
def test_each_part_starts_with_what_is_installed_for_it(extra: str, forbidden: list[str]) -> None:
    done = start(STARTS[extra], forbidden)

    assert done.returncode == 0, done.stderr.splitlines()[-1]


def test_a_library_that_is_not_asked_for_is_missed() -> None:
    done = start(COMMANDS, [*forbidden_modules("server"), "sqlalchemy"])

    assert "No module named 'sqlalchemy'" in done.stderr
