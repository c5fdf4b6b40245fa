"""The `cleave` command: one line for an error, tables for people, JSON for programs.

`command_list.py` has the list of commands, `exit_codes.py` the code with which a command ends.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from importlib import metadata
from types import TracebackType
from typing import Annotated

import typer
from typer import Abort, Exit

from controller.commands.command_list import CommandList
from controller.commands.exit_codes import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_NOT_WRITTEN, exit_code
from controller.commands.server_choice import name_server
from controller.domain.errors import CleaveError
from controller.domain.formatting import printable, shown

try:
    from typer.exceptions import TyperException
except ImportError:  # an older Typer, as with Airflow 3.1, raises the errors of Click
    from click import ClickException as TyperException  # type: ignore[assignment]

DISTRIBUTION = "pulsar-cleave"

app = typer.Typer(
    name="cleave",
    cls=CommandList,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Autoscaling for streaming topics: segments of a hash ring that split when hot and merge when cold.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_requested: bool) -> None:
    """Print the version and exit, if `--version` is given."""
    if is_requested:
        typer.echo(f"cleave {metadata.version(DISTRIBUTION)}")
        raise Exit


@app.callback()
def options(
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
    api_url: Annotated[
        str | None,
        typer.Option(
            "--api-url",
            metavar="URL",
            help="Worker or `cleave serve` to use instead of the database. Default: CLEAVE_API_URL. Token: CLEAVE_API_TOKEN or CLEAVE_API_TOKEN_FILE.",
        ),
    ] = None,
) -> None:
    """Prepare a command: set the server of `--api-url` for the command, and log warnings and errors to standard error, because standard
    output is for the command's own text.
    """
    import logging

    from controller import telemetry

    telemetry.configure_logging(level=logging.WARNING)
    name_server(api_url)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code. `arguments` None: the arguments of the process. Unexpected errors of this process are then
    printed with control characters escaped.
    """
    sys.excepthook = _say_traceback
    threading.excepthook = lambda of: _say_traceback(of.exc_type, of.exc_value, of.exc_traceback)
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code. Each error of Cleave, of the arguments or of standard output becomes one line on standard
    error, with the code of `exit_codes`; an interrupt or a refused confirmation prints `stopped` and gives 1. A group without a command
    prints its help on standard error and gives 2. Other errors are raised.

    `arguments` None: the arguments of the process.
    """
    try:
        result = app(args=arguments, prog_name="cleave", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except Exit as leave:
        return leave.exit_code
    except Abort:
        return _say("stopped", EXIT_FAILED)
    except TyperException as error:  # an unknown option, a missing argument, a value of the wrong type
        message = _message_of(error)
        if "\n" in message:  # the help of a noun without a verb
            typer.echo(printable(message, lines=True), err=True)
            return EXIT_BAD_INPUT
        where = getattr(getattr(error, "ctx", None), "command_path", "cleave")
        return _say(f"{message.rstrip('.')}; `{where} --help` lists the possible ones", EXIT_BAD_INPUT)
    except CleaveError as error:
        return _say(str(error), exit_code(type(error)))
    except OSError as error:
        if not _has_lost_output():
            raise
        return _say(
            f"cannot write the output: {error.strerror}; a change that the command makes was made before the output",
            EXIT_NOT_WRITTEN,
        )


def _has_lost_output() -> bool:
    """Return True if standard output refuses a line end. What it still keeps is then discarded, because Python would print an
    error about it at the end of the process.
    """
    if sys.stdout is None:  # the process was started with a closed one
        return False
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _message_of(error: TyperException) -> str:
    """Return the message of the error. If Pydantic refused the value of an option or argument, the message names the value."""
    from pydantic import ValidationError

    if not isinstance(error, typer.BadParameter):
        return str(error)
    message = error.format_message()
    if isinstance(error.__cause__, ValidationError):
        value = shown(str(error.__cause__.errors()[0]["input"]))
        if value not in message:
            message = message.replace("Invalid value for", f"Invalid value {value} for", 1)
    return message


def _say(message: str, code: int) -> int:
    """Print the message as one line on standard error. Return `code`."""
    typer.echo("cleave: " + printable(" ".join(message.split())), err=True)
    return code


def _say_traceback(
    kind: type[BaseException], error: BaseException | None, where: TracebackType | None
) -> None:
    """Print an unexpected error like Python, with control characters escaped. Prints nothing for SystemExit."""
    if not issubclass(kind, SystemExit):
        typer.echo(
            printable("".join(traceback.format_exception(kind, error, where)), lines=True), err=True, nl=False
        )


if __name__ == "__main__":
    main()
