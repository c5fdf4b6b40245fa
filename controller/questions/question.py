"""Declares questions, and reads their rows: view, filters, order and page."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import GenericAlias, MappingProxyType
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model
from sqlalchemy import Connection

from controller.actions.fields import AS_ARGUMENT, TopicName, as_value_error
from controller.actions.responses import Answer
from controller.actions.rights import Right
from controller.domain.errors import NotFound
from controller.domain.names import LONGEST_TOPIC
from controller.domain.whole_numbers import plain_number
from controller.questions.page_keys import read_keys, write_keys
from controller.questions.spans import demand_span, instant
from controller.store.postgres import inspection
from controller.store.postgres.clock import database_now
from controller.store.topics import inspector_reads

Row = dict[str, Any]
ItemT = TypeVar("ItemT", bound=BaseModel)
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
        "backtests": "controller.questions.backtests",
        "bundles": "controller.bundles.questions",
    }
)
"""Modules with the questions, by subject. The first lookup of a subject loads its module."""


def _instant(value: object) -> object:
    """Return the time of a text, in which an age counts from the present; any other value is returned unchanged, for the field's type to
    check.
    """
    return instant(value, datetime.now(UTC)) if isinstance(value, str) else value


Instant = Annotated[datetime, BeforeValidator(as_value_error(_instant)), WithJsonSchema({"type": "string"})]
"""A time, or an age: `2026-11-21T03:00:00Z`, `12h`, `7d`."""

MAX_ROWS = 100_000
"""Maximum number of rows of a request."""
MOST_OF_A_PAGE = 1000
"""Maximum number of rows of a page."""
LONGEST_PAGE = 6000
"""Maximum number of characters of `page`: enough for the longest names in the keys, and less than the 8 KiB of a request line."""
PAGES = [write_keys([42]), write_keys(["topic://acme/shop/orders"])]
"""Examples of `page`: for a list of operations, and for a list of topics."""


class QuestionRequest(BaseModel):
    """The filters of a question. A field that is None does not filter."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class PageRequest(QuestionRequest):
    """A request for a list, which comes in pages."""

    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = Field(
        50,
        description=f"Maximum number of rows; a page has at most {MOST_OF_A_PAGE}. Default: 50.",
        examples=[100],
    )
    page: str | None = Field(
        None,
        max_length=LONGEST_PAGE,
        description="The `next` of the previous page. None: the first page.",
        examples=PAGES,
    )

    @property
    def size(self) -> int:
        """Maximum number of rows of the page."""
        return min(self.limit, MOST_OF_A_PAGE)

    def keys(self, kinds: Sequence[type]) -> Sequence[Any]:
        """Return the keys of the last row of the previous page; None for each key for the first page. Raises InvalidInput for an invalid
        `page`.
        """
        return [None] * len(kinds) if self.page is None else read_keys(self.page, kinds)

    def after(self, page: str | None, rows: int) -> Self | None:
        """Return the request for the rest of the rows, after a page with `rows` rows; `page` is the `next` of that page.
        None if that page was the last, or if `limit` rows were read.
        """
        remaining_rows = self.limit - rows
        return (
            None
            if page is None or remaining_rows <= 0
            else self.model_copy(update={"limit": remaining_rows, "page": page})
        )


class PageAnswer(Answer, Generic[ItemT]):
    """A page of a list."""

    items: list[ItemT]
    next: str | None = Field(description="The `page` of the next request; null at the end.", examples=PAGES)

    def title(self) -> str | None:
        """Return the title of the table: the sentence of the answer, with a note if rows are left."""
        note = f"; the first {len(self.items)} only; see --limit" if self.next else ""
        return f"{self.sentence()}{note}"

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the answer's table."""
        return [item.model_dump() for item in self.items]

    def rest_of(self, request: PageRequest) -> PageRequest | None:
        """Return the request for the rows after this page, the answer to `request`. None if this page was the last, or if the request's
        limit is reached.
        """
        return request.after(self.next, len(self.items))

    def joined(self, earlier: Self) -> Self:
        """Return a copy of this page with the items of `earlier`, which may be several joined pages, before its own."""
        return self.model_copy(update={"items": [*earlier.items, *self.items]})


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of a question: the SQL condition that selects rows, and the field of the request that has the value."""

    condition: str | None
    """SQL condition that applies if the filter is given, with the filter's name as a bound value. If a topic is named, `:topic` is bound,
    and `:topic_id` unless the question is `of_past`. None: the view is a function that takes the value.
    """
    kind: Any
    """Type of the value, with its bounds; None for a filter that only programs use (`read_answers`)."""
    description: str | None = None
    """Description of the field. A field in the path has the description of its type."""
    examples: Sequence[Any] | None = None
    default: Any = None
    """Value of a request that leaves the filter out. None and False do not filter."""
    alias: str | None = None
    """Name of the field for people, if it differs from the filter's name."""
    most: int | None = None
    """Maximum number of values of a filter that may be given several times; None: one value."""
    is_argument: bool = False
    """True if the command takes the filter as an argument instead of an option."""

    def field(self, *, is_required: bool) -> Any:
        """Return the type and the field for `pydantic.create_model`. A field that is required has no default."""
        if is_required:
            return self.kind, ...
        default = False if self.kind is bool else self.default
        kind = self.kind
        if self.most is not None:  # FastAPI finds no list of several values within `Annotated`
            kind = GenericAlias(list, (kind,))
        if default is None:
            kind = kind | None
        if self.is_argument:
            kind = Annotated[kind, AS_ARGUMENT]
        examples = None if self.examples is None else [*self.examples]
        return kind, Field(
            default, alias=self.alias, description=self.description, examples=examples, max_length=self.most
        )


TOPIC = Filter("topic_id = :topic_id", TopicName)
"""The topic in the path of a question."""
ONE_TOPIC = Filter("topic_id = :topic_id", TopicName, "Only this topic.", ["topic://acme/shop/orders"])
"""A topic as a filter of a question about the present. The condition is on the topic's id."""
ONE_PAST_TOPIC = replace(ONE_TOPIC, condition="topic = :topic")
"""A topic as a filter of a question `of_past`. The condition is on the name, because the topic may be deleted."""
# A full name is looked up by its index; a part of a name is searched in all names.
FIND = Filter(
    "topic = :find OR (NOT starts_with(:find, 'topic://') AND strpos(topic, :find) > 0)",
    Annotated[str, Field(max_length=LONGEST_TOPIC)],
    "Only topics with this text in their names, or the topic of this name if it begins with topic://.",
    ["orders"],
)
ASKED_BY_RUN = "starts_with(request_key, 'airflow/' || :run || '/')"
DECIDED_BY_RUN = "decided_by = 'airflow ' || regexp_replace(:run, '/', ' ')"
"""Conditions of the filter `run`: a DAG run uses a request key, and a pass decides under a name (`cleave_dags.run_name`)."""


def run_filter(condition: str) -> Filter:
    """Return the filter for the rows of one DAG run."""
    return Filter(
        condition,
        Annotated[str, Field(max_length=1000)],
        "Only rows that this DAG run requested or decided: dag_id/run_id.",
        ["cleave_split_pass/scheduled__2026-11-21T03:00:00+00:00"],
    )


def span_filters(column: str) -> Mapping[str, Filter]:
    """Return the filters for the rows whose time in `column` is in a span."""
    since = Filter(
        f"{column} >= :since",
        Instant,
        "Start, as a time or an age such as 12h (inclusive).",
        ["12h", "2026-11-21T03:00:00Z"],
        alias="from",
    )
    until = Filter(
        f"{column} < :until",
        Instant,
        "End, as a time or an age such as 1h (exclusive).",
        ["1h", "2026-11-21T04:00:00Z"],
        alias="to",
    )
    return {"since": since, "until": until}


class TopicQuestion(QuestionRequest):
    """Filters of a question about one topic."""

    topic: TopicName


@dataclass(frozen=True)
class Question:
    """Declaration of a question, whose answer is a list of rows or one row. The view has one row per answer."""

    name: str
    """Name of the command, such as `topics list`."""
    path: str
    """Path below `/api/v1`. Fields of the request are in braces; `{topic}` and `{namespace}` have several path segments."""
    view: str
    """A view of schema `inspect`, or a function of it with its parameters, such as `inspect.lineage(:topic, :segment_id)`."""
    description: str
    """Help text of the command and of the REST call."""
    keys: Mapping[str, type]
    """Columns (or expressions) that order the rows and are unique together, with their types: str, int or datetime."""
    filters: Mapping[str, Filter]
    """Filters by name. A filter that the path names is required."""
    always: str = "true"
    """SQL condition that always applies."""
    descending: bool = False
    columns: str = "*"
    table: tuple[str, ...] = ()
    """Columns that fit into a table; empty: all columns."""
    exact: tuple[str, ...] = ()
    """Columns whose numbers the table does not round."""
    right: Right = Right.READ
    of_past: bool = False
    """True if the topic may be deleted; the rows are then found by its name, which several topics may have had."""
    one_row: bool = False
    """True if the answer is one row, as for a question with an id."""
    missing: str | None = None
    """Error message if there is no row and the fields in its braces are given. None: no row is not an error."""
    explain_no_rows: Callable[[Connection, Row], None] | None = None
    """Called with the bound values (the filters, and `topic_id` as in `Filter.condition`) if there is no row. May raise an error
    with the reason.
    """
    is_command: bool = True
    """True if the question is also a command."""
    present: Callable[[Row, datetime], Row] | None = None
    """Converts codes of a row into texts, as of a time."""
    default_limit: int = 30
    """Maximum number of rows of the command if its user gives no limit."""

    @functools.cached_property
    def request(self) -> type[QuestionRequest]:
        """Class of the requests, with a field for each filter that people use."""
        fields = {
            name: one.field(is_required=name in self.path_fields)
            for name, one in self.filters.items()
            if one.kind is not None
        }
        return create_model(self.name, __base__=QuestionRequest, __doc__=self.description, **fields)

    @property
    def path_fields(self) -> tuple[str, ...]:
        """Names of the request fields in the path, in the order of the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def order(self) -> str:
        """Text of the ORDER BY clause: the keys, each descending if the question is."""
        return ", ".join(f"{key} DESC" if self.descending else key for key in self.keys)

    @property
    def relation(self) -> str:
        """Name of the view or function, without parameters."""
        return self.view.partition("(")[0]


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of a page, and the text that requests the next page; None at the end."""

    rows: Sequence[Row]
    next: str | None


@functools.cache
def questions_of(subject: str) -> tuple[Question, ...]:
    """Return the questions of a subject, in the order of their declarations; empty for an unknown subject. Loads
    the subject's module at the first call.
    """
    if subject not in MODULES:
        return ()
    questions: tuple[Question, ...] = importlib.import_module(MODULES[subject]).QUESTIONS
    return questions


def all_questions() -> tuple[Question, ...]:
    """Return all questions. Loads the modules of all subjects."""
    return tuple(question for subject in MODULES for question in questions_of(subject))


def read_page(
    tx: Connection, question: Question, request: QuestionRequest, *, limit: int, page: str | None = None
) -> Page:
    """Return one page of the rows that the filters of `request` select, converted by the question's `present`: at most
    `limit` (1 or more), in the order of the question's keys, after the row whose keys are in `page` (the `next` of the
    previous page; None: from the first).

    If the first page is empty, raise NotFound with the question's `missing` message if there is one and all fields in it
    are given; otherwise call the question's `explain_no_rows`, if any, which may raise an error, and return an empty
    page. A later page may be empty. Raises TopicNotFound for the request's topic, and InvalidInput for an invalid page or
    an empty span.
    """
    values = request.model_dump(exclude_none=True)
    parameters = values | _topic_values(tx, question, values.get("topic"))
    conditions, keys = _conditions(question, values), [*question.keys]
    last_keys = [] if page is None else read_keys(page, [*question.keys.values()])
    key_parameters = {f"after_{index}": key for index, key in enumerate(last_keys)}
    if key_parameters:
        placeholders = ", ".join(f":{name}" for name in key_parameters)
        conditions.append(f"({', '.join(keys)}) {'<' if question.descending else '>'} ({placeholders})")
    columns = [question.columns, *(f"{key} AS key_{index}" for index, key in enumerate(keys))]
    # One more row than the page holds shows whether there is another page.
    rows = read_view(
        tx,
        question.view,
        *conditions,
        columns=", ".join(columns),
        order=question.order,
        limit=limit + 1,
        **parameters,
        **key_parameters,
    )
    if not rows and page is None:
        _demand_rows(question, values)
        if question.explain_no_rows is not None:
            question.explain_no_rows(tx, parameters)
    page_rows, is_last = rows[:limit], len(rows) <= limit
    next_page = None if is_last else write_keys([page_rows[-1][f"key_{index}"] for index in range(len(keys))])
    return Page(_presented(tx, question, page_rows), next_page)


def read_answers(
    tx: Connection,
    question: Question,
    limit: int | None = None,
    *,
    order: str | None = None,
    columns: str | None = None,
    **filters: object,
) -> list[Row]:
    """Return the first `limit` rows (None: all), converted by the question's `present`, for a caller that has looked up
    the topic: `topic` and `topic_id` are ordinary filters.

    `order` and `columns` replace the order and the columns of the question; `columns` must contain what `present`
    reads, and columns whose names begin with `key_` are left out. A filter that is None, False or an empty text does not
    filter. A filter that is neither a condition of the question nor a parameter of its view is ignored; parameters of
    the view must be given. No rows are no error. Raises InvalidInput if the span from `since` to `until` is empty.
    """
    values = {name: value for name, value in filters.items() if value not in (None, "")}
    rows = read_view(
        tx,
        question.view,
        *_conditions(question, values),
        columns=columns or question.columns,
        order=order or question.order,
        limit=limit,
        **values,
    )
    return _presented(tx, question, rows)


def read_view(
    tx: Connection,
    view: str,
    *conditions: str,
    columns: str = "*",
    order: str | None = None,
    limit: int | None = None,
    **values: object,
) -> list[Row]:
    """Return at most `limit` rows (None: all) of a view that meet all conditions, in the order `order` (None: any). View,
    conditions, columns and order are SQL texts that must be constants of the program; `values` are bound to the names in
    them. Decimal numbers are converted as in `plain_number`.
    """
    condition_text = " AND ".join(f"({condition})" for condition in conditions) or "true"
    order_text = f" ORDER BY {order}" if order else ""
    statement = f"SELECT {columns} FROM {view} AS answer WHERE {condition_text}{order_text} LIMIT :limit"  # noqa: S608 - constants only
    return read_statement(tx, statement, **values, limit=limit)


def read_statement(tx: Connection, statement: str, **values: object) -> list[Row]:
    """Return the rows of a statement that joins or aggregates views. `values` are bound; decimal numbers become
    integers or floats, as in `plain_number`.
    """
    rows = inspection.rows(tx, statement, **values)
    return [{name: plain_number(value) for name, value in row.items()} for row in rows]


def read_rows(
    tx: Connection, question: Question, request: QuestionRequest, *, limit: int | None
) -> Iterator[Row]:
    """Yield at most `limit` rows (None: all), page by page, so that a long list is not held in memory. The iteration
    raises the errors of `read_page`, such as NotFound if there is no row and the question has a message for that. With
    `limit` 0, nothing is read and no error is raised.
    """
    page, remaining_rows = None, limit
    while remaining_rows is None or remaining_rows > 0:
        size = MOST_OF_A_PAGE if remaining_rows is None else min(MOST_OF_A_PAGE, remaining_rows)
        current_page = read_page(tx, question, request, limit=size, page=page)
        yield from current_page.rows
        page = current_page.next
        if page is None:
            return
        remaining_rows = None if remaining_rows is None else remaining_rows - size


def _demand_rows(question: Question, values: Mapping[str, Any]) -> None:
    """Raise NotFound with the question's `missing` message, into which `values` are put, if it has one and all fields in the message are
    given. Called if there are no rows.
    """
    field_names = re.findall(r"{(\w+)}", question.missing or "")
    if question.missing and all(values.get(name) is not None for name in field_names):
        raise NotFound(question.missing.format_map(values))


def _topic_values(tx: Connection, question: Question, topic: str | None) -> dict[str, Any]:
    """Return the values to bind for the topic of this name: `topic_id`, or `topic` for a question about the past, whose
    topic may be deleted. Empty if `topic` is None. Raises TopicNotFound.
    """
    if topic is None:
        return {}
    if question.of_past:
        return {"topic": inspector_reads.demand_known(tx, topic)}
    return {"topic_id": inspector_reads.find_topic(tx, topic).topic_id}


def _conditions(question: Question, values: Mapping[str, Any]) -> list[str]:
    """Return the SQL conditions of the question: the condition that always applies, and the conditions of the filters
    that are given. A filter that is None or False does not apply; 0 applies. A filter for which the question has no
    condition is ignored. Raises InvalidInput if the span from `since` to `until` is empty.
    """
    since, until = values.get("since"), values.get("until")
    if since is not None and until is not None:
        demand_span(since, until)
    # The comparison with False is by identity, because 0 is an id and equals False.
    given = {name for name, value in values.items() if value is not None and value is not False}
    conditions = (one.condition for name, one in question.filters.items() if name in given)
    return [question.always, *(condition for condition in conditions if condition is not None)]


def _presented(tx: Connection, question: Question, rows: Sequence[Row]) -> list[Row]:
    """Return the rows without the columns whose names begin with `key_`, converted by the question's `present`, if any,
    as of the database's time.
    """
    shown_rows = [{name: value for name, value in row.items() if not name.startswith("key_")} for row in rows]
    if question.present is None or not shown_rows:
        return shown_rows
    now = database_now(tx)
    return [question.present(row, now) for row in shown_rows]
