"""Chooses between a server, if `--api-url` or CLEAVE_API_URL names one, and the database in the settings.

The token comes from the environment or a file, never from the command line, which every user of the machine can see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from controller.domain.bearer_token import bearer_token
from controller.domain.errors import InvalidInput
from controller.domain.web_address import web_address

if TYPE_CHECKING:
    from pydantic import BaseModel

    from controller.actions.action import AnyAction
    from controller.actions.context import Options
    from controller.commands.http_calls import Calls
    from controller.questions.question import Question, Row
    from controller.settings import Settings


class Perform(Protocol):
    """A function that performs an action. Without `options` it does not wait for the action."""

    def __call__(self, action: AnyAction, request: BaseModel, options: Options | None = None) -> Any:
        """Perform the action and return its response. Raises the errors of the action."""


_GIVEN: ContextVar[str | None] = ContextVar("api_url", default=None)


def name_server(url: str | None) -> None:
    """Set the value of `--api-url` for the following calls of this module; None if the option is missing."""
    _GIVEN.set(url)


def server_url() -> str | None:
    """Return the address of the server, from `--api-url` or else from CLEAVE_API_URL; None if commands use the database. Raises
    InvalidInput for an invalid address or setting.
    """
    from controller.settings import load_settings

    address = _GIVEN.get()
    name, url = ("--api-url", address) if address else ("CLEAVE_API_URL", load_settings().api_url)
    return web_address(url, name) if url else None


def perform(action: AnyAction, request: BaseModel, options: Options | None = None) -> Any:
    """Perform the action on the server, or in this process on the database. `options` None: neither a dry run nor a wait. Raises the errors
    of the action, over HTTP also those of `Calls`, and InvalidInput for an invalid address or token of the server.
    """
    with performing() as perform_action:
        return perform_action(action, request, options)


@contextmanager
def performing(*, name: str = "cleave") -> Iterator[Perform]:
    """Yield `perform` with connections that last for several actions, to the server or the database, and close them at the end of the
    block.

    `name` is the application name of the database connection. Raises InvalidInput for an invalid address or token of the server.
    """
    from controller.actions.context import Options, command_caller
    from controller.actions.perform import perform_at, perform_parts

    url = server_url()
    if url is not None:
        with _calls(url) as calls:
            yield lambda action, request, options=None: perform_parts(
                lambda part: calls.perform(action, part, options or Options()), request
            )
        return
    from controller.bootstrap import application

    with application(name=name) as app:
        yield lambda action, request, options=None: perform_at(
            app, command_caller(), options or Options(), action, request
        )


def ask(
    question: Question,
    filters: Mapping[str, object],
    *,
    limit: int | None,
    most_seconds: float | None = None,
) -> Iterator[Row]:
    """Yield the rows that answer the question, `limit` at most (None: all), from the server or, in a read-only snapshot, from the database.
    `filters` are values by filter, as the fields of the question's request accept them.

    With `most_seconds`, an answer of a server may take this time, and the request is not repeated; without, `CALL_SECONDS`. Raises the
    errors of `read_page`, over HTTP also those of `Calls`, and InvalidInput for invalid filters, and for an invalid address or token of the
    server.
    """
    from controller.actions.fields import fill_in

    request, url = fill_in(question.request, filters), server_url()
    if url is None:
        from controller.commands.read_only_store import reading
        from controller.questions.question import read_rows

        with reading() as tx:
            yield from read_rows(tx, question, request, limit=limit)
        return
    with _calls(url, most_seconds) as calls:
        yield from calls.ask(question, request, limit=limit)


@contextmanager
def _calls(url: str, most_seconds: float | None = None) -> Iterator[Calls]:
    """Open the calls of the server at `url`, with the token of the settings. `most_seconds`: maximum duration of an answer, without
    repetition; None: `CALL_SECONDS`, and a call that did not reach the server is repeated. Raises InvalidInput for a missing or invalid
    token.
    """
    from controller.client.servers import Servers
    from controller.commands.http_calls import CALL_SECONDS, TRIED_AGAIN_SECONDS, Calls
    from controller.settings import load_settings

    patience = (CALL_SECONDS, TRIED_AGAIN_SECONDS) if most_seconds is None else (most_seconds, 0.0)
    settings = load_settings()
    token = _token(settings, url)
    servers = Servers(
        [url],
        partial(_token, settings, url) if settings.api_token_file else token,  # the file may have a new token
        call_timeout_seconds=patience[0],
        proxy=None if settings.api_proxy is None else settings.api_proxy.get_secret_value(),
    )
    try:
        yield Calls(servers, url, patience[1])
    finally:
        servers.close()


def _token(settings: Settings, url: str) -> str:
    """Return the token from the file of the settings, or without a file from CLEAVE_API_TOKEN. Raises InvalidInput for a missing,
    unreadable or invalid token.
    """
    name, text = "CLEAVE_API_TOKEN", ""
    if settings.api_token_file:
        name = f"CLEAVE_API_TOKEN_FILE ({settings.api_token_file})"
        try:
            text = Path(settings.api_token_file).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InvalidInput(
                f"{name} cannot be read: {why}; write a token of `cleave token` into the file"
            ) from None
    elif settings.api_token is not None:
        text = settings.api_token.get_secret_value().strip()
    if not text:
        raise InvalidInput(
            f"no token for {url}; set CLEAVE_API_TOKEN or CLEAVE_API_TOKEN_FILE to one of `cleave token`"
        )
    return bearer_token(text, name)
