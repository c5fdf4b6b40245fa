"""Commands of questions: filters from the fields of the request, one table for all answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from rich.console import Group
from rich.text import Text

from controller.actions.signatures import keyword
from controller.command_output import emit, rows_table
from controller.commands.options import AsJson, Limit
from controller.commands.parameters import generated, parameter_of
from controller.commands.server_choice import ask
from controller.domain.formatting import exact
from controller.questions.question import Question, questions_of


def add_questions(app: typer.Typer, subject: str) -> None:
    """Add the questions of a subject whose names have two words, and that are commands, to `app`, the subject's group."""
    for question in questions_of(subject):
        words = question.name.split()
        if len(words) == 2 and question.is_command:
            app.command(words[1])(command_of(question))


def command_of(question: Question) -> Callable[..., None]:
    """Return the function from which Typer builds the command: it reads the rows, `limit` at most, and prints them as a table, with a
    note if there are more rows, or as JSON. The JSON of a question of one row is the row, not a list. The command raises InvalidInput for
    values that the request refuses, and the errors of `ask`.
    """

    def run(as_json: bool, limit: int = 1, **values: Any) -> None:
        filters = {name: value for name, value in values.items() if value is not None}
        # One additional row shows that the list is incomplete.
        read = list(ask(question, filters, limit=limit + 1))
        rows = read[:limit]
        document = rows[0] if question.one_row else rows
        columns = [name for name in question.table if name not in filters] or None
        shown_rows = [row | {name: exact(row[name]) for name in question.exact} for row in rows]
        table = rows_table(shown_rows, columns)
        more = Text(f"the first {limit} only; see --limit")
        emit(as_json, document, Group(table, more) if len(read) > limit else table)

    parameters = [parameter_of(name, field) for name, field in question.request.model_fields.items()]
    if not question.one_row:
        parameters.append(keyword("limit", Limit, question.default_limit))
    parameters.append(keyword("as_json", AsJson, False))
    return generated(run, question.name, question.description, parameters)


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of a question whose name is one word, such as `operations`. Raises AttributeError for any other name."""
    for question in questions_of(name):
        if question.name == name:
            return command_of(question)
    raise AttributeError(name)
