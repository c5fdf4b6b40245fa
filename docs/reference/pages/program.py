"""Pages about the program: its commands, its settings, its metrics."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer
from prometheus_client.metrics import MetricWrapperBase

from controller import client_metrics, settings
from controller import metrics as process_metrics
from controller.bundles.metrics import GAUGES
from controller.commands.cli import app
from controller.commands.command_list import Listed
from controller.web import fleet_metrics
from docs.reference.pages.markdown import ROOT, code, page, table

EXIT_CODES = (
    (0, "done"),
    (
        1,
        "failed: an operation was aborted, a right or the schema is missing, `doctor` or `check-history` reports a fault",
    ),
    (2, "the request cannot succeed as it is: invalid input, not found, conflict, not possible there"),
    (74, "standard output cannot be written, as on a full disk; a change that the command makes was made"),
    (75, "try again later"),
)


_ROOT = "## Options before any command\n\nExample: `cleave --api-url http://127.0.0.1:8470 topics list`."
_ENVIRONMENT = """A server requires a token. The token is not an option, because all users of a machine can see options:

| variable | meaning |
|---|---|
| `CLEAVE_API_URL` | the server, unless `--api-url` names one. Without both, commands use the database of `CLEAVE_DATABASE_URL` |
| `CLEAVE_API_TOKEN` | a token of `cleave token` |
| `CLEAVE_API_TOKEN_FILE` | a file with the token; takes precedence over `CLEAVE_API_TOKEN` |
| `CLEAVE_ACTOR` | the person for whom a command acts, if several people share a login, as in a container. Default: the name of the user |

[Commands over HTTP](../how-to/operate-over-http.md#by-the-command)."""


def commands() -> str:
    """Return the page of every command with its arguments and options, from the typer application."""
    program = typer.main.get_command(app)
    parts = [table(("exit code", "meaning"), EXIT_CODES), _ROOT, *_parameters(program), _ENVIRONMENT]
    for path, command in _walk(program, ()):
        parts += [f"## `{' '.join(path)}`", command.help or "", *_parameters(command)]
    return page(
        "Commands",
        "This page is for users of the command `cleave` who look up an argument, an option or an exit code. "
        "`--json` prints one document for programs; tables are for people. `--dry-run` performs all checks of the real "
        "run and changes nothing. Most commands that only read need only a login in role `cleave_inspector` "
        "([logins, and the commands that need more](../how-to/run-on-your-airflow.md#1-a-database-and-logins)). "
        "An error is one line on standard error. "
        "`-h` after any command prints its help, and `cleave --version` prints the version. `cleave --install-completion` installs "
        "completion for your shell.",
        *parts,
    )


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    path = (*path, command.name)
    command = command.load() if isinstance(command, Listed) else command
    if not hasattr(command, "commands") or command.invoke_without_command:
        yield path, command
    for name in sorted(getattr(command, "commands", ())):
        yield from _walk(command.commands[name], path)


def _parameters(command: Any) -> Iterator[str]:
    rows = [
        (code(_name(parameter)), _default(parameter), _help(parameter))
        for parameter in command.params
        if parameter.name != "help"
    ]
    if rows:
        yield table(("argument or option", "default", "meaning"), rows)


def _name(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    value = "" if parameter.is_flag else f" {getattr(kind, '__name__', 'str').lower()}"
    return ", ".join(parameter.opts) + (
        " text" if kind in (str, list[str]) else " choice" if _choices(kind) else value
    )


def _choices(kind: Any) -> list[str]:
    return [str(choice.value) for choice in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _default(parameter: Any) -> str:
    value = getattr(parameter.default, "value", parameter.default)
    return "required" if parameter.required else "" if value in (None, False, "") else code(value)


def _help(parameter: Any) -> str:
    sentences = [parameter.help or ""]
    choices = _choices(parameter.type_descriptor.annotation)
    sentences += [f"One of {', '.join(map(code, choices))}."] if choices else []
    sentences += [f"From {parameter.min}."] if parameter.min is not None and parameter.max is None else []
    sentences += [f"{parameter.min} to {parameter.max}."] if parameter.max is not None else []
    sentences += [f"Environment: `{parameter.envvar}`."] if parameter.envvar else []
    return " ".join(sentences).strip()


def settings_page() -> str:
    """Return the page of every setting with variable, default, bounds and description, and of the variables that DAGs read."""
    descriptions = _attribute_docstrings(settings.Settings)
    rows = []
    for name, field in settings.Settings.model_fields.items():
        variable = str(field.validation_alias or f"CLEAVE_{name.upper()}")
        default = getattr(field.default, "get_secret_value", lambda value=field.default: value)()
        bounds = " and ".join(filter(None, map(_bound, field.metadata)))
        rows.append((code(variable), code(default), bounds, descriptions[name]))
    return page(
        "Settings",
        "This page is for operators who configure a process of Cleave. `cleave`, the worker, the collector and the tasks read settings from "
        "the environment or from a file `.env` in the working directory. In Airflow, extras of the connection `cleave` may name a setting, in "
        "lower case and without the prefix, and take precedence. Policies are not settings: see [policy](policy.md).",
        table(("variable", "default", "bounds", "meaning"), rows),
        "`cleave migrate` first reads `CLEAVE_OWNER_URL`, the database URL of a user who may create roles.",
        "## Variables of the DAGs",
        "Airflow reads these variables when it parses the DAG files.",
        table(("variable", "default", "file"), sorted(_dag_variables())),
    )


def _attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the text below each annotated attribute of a class."""
    body = ast.parse(inspect.getsource(cls)).body[0].body  # type: ignore[attr-defined]
    pairs = itertools.pairwise(body)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def _bound(rule: Any) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    return " and ".join(
        f"{sign} {getattr(rule, name):g}" for name, sign in signs.items() if hasattr(rule, name)
    )


def _dag_variables() -> Iterator[tuple[str, str, str]]:
    reads = re.compile(r'(?:seconds_from|days_from|environ\.get)\(\s*"(CLEAVE_\w+)"(?:,\s*"?([\w.]*)"?)?')
    for path in (*(ROOT / "dags").glob("*.py"), *(ROOT / "plugins").rglob("*.py")):
        for variable, default in reads.findall(path.read_text()):
            yield code(variable), code(default), code(path.relative_to(ROOT))


def metrics() -> str:
    """Return the page of every metric that processes serve."""
    rows = []
    for value in [*vars(process_metrics).values(), *vars(client_metrics).values()]:
        if isinstance(value, MetricWrapperBase):
            (described,) = value.describe()
            suffix = "_total" if described.type == "counter" else ""
            labels = ", ".join(map(code, value._labelnames))
            rows.append((code(described.name + suffix), described.type, labels, described.documentation))
    for name, (text, names) in GAUGES.items():
        rows.append((code(name), "gauge", ", ".join(map(code, names)), text))
    fleet = [
        (code(name), kind, ", ".join(map(code, names)), text)
        for name, kind, names, text in fleet_metrics.described()
    ]
    return page(
        "Metrics",
        "This page is for operators who write queries for Prometheus. [Watch the fleet](../how-to/watch-the-fleet.md) contains rules, a board and runbook pages. "
        "`cleave worker`, `cleave serve`, `cleave collect` and `cleave bundles collect` serve metrics with `--metrics-port` "
        "(on loopback unless `--metrics-host` is given). Each process serves its own figures; the others stay at 0 there. `cleave bundles collect` serves the metrics "
        "that begin with `cleave_bundle`, and reads the gauges from the database, wherever the cycles run. Metrics of "
        "producers (`cleave_producer_*`), consumers (`cleave_consumer_messages_total`, `cleave_consumer_acknowledged_total`) and readers "
        "(`cleave_stalled_readers_total`, `cleave_misplaced_messages_total`, `cleave_shortened_logs_total`) are counted in the application, "
        "which [serves them itself](../how-to/watch-the-fleet.md#metrics-of-applications).",
        table(("metric", "type", "labels", "meaning"), rows),
        "## Metrics of the fleet",
        "`cleave metrics` serves these metrics from the database, because passes of Airflow and runs of Spark end before they can be scraped. One such "
        "process serves the figures of all workers and passes; two serve the same figures. A login in role `cleave_inspector` is enough. "
        "`--most-topics` limits the number of topics with series of their own.",
        table(("metric", "type", "labels", "meaning"), fleet),
    )
