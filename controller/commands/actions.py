"""Commands of actions: arguments and options from the fields of the request, one printer for all responses."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from controller import telemetry
from controller.actions.action import AnyAction, actions_of
from controller.actions.context import COMMAND_REASON, Options
from controller.actions.fields import fill_in
from controller.actions.responses import Answer
from controller.actions.signatures import keyword
from controller.command_output import answer_table, emit
from controller.commands.options import AsJson, DryRun, NoWait, TimeoutSeconds
from controller.commands.parameters import generated, parameter_of
from controller.commands.questions import add_questions
from controller.commands.server_choice import perform

SHORTEST_WAIT_SECONDS = 0.001
"""Wait in seconds instead of `--timeout-seconds 0`: the operation is read once (without a worker, first run as far as
possible), and the command fails unless it is done. With `--no-wait` the command neither waits nor checks the operation.
"""


def group(subject: str, *commands: Callable[..., None]) -> typer.Typer:
    """Return a group of commands: these handwritten ones, then those questions and actions of the subject that are commands. A question
    whose name is one word is not in the group. The last word of a name is the command's name in the group.
    """
    app = typer.Typer(no_args_is_help=True)
    for command in commands:
        app.command()(command)
    add_questions(app, subject)
    for action in actions_of(subject):
        if action.is_command:
            app.command(action.name.split()[-1])(command_of(action))
    return app


def command_of(action: AnyAction) -> Callable[..., None]:
    """Return the function from which Typer builds the command: it performs the action with the wait for its operation, prints the response,
    and then raises the errors of `Answer.demand_done`, or exits with the response's `exit_code` if that is not 0.

    An action with a text in `confirms` is confirmed first, except with `--yes` or `--dry-run`. If the response has `replaces_log`, the
    command logs errors only. The command raises InvalidInput for values that the request refuses.
    """

    def run(
        *,
        as_json: bool,
        dry_run: bool = False,
        no_wait: bool = False,
        timeout_seconds: float = 0.0,
        yes: bool = False,
        **values: Any,
    ) -> None:
        fields = {name: value for name, value in values.items() if value is not None}
        if "reason" in action.request.model_fields:
            fields.setdefault("reason", COMMAND_REASON)
        request = fill_in(action.request, fields)
        if action.confirms is not None and not (yes or dry_run):
            typer.confirm(action.confirms.format_map(request.model_dump()), abort=True, err=True)
        if action.response.replaces_log:
            telemetry.configure_logging(level=logging.ERROR)
        options = Options(dry_run, 0.0 if no_wait else max(timeout_seconds, SHORTEST_WAIT_SECONDS))
        response = perform(action, request, options)
        print_answer(response, as_json)
        response.demand_done(options.wait_seconds)
        if response.exit_code:
            raise typer.Exit(response.exit_code)

    parameters = [
        *(parameter_of(name, field) for name, field in action.request.model_fields.items()),
        *_common_parameters(action),
    ]
    return generated(run, action.name, action.request.__doc__, parameters)


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print the answer as a JSON document if `as_json`, otherwise as a table."""
    emit(as_json, answer.model_dump(mode="json"), answer_table(answer, answer.title()))


def _common_parameters(action: AnyAction) -> Sequence[inspect.Parameter]:
    """Return the parameters that do not come from the request: `as_json`, and those of a dry run, a wait and a confirmation where the
    action has them.
    """
    common: dict[str, tuple[Any, Any]] = {"as_json": (AsJson, False)}
    if not action.reads:
        common["dry_run"] = (DryRun, False)
    if action.is_waited_for:
        common |= {
            "no_wait": (NoWait, False),
            "timeout_seconds": (TimeoutSeconds, action.default_wait_seconds),
        }
    if action.confirms is not None:
        common["yes"] = (Annotated[bool, typer.Option("--yes", help="Do not ask.")], False)
    return [keyword(name, annotation, default) for name, (annotation, default) in common.items()]
