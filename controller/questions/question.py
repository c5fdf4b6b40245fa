"""The declaration of a question, and the one way to read its rows: view, filters, order, page."""

from __future__ import annotations

import base64
import binascii
import functools
import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from sqlalchemy import Connection

from controller.actions.fields import TopicName, as_value_error
from controller.actions.rights import Right
from controller.domain.errors import InvalidInput, NotFound
from controller.domain.shown import shown
from controller.domain.whole_numbers import MOST
from controller.questions.spans import instant
from controller.store.postgres import inspection
from controller.store.topics import inspected

Row = dict[str, Any]
MODULES: Mapping[str, str] = MappingProxyType(
    {
        "topics": "controller.questions.topics",
        "subscriptions": "controller.questions.subscriptions",
        "consumers": "controller.questions.consumers",
        "operations": "controller.questions.operations",
        "audit": "controller.questions.audit",
        "decisions": "controller.questions.decisions",
        "history": "controller.questions.history",
        "policy": "controller.questions.policies",
        "approvals": "controller.questions.approvals",
    }
)
"""Module with the questions of a subject. It is loaded when somebody asks for the subject."""


def _instant(value: object) -> object:
    return instant(value, datetime.now(UTC)) if isinstance(value, str) else value


Instant = Annotated[datetime, BeforeValidator(as_value_error(_instant)), WithJsonSchema({"type": "string"})]
"""An instant, or how long ago: `2026-11-21T03:00:00Z`, `12h`, `7d`."""
Since = Annotated[
    Instant | None,
    Field(
        alias="from",
        description="From this instant on, or so long ago.",
        examples=["12h", "2026-11-21T03:00:00Z"],
    ),
]
Until = Annotated[
    Instant | None,
    Field(
        alias="to",
        description="Until before this instant, or so long ago.",
        examples=["1h", "2026-11-21T04:00:00Z"],
    ),
]


class QuestionRequest(BaseModel):
    """The filters of a question. A field that is None does not filter."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class TopicFilter(QuestionRequest):
    """A question about one topic or all."""

    topic: TopicName | None = Field(
        None, description="Only this topic.", examples=["topic://acme/shop/orders"]
    )


class TopicQuestion(QuestionRequest):
    """A question about one topic."""

    topic: TopicName


@dataclass(frozen=True, slots=True)
class Question:
    """A list of rows, or one row. The view has a row for each answer; its columns are the answer."""

    name: str
    """The words of the command, such as `topics list`."""
    path: str
    """Below `/api/v1`. Fields of the request stand in braces; `{topic}` and `{namespace}` have several parts."""
    view: str
    """A view of schema `inspect`, or a function of it with its parameters, such as `inspect.lineage(:topic, :segment_id)`."""
    request: type[QuestionRequest]
    """The filters; the docstring describes the question."""
    keys: Mapping[str, type]
    """Columns (or expressions) that order the rows and are unique together, with their types: str, int or datetime."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """SQL that holds for an answer, for each filter that is given. `topic` and `topic_id` are bound where a topic is named."""
    always: str = "true"
    """SQL that holds for every answer."""
    descending: bool = False
    columns: str = "*"
    table: tuple[str, ...] = ()
    """Columns that a table has room for; all columns where empty."""
    right: Right = Right.READ
    of_past: bool = False
    """The topic may be one that was deleted."""
    one_row: bool = False
    """Whether the answer is one row, as for a question that names an id."""
    missing: str | None = None
    """The error where there is no row at all, with fields in braces."""
    is_command: bool = True
    """Whether the question is a command as well."""
    present: Callable[[Row, datetime], Row] | None = None
    """Turns the codes of a row into sentences, as of an instant."""
    default_limit: int = 30

    @property
    def path_fields(self) -> tuple[str, ...]:
        """Fields of the request that the path names."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def relation(self) -> str:
        """The view or function without its parameters."""
        return self.view.partition("(")[0]


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, and the text that asks for the page after them; None at the end."""

    rows: Sequence[Row]
    next: str | None


@functools.cache
def questions_of(subject: str) -> tuple[Question, ...]:
    """Return the questions of a subject, in the order of its files; none for another word."""
    if subject not in MODULES:
        return ()
    questions: tuple[Question, ...] = importlib.import_module(MODULES[subject]).QUESTIONS
    return questions


def all_questions() -> tuple[Question, ...]:
    """Return every question; loads all subjects."""
    return tuple(question for subject in MODULES for question in questions_of(subject))


def read_page(
    tx: Connection, question: Question, request: QuestionRequest, *, limit: int, page: str | None = None
) -> Page:
    """Return one page of answers. Raises TopicNotFound, InvalidInput for a page that is none, NotFound for a row that is none."""
    values = request.model_dump(exclude_none=True)
    _demand_span(values)
    bound = values | _topic_values(tx, question, values.get("topic"))
    after = _read_keys(question, page)
    # One row more than the page holds tells that there is another page.
    rows = inspection.rows(
        tx, _statement(question, values, after is not None), **bound, **(after or {}), limit=limit + 1
    )
    if question.missing is not None and not rows and page is None:
        raise NotFound(question.missing.format_map(values))
    answers, is_last = rows[:limit], len(rows) <= limit
    following = (
        None if is_last else _write_keys([answers[-1][f"key_{place}"] for place in range(len(question.keys))])
    )
    return Page([_answer(question, row, tx) for row in answers], following)


def read_rows(
    tx: Connection, question: Question, request: QuestionRequest, *, limit: int | None, page_rows: int = 1000
) -> Iterator[Row]:
    """Yield the answers, `limit` at most, page by page, so that a long list is not held whole."""
    page, left = None, limit
    while left is None or left > 0:
        size = page_rows if left is None else min(page_rows, left)
        answers = read_page(tx, question, request, limit=size, page=page)
        yield from answers.rows
        page = answers.next
        if page is None:
            return
        left = None if left is None else left - size


def _demand_span(values: Mapping[str, Any]) -> None:
    since, until = values.get("since"), values.get("until")
    if since is not None and until is not None and since >= until:
        raise InvalidInput(
            f"nothing lies between --from {since.isoformat()} and --to {until.isoformat()}; give --from the earlier"
        )


def _topic_values(tx: Connection, question: Question, topic: str | None) -> dict[str, Any]:
    if topic is None:
        return {}
    if question.of_past:
        return {"topic": inspected.demand_known(tx, topic)}
    return {"topic_id": inspected.find_topic(tx, topic).topic_id}


def _statement(question: Question, values: Mapping[str, Any], is_after: bool) -> str:
    keys = [*question.keys]
    conditions = [question.always]
    conditions += [sql for name, sql in question.conditions.items() if values.get(name) not in (None, False)]
    if is_after:
        places = ", ".join(f":after_{place}" for place in range(len(keys)))
        conditions.append(f"({', '.join(keys)}) {'<' if question.descending else '>'} ({places})")
    columns = ", ".join(f"{key} AS key_{place}" for place, key in enumerate(keys))
    order = ", ".join(f"{key} DESC" if question.descending else key for key in keys)
    where = " AND ".join(f"({sql})" for sql in conditions)
    # Names come from the declaration alone; every value is bound.
    return f"SELECT {question.columns}, {columns} FROM {question.view} AS answer WHERE {where} ORDER BY {order} LIMIT :limit"  # noqa: S608


def _answer(question: Question, row: Row, tx: Connection) -> Row:
    answer = {name: plain_number(value) for name, value in row.items() if not name.startswith("key_")}
    return answer if question.present is None else question.present(answer, _now(tx))


def _now(tx: Connection) -> datetime:
    """Return the instant of the transaction, which is one for all its rows."""
    [row] = inspection.rows(tx, "SELECT now() AS now")
    now: datetime = row["now"]
    return now


def plain_number(value: Any) -> Any:
    """Return a decimal number as a whole number or a float; text where no float holds it, and other values as they are."""
    if not isinstance(value, Decimal):
        return value
    if not value.is_finite() or abs(value) > MOST:
        return str(value)
    return int(value) if value == value.to_integral_value() else float(value)


def _write_keys(keys: Sequence[Any]) -> str:
    text = json.dumps([key.isoformat() if isinstance(key, datetime) else key for key in keys])
    return base64.urlsafe_b64encode(text.encode()).decode("ascii").rstrip("=")


def _read_keys(question: Question, page: str | None) -> dict[str, Any] | None:
    if page is None:
        return None
    try:
        padded = page + "=" * (-len(page) % 4)
        keys = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
        if not isinstance(keys, list) or len(keys) != len(question.keys):
            raise ValueError("other keys")
        pairs = zip(question.keys.values(), keys, strict=True)
        return {f"after_{place}": _read_key(kind, key) for place, (kind, key) in enumerate(pairs)}
    except (ValueError, binascii.Error, RecursionError) as error:
        raise InvalidInput(
            f"page = {shown(page)} is no page of this list; give the `next` of the page before"
        ) from error


def _read_key(kind: type, key: Any) -> Any:
    if kind is datetime and isinstance(key, str):
        instant = datetime.fromisoformat(key)
        if instant.tzinfo is None:
            raise ValueError("no time zone")
        return instant
    if not isinstance(key, kind) or isinstance(key, bool) or (isinstance(key, int) and abs(key) > MOST):
        raise ValueError("another kind of key")
    return key
