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
        "failed: an operation was aborted, a right or the schema is missing, `doctor` or `check-history` found something",
    ),
    (2, "the request can never succeed as it is: bad input, not found, conflict, not possible there"),
    (75, "try again later"),
)


_ROOT = "## In front of any command\n\nAs in `cleave --api-url http://127.0.0.1:8470 topics list`."
_ENVIRONMENT = """A server wants a token, which is no option, since all users of a machine see options:

| variable | what it is |
|---|---|
| `CLEAVE_API_URL` | the server, where `--api-url` does not name one; neither: the database of `CLEAVE_DATABASE_URL` |
| `CLEAVE_API_TOKEN` | a token of `cleave token` |
| `CLEAVE_API_TOKEN_FILE` | or the file that it is in; the file wins |
| `CLEAVE_ACTOR` | the person in whose name a command acts, where several people share a login, as in a container; without: the name of the user |

[What goes over HTTP](../how-to/operate-over-http.md#by-the-command)."""


def commands() -> str:
    """Every command with its arguments and options, from the typer application."""
    program = typer.main.get_command(app)
    parts = [table(("exit code", "meaning"), EXIT_CODES), _ROOT, *_parameters(program), _ENVIRONMENT]
    for path, command in _walk(program, ()):
        parts += [f"## `{' '.join(path)}`", command.help or "", *_parameters(command)]
    return page(
        "Commands",
        "`--json` prints one document for programs; tables are for people. `--dry-run` asks everything that the real "
        "run asks and changes nothing. Commands that only read need no more than a login in role `cleave_inspector` "
        "([logins](../how-to/run-on-your-airflow.md#1-a-database-and-logins)). A mistake is one line on standard error. "
        "`-h` after any command says what it takes, `cleave --version` which version this is. Shell completion: "
        "`cleave --install-completion`.",
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
    rows = [(code(_name(one)), _default(one), _help(one)) for one in command.params if one.name != "help"]
    if rows:
        yield table(("argument or option", "default", "what it is"), rows)


def _name(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    value = "" if parameter.is_flag else f" {getattr(kind, '__name__', 'str').lower()}"
    return ", ".join(parameter.opts) + (
        " text" if kind in (str, list[str]) else " choice" if _choices(kind) else value
    )


def _choices(kind: Any) -> list[str]:
    return [str(one.value) for one in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _default(parameter: Any) -> str:
    value = getattr(parameter.default, "value", parameter.default)
    return "required" if parameter.required else "" if value in (None, False, "") else code(value)


def _help(parameter: Any) -> str:
    said = [parameter.help or ""]
    choices = _choices(parameter.type_descriptor.annotation)
    said += [f"One of {', '.join(map(code, choices))}."] if choices else []
    said += [f"From {parameter.min}."] if parameter.min is not None and parameter.max is None else []
    said += [f"{parameter.min} to {parameter.max}."] if parameter.max is not None else []
    said += [f"Environment: `{parameter.envvar}`."] if parameter.envvar else []
    return " ".join(said).strip()


def settings_page() -> str:
    """Every setting with its variable, default, bounds and sentence; then what the DAGs read themselves."""
    said = _attribute_docstrings(settings.Settings)
    rows = []
    for name, field in settings.Settings.model_fields.items():
        variable = str(field.validation_alias or f"CLEAVE_{name.upper()}")
        default = getattr(field.default, "get_secret_value", lambda value=field.default: value)()
        bounds = " and ".join(filter(None, map(_bound, field.metadata)))
        rows.append((code(variable), code(default), bounds, said[name]))
    return page(
        "Settings",
        "Read from the environment or from a file `.env` in the working directory by `cleave`, the worker, the "
        "collector and the tasks. In Airflow the extras of the connection `cleave` may name a setting too, in "
        "lower case and without the prefix; they win. Policies are not settings: see [policy](policy.md).",
        table(("variable", "default", "bounds", "what it is"), rows),
        "`cleave migrate` reads `CLEAVE_OWNER_URL` first: the database as a user who may create roles.",
        "## Read by the DAGs",
        "When Airflow reads the DAG files.",
        table(("variable", "default", "file"), sorted(_dag_variables())),
    )


def _attribute_docstrings(cls: type) -> dict[str, str]:
    """The text under each annotated attribute of a class."""
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
    asked = re.compile(r'(?:seconds_from|environ\.get)\(\s*"(CLEAVE_\w+)"(?:,\s*"?([\w.]*)"?)?')
    for path in (*(ROOT / "dags").glob("*.py"), *(ROOT / "plugins").rglob("*.py")):
        for variable, default in asked.findall(path.read_text()):
            yield code(variable), code(default), code(path.relative_to(ROOT))


def metrics() -> str:
    """Every metric the worker and the collector serve."""
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
        "Served for Prometheus by `cleave worker`, `cleave serve`, `cleave collect` and `cleave bundles collect` with `--metrics-port` "
        "(on loopback unless `--metrics-host` says otherwise), each for what it does itself: the others stay at 0 there. Those that begin with "
        "`cleave_bundle` are served by `cleave bundles collect`, which reads the gauges from the database, wherever the cycles run. Those of "
        "producers (`cleave_producer_*`), consumers (`cleave_consumer_messages_total`, `cleave_consumer_acknowledged_total`) and readers "
        "(`cleave_stalled_readers_total`, `cleave_misplaced_messages_total`, `cleave_shortened_logs_total`) are counted in the application that "
        "sends or reads, which [serves them itself](../how-to/watch-the-fleet.md#those-of-applications).",
        table(("metric", "type", "labels", "what it counts"), rows),
        "## Of the fleet",
        "Served by `cleave metrics`, out of the database: passes of Airflow and runs of Spark end, and nobody can scrape those. One such "
        "process answers for all workers and passes; two give the same figures. A login in role `cleave_inspector` is enough for it. "
        "Those of topics are there for `--most-topics` of them. Rules, board and what to do: [watch the fleet](../how-to/watch-the-fleet.md).",
        table(("metric", "type", "labels", "what it tells"), fleet),
    )
