"""`cleave backtest`: the cost of policies on recorded load; `cleave backtests`: earlier backtests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from controller.actions import backtest_rows
from controller.actions.context import command_caller
from controller.actions.fields import fill_in
from controller.backtest.summary import Row, summary_by_load, summary_by_policy
from controller.bootstrap import application, build_backtest
from controller.command_output import cell, emit, rows_table, say
from controller.commands import completion
from controller.commands.actions import group
from controller.commands.options import AsJson, From, To
from controller.commands.output_files import demand_writable
from controller.commands.remote_commands import demand_database
from controller.commands.server_choice import ask as ask_question
from controller.commands.server_choice import perform, server_url
from controller.domain.errors import InvalidInput
from controller.domain.names import CLUSTER, topic_name
from controller.questions import backtest_requests
from controller.questions.backtest_requests import BacktestRequest
from controller.questions.backtests import (
    LIST_BACKTEST_RESULTS,
    RUN_BACKTEST,
    SHOW_BACKTEST,
    RunBacktest,
    ShowBacktest,
)
from controller.services.policy_backtest import HERE, SPARK, Loads, Trace
from controller.store.backtests import BacktestAnswer, BacktestResult

LOADS_SHOWN = 20
"""Maximum number of loads that the terminal shows one by one; of more loads it shows the sums."""


def backtest(
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Topic to use; repeatable.", autocompletion=completion.topics),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", help="Namespace of which to use every topic. Default without --topic: all topics."
        ),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            "--trace", help="CSV file with lines `timestamp,value`, used instead of topics; repeatable."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help="A policy to try: in-force (each topic's own), adaptive, pip483, or another system's rule such as 'pravega "
            "sf 2', ydb, 'static peak'; with parameters as adaptive:target_use=0.8,max_segments=128. Repeatable; "
            f"{', '.join(backtest_requests.DEFAULT_POLICIES)} where left out.",
        ),
    ] = None,
    since: From = None,
    until: To = None,
    weights: Annotated[
        str, typer.Option(help="Weights of the cost: excess=20,change_seconds=60,reseal_seconds=0.")
    ] = "",
    seeds: Annotated[
        int, typer.Option(help="Number of draws of each load; the first draw is the recorded load.")
    ] = 1,
    actuation_seconds: Annotated[float, typer.Option(help="Duration of a reshape in seconds.")] = 0.0,
    mean_load: Annotated[
        float, typer.Option(help="Average load to which a trace is scaled, in capacities of a segment.")
    ] = 5.6,
    first_day: Annotated[int, typer.Option(min=0, help="First day of a trace.")] = 0,
    days: Annotated[int, typer.Option(min=1, max=400, help="Number of days of a trace.")] = 7,
    engine: Annotated[
        str | None, typer.Option(help=f"{SPARK} or {HERE}. Default: chosen by the amount of work.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="File to which a self-contained HTML report is written.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the cost of policies on recorded load, compare it with the least possible cost, and print both; with `--html` also write a
    report. The command stores the results in the list of backtests, and changes nothing else.

    Each policy decides on the recorded load, or the load of a trace, with a simulated layout. Costs are in segment-hours; the regret of a
    policy on one load is the cost divided by the least cost that any policy can reach. Over several loads or draws, costs are added, and
    the regret is the geometric mean of the regrets. Raises InvalidInput for options that cannot be read or exclude each other, Unsupported
    if a server is used with `--trace`, `--engine` or `--html`, and the errors of `ask`. The help text is in `command_list`.
    """
    _demand_possible(engine, {"--trace": trace, "--engine": engine, "--html": html})
    request = BacktestRequest(
        _loads(topic, namespace, trace, since, until, mean_load, first_day, days),
        tuple(policy or ()),
        weights=weights,
        seeds=seeds,
        actuation_seconds=actuation_seconds,
        engine=engine,
        pictures=html is not None,
    )
    ask(request, html=html, as_json=as_json)


def _demand_possible(engine: str | None, local: Mapping[str, Any]) -> None:
    """Raise Unsupported if a server is used and an option in `local` is given (not None), because it needs this machine. Raise InvalidInput
    for an unknown engine.
    """
    for option, value in local.items():
        if value is not None:
            demand_database(f"backtest {option}")
    if engine not in (None, SPARK, HERE):
        raise InvalidInput(f"--engine {engine}: give {SPARK} or {HERE}, or leave it out")


def ask(request: BacktestRequest, *, html: Path | None, as_json: bool) -> None:
    """Run the backtest on the server if a server is used, otherwise on Spark or in this process, and print the results. With `html`, also
    write the report to the file, with figures only if `request.pictures`. If a server is used, the request must have no traces, engine or
    pictures.

    Raises before the run: Unsupported if a report needs plotly and it is not installed, and InvalidInput if the file of the report cannot be
    written. Also raises the errors of the backtest, and, after the results are printed, those of `write_page`.
    """
    if html is not None:
        from controller.commands.backtest_page import demand_plotly

        demand_plotly()
        demand_writable(html)
    loads = request.loads
    answer = _run_here(request, as_json) if server_url() is None else _run_on_server(request)
    rows = backtest_rows.result_rows(answer.results)
    document = {
        "run_id": answer.run_id,
        "engine": answer.engine,
        "summary": summary_by_policy(rows),
        "results": rows,
        "left_out": [{"load": name, "reason": why} for name, why in sorted(answer.left_out.items())],
    }
    emit(
        as_json,
        document,
        _tables(f"backtest {answer.run_id}: {_about(answer, loads)}", rows, answer.left_out),
    )
    if html is not None:
        _write_report(html, request, answer, rows)
        if not as_json:
            say(f"report: {html}")


def _write_report(html: Path, request: BacktestRequest, answer: BacktestAnswer, rows: Sequence[Row]) -> None:
    """Write the report of the backtest to the file. Raises the errors of `write_page`."""
    from controller.commands.backtest_page import write_page

    write_page(
        html,
        f"Backtest {answer.run_id}",
        _about(answer, request.loads),
        rows,
        answer.pictures,
        excess_price=backtest_requests.prices(request.weights).excess,
    )


def _run_here(request: BacktestRequest, as_json: bool) -> BacktestAnswer:
    """Run the backtest without a server, on Spark or in this process, store its results, and return them. Shows a progress bar if standard
    error is a terminal, unless the output is JSON.
    """
    question, caller = request.question(), command_caller()
    with application() as cleave, _progress(as_json) as progress:
        return build_backtest(cleave).run(
            question,
            request.loads,
            asked_by=caller.actor,
            request_key=caller.request_key,
            engine=request.engine,
            progress=progress,
        )


def _run_on_server(request: BacktestRequest) -> BacktestAnswer:
    """Run the backtest on the server. Traces, the engine and pictures are not sent, because the caller has refused them. Raises the errors
    of `server_choice.perform`, among them InvalidInput for a backtest that a server does not compute within a call.
    """
    loads, topics = request.loads, request.loads.topics
    is_one = topics is not None and len(topics) == 1
    form = fill_in(
        RunBacktest,
        {
            "level": topics[0] if topics and is_one else loads.namespace or CLUSTER,
            "topics": None if topics is None or is_one else list(topics),
            "since": loads.since.isoformat(),
            "until": loads.until.isoformat(),
            "policies": list(request.policies),
            "parameters": None if request.parameters is None else dict(request.parameters),
            "weights": request.weights,
            "seeds": request.seeds,
            "actuation_seconds": request.actuation_seconds,
        },
    )
    answer: BacktestAnswer = perform(RUN_BACKTEST, form).answer
    return answer


def _loads(
    topics: list[str] | None,
    namespace: str | None,
    traces: list[Path] | None,
    since: str | None,
    until: str | None,
    mean_load: float,
    first_day: int,
    days: int,
) -> Loads:
    """Return the loads to use: traces, the named topics, a namespace, or without any of them all topics. A missing start of the span of
    topics is seven days ago, a missing end is now. The last three parameters apply to traces only. Raises InvalidInput for more
    than one of topics, namespace and traces, for traces with a span, for two traces with equal file names, and for a span that is empty or
    cannot be read. The names of topics, the namespace and the files are not checked.
    """
    if sum(1 for option in (topics, namespace, traces) if option) > 1:
        raise InvalidInput("give only one of --topic, --namespace and --trace")
    if traces and (since or until):
        raise InvalidInput(
            "--from and --to apply to topics; choose the days of a trace with --first-day and --days"
        )
    return Loads(
        *backtest_requests.past(since, until, datetime.now(UTC)),
        tuple(map(topic_name, topics)) if topics else None,
        namespace,
        tuple(Trace(path.name, (path,), mean_load, first_day, days) for path in traces or ()),
    )


@contextmanager
def _progress(as_json: bool) -> Iterator[Any]:
    """Show a progress bar on standard error, and yield the function that sets it: to the number of simulations done, of a total. Without a
    terminal, or with JSON output, the function does nothing.
    """
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        yield lambda _done, _of: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("simulating", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _about(answer: BacktestAnswer, loads: Loads) -> str:
    """Return the number and kind of the loads with results, the span if they are topics, and the engine, as text."""
    count = len({result.load for result in answer.results})
    what = "trace" if loads.traces else "topic"
    when = "" if loads.traces else f", {cell(loads.since)} to {cell(loads.until)}"
    return f"{count} {what}{'' if count == 1 else 's'}{when}, computed {'on Spark' if answer.engine == SPARK else 'here'}"


def _tables(title: str, rows: list[dict[str, Any]], left_out: Mapping[str, str]) -> RenderableType:
    """Return the table of the policies, then a table by load for 2 to `LOADS_SHOWN` loads, then the first `LOADS_SHOWN` loads, by name,
    that were left out, with the reasons. `rows` are those of `result_rows`; `left_out` has the reason by the name of the load.
    """
    parts: list[RenderableType] = [
        rows_table(backtest_rows.cells(summary_by_policy(rows)), backtest_rows.SUMMARY, title=title)
    ]
    loads = {row["load"] for row in rows}
    if 1 < len(loads) <= LOADS_SHOWN:
        one_by_one = backtest_rows.cells(summary_by_load(rows))
        parts += [Text(""), rows_table(one_by_one, backtest_rows.BY_LOAD)]
    if left_out:
        named = [{"load": name, "reason": why} for name, why in sorted(left_out.items())]
        parts += [Text(""), rows_table(named[:LOADS_SHOWN], title=f"{len(named)} left out")]
    return Group(*parts)


def show(
    run_id: Annotated[
        int, typer.Argument(metavar="ID", help="Id of the backtest, as in `cleave backtests list`.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show one backtest: its request and its results."""
    run = perform(SHOW_BACKTEST, fill_in(ShowBacktest, {"run_id": run_id}))
    results = list(ask_question(LIST_BACKTEST_RESULTS, {"run_id": run_id}, limit=None)) if run.results else []
    stored_results = [
        BacktestResult(**{name: row[name] for name in BacktestResult.__slots__}) for row in results
    ]
    rows = backtest_rows.result_rows(stored_results)
    document = run.model_dump() | {"rows": results}
    emit(as_json, document, _tables(run.sentence(), rows, {}))


app = group("backtests", show)
