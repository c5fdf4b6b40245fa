"""Sends a client's requests to Cleave's workers: JSON over HTTP, and server-sent events.

Any worker responds, or redirects the client to the worker that can. A worker that does not respond is
skipped. Errors are those of `domain.errors`; the caller decides how long to retry.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urljoin

import httpx
import httpx_sse

from controller.client.arguments import checks_arguments
from controller.domain import errors
from controller.domain.bearer_token import bearer_token
from controller.domain.errors import (
    AccessDenied,
    CleaveError,
    InvalidInput,
    Retryable,
    StoreUnavailable,
    Terminal,
)
from controller.domain.formatting import shown
from controller.domain.http_proxies import Proxy, through
from controller.domain.utf8 import utf8
from controller.domain.web_address import web_address
from controller.forks import OneProcess, Renewed

MOST_REDIRECTS = 3
MOST_IDLE_CONNECTIONS = 16
"""Number of idle connections that are kept for later calls.

At the beginning and end of each call the library checks every connection of a pool, and polls each idle
connection, under one lock. With hundreds of connections in a pool, for as many consumers in one process,
calls would wait for seconds. For the same reason each stream has its own pool.
"""
NO_WORKER = "is no worker of Cleave"
TOKEN_EXPIRED = "token expired"  # noqa: S105 - a reason
TEMPORARY_STATUSES = frozenset({408, 425, 429})
"""Statuses below 500 with which a server between the client and the workers refuses a request for a time."""
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.2, 5.0
"""Delay of a retryable error, and the longest delay if a server between the client and the workers asks for one."""
_KINDS: Mapping[str, type[CleaveError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, CleaveError)
}


class EventFeed(OneProcess):
    """The events of one stream. For one thread, but any thread may call `hang_up`."""

    _endings = frozenset({"hang_up"})

    def __init__(self, answer: httpx.Response, through: str = "") -> None:
        """Read the events of `answer`. `through` is the description of the proxy for messages."""
        self._answer, self._through = answer, through

    def __iter__(self) -> Iterator[httpx_sse.ServerSentEvent]:
        """Yield the events as they arrive, including heartbeats. The iteration never ends without an error. Raises
        StoreUnavailable when the stream breaks or ends, after `hang_up`, and when no event arrives within the
        `silent_seconds` of `Servers.events`.
        """
        origin = f"{_origin(self._answer.url)}{self._through}"
        try:
            yield from httpx_sse.EventSource(self._answer).iter_sse()
        except httpx.HTTPError as error:
            raise StoreUnavailable(f"the event stream of {origin} broke: {error}", 0.1) from error
        raise StoreUnavailable(f"the event stream of {origin} ended", 0.1)

    def hang_up(self) -> None:
        """End the stream at once. A thread that waits for its next event gets StoreUnavailable."""
        stream = self._answer.extensions.get("network_stream")
        connection = None if stream is None else stream.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@checks_arguments
class Servers(Renewed):
    """The addresses of Cleave's workers. Connects at the first call.

    Safe to share between threads, and with forked processes: each process has its own connections.
    """

    def __init__(
        self,
        urls: Sequence[str],
        token: str | Callable[[], str],
        *,
        call_timeout_seconds: float = 5.0,
        proxy: str | None = None,
    ) -> None:
        """Use the workers at `urls`, which are tried in this order until one responds. No connection is opened yet.
        `token` is sent with each request. A function `token` is called before each request, also when a request is
        repeated at another worker, but not by the constructor. `call_timeout_seconds` limits each step of an attempt,
        such as connecting and waiting for data (`ask`).

        Requests go through `proxy`, or directly if `proxy` is None; proxies that the environment names are ignored.
        Raises InvalidInput if `urls` is empty, and for an invalid address, token or proxy.
        """
        if not urls:
            raise InvalidInput("no address of a worker; give one or more, such as http://cleave:8470")
        self._urls = [_address(url) for url in urls]
        self._token = token if callable(token) else bearer_token(token, "the token")
        self._timeout = httpx.Timeout(call_timeout_seconds)
        self._tls = httpx.create_ssl_context()
        self._proxy = None if proxy is None else Proxy.of(proxy)
        self._first = 0
        self._begin()

    def _begin(self) -> None:
        """Create the connection pool, the set of open streams and the lock, for this process."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=MOST_IDLE_CONNECTIONS)
        self._http = self._new_client(timeout=self._timeout, limits=limits)
        self._feeds: set[EventFeed] = set()
        self._lock = threading.Lock()

    def _begin_in_child(self) -> None:
        """Create new connections for a forked process. They are closed if the parent's were closed at the
        fork.
        """
        is_closed = self._http.is_closed
        self._begin()
        if is_closed:
            self._http.close()

    @property
    def count(self) -> int:
        """Number of addresses that a request tries, one after the other."""
        return len(self._urls)

    def ask(
        self,
        method: str,
        path: str,
        *,
        document: object = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Send a request, and return the JSON of the response, None if it has no body. `path` begins with
        `/api/v1`, with encoded names (`topic_path`, `path_part`). `document` is sent as JSON.
        `timeout_seconds` (None: `call_timeout_seconds`) limits each step of an attempt, such as connecting
        and waiting for data.

        Tries each worker in turn while workers do not respond, or respond with a status from 500 on, or a
        server between refuses the request for a time (`TEMPORARY_STATUSES`); the requested action may
        therefore be performed more than once. If all do, raises the error of the last such response, or
        StoreUnavailable without a response. Raises the worker's error for another status from 300 to 499, such
        as NotFound or Conflict; StoreUnavailable for a response that is incomplete or not JSON; InvalidInput
        for a value without a UTF-8 form and an invalid token; the errors of the token function; Terminal
        after `close`. After StoreUnavailable the requested action may have
        happened; if no worker responded, or the response was incomplete or not JSON, the error's cause is the
        library's error.
        """
        timeout = self._timeout if timeout_seconds is None else httpx.Timeout(timeout_seconds)
        with self._response_of(self._http, method, path, document, query, timeout, headers) as answer:
            try:
                body = answer.read()
                return json.loads(body) if body else None
            except (httpx.HTTPError, ValueError) as error:
                reason = "sent an incomplete response" if isinstance(error, httpx.HTTPError) else NO_WORKER
                raise StoreUnavailable(f"{_where(answer, self._proxy)} {reason}: {error}", 0.1) from error

    @contextmanager
    def events(self, path: str, *, query: Mapping[str, Any], silent_seconds: float) -> Iterator[EventFeed]:
        """Open a stream of events on a connection of its own, which ends with the block.

        Opening raises the errors of `ask`, and waits for the response for up to `silent_seconds` at each
        worker. Reading the feed raises StoreUnavailable when the stream breaks or ends, or after
        `silent_seconds` without an event; a heartbeat is an event.
        """
        timeout = httpx.Timeout(self._timeout.connect, read=silent_seconds)
        with (
            self._new_client() as http,
            self._response_of(http, "GET", path, None, query, timeout) as answer,
        ):
            feed = EventFeed(answer, through(self._proxy))
            with self._lock:
                self._demand_open()  # a `close` that begins later ends this stream
                self._feeds.add(feed)
            try:
                yield feed
            finally:
                with self._lock:
                    self._feeds.discard(feed)

    def close(self) -> None:
        """Close the connections, and end the open streams: their readers get StoreUnavailable. Later calls raise
        Terminal. A call in progress that has no response yet raises Terminal at its next attempt. Idempotent; for any
        thread.
        """
        self._http.close()
        with self._lock:
            feeds = [*self._feeds]
        for feed in feeds:
            feed.hang_up()

    def _demand_open(self) -> None:
        """Raise Terminal after `close`."""
        if self._http.is_closed:
            raise Terminal("this client of Cleave was closed; create another client")

    def _new_client(self, **options: Any) -> httpx.Client:
        """Create an HTTP client that ignores the environment, except for its certificates. A proxy of the
        environment is meant for the internet, and the library may not understand the whole of `NO_PROXY`.
        """
        proxy = None if self._proxy is None else self._proxy.url
        return httpx.Client(verify=self._tls, trust_env=False, proxy=proxy, **options)

    @contextmanager
    def _response_of(
        self,
        http: httpx.Client,
        method: str,
        path: str,
        document: object,
        query: Mapping[str, Any] | None,
        timeout: httpx.Timeout,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx.Response]:
        """Send the request to each worker in turn until one responds, neither with a status from 500 on nor with one
        of `TEMPORARY_STATUSES` that names no error of a worker. Yield the response, whose body is not read yet. The
        end of the block closes the response. The next request is first sent to the worker that responded.

        Another status from 300 to 499 raises the error that the worker's response describes. If no worker responds so,
        raises the error of the last response, or StoreUnavailable if there was no response. Raises the errors of
        `_sent` that are not connection errors: InvalidInput, the errors of the token function, and Terminal after
        `close`.
        """
        connection_error: Exception | None = None
        refusal: CleaveError | None = None
        first = self._first  # other threads change it meanwhile
        for place in (*range(first, len(self._urls)), *range(first)):
            url = self._urls[place]
            try:
                answer = self._sent(http, method, f"{url}{path}", document, query, timeout, headers)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                connection_error = error
                continue
            try:
                described = _error(answer, self._proxy) if answer.status_code >= 300 else None
                if described is not None and _is_of_this_worker(answer, described):
                    refusal = described
                    continue
                self._first = place
                if described is not None:
                    raise _elsewhere(url, answer, described)
                yield answer
            finally:
                answer.close()
            return
        if refusal is not None:
            raise refusal
        kind = type(connection_error).__name__
        where = f"{', '.join(self._urls)}{through(self._proxy)}"
        raise StoreUnavailable(
            f"no worker answers at {where}: {kind}: {connection_error}", 0.2
        ) from connection_error

    def _sent(
        self,
        http: httpx.Client,
        method: str,
        url: str,
        document: object,
        query: Mapping[str, Any] | None,
        timeout: httpx.Timeout,
        headers: Mapping[str, str] | None,
    ) -> httpx.Response:
        """Send the request, and return the response, whatever its status. Follows redirects of status 307
        itself, because the library would omit the token at another worker. A function that returns the token
        is called before each request.

        Raises httpx.HTTPError or httpx.InvalidURL if the server does not respond, redirects more than
        `MOST_REDIRECTS` times, or redirects to no valid address; an exception of the token function,
        InvalidInput for a value without a UTF-8 form or a token that is invalid, and Terminal after `close`.
        """
        for _ in range(MOST_REDIRECTS + 1):
            self._demand_open()
            token = self._token
            if not isinstance(token, str):
                token = bearer_token(token(), "the token that the function returned")
            try:
                request = http.build_request(
                    method,
                    url,
                    json=document,
                    params=query,
                    headers={**(headers or {}), "Authorization": f"Bearer {token}"},
                    timeout=timeout,
                )
            except UnicodeEncodeError as error:
                raise InvalidInput(
                    f"{shown(error.object)} has no UTF-8 form and cannot be sent; correct it"
                ) from error
            try:
                answer = http.send(request, stream=True)
            except RuntimeError:
                self._demand_open()  # the library refuses a request after `close`
                raise
            if answer.status_code != 307:
                return answer
            answer.close()
            if "Location" not in answer.headers:
                raise httpx.RemoteProtocolError(f"{url} redirects without a Location")
            url, query = urljoin(url, answer.headers["Location"]), None
        raise httpx.TooManyRedirects(f"redirected more than {MOST_REDIRECTS} times, last to {url}")


def path_part(name: str) -> str:
    """Return a name encoded as one part of a path. Raises InvalidInput for a name without a UTF-8 form.

    Dots alone are encoded too, because libraries would take them for the parent directory.
    """
    encoded = quote(utf8(name, "name"), safe="")
    return encoded if encoded.strip(".") else encoded.replace(".", "%2E")


def is_for_the_token(end: httpx_sse.ServerSentEvent) -> bool:
    """Return True if a stream ended only because its token has expired. `end` is the event with which a
    worker ends a stream.
    """
    return bool(json.loads(end.data)["reason"] == TOKEN_EXPIRED)


def topic_path(topic: str) -> str:
    """Return the path of a topic in the workers' interface, `/api/v1/topics/tenant/namespace/name`, with each
    part encoded (`path_part`). Raises InvalidInput for a name that does not have the form
    `topic://tenant/namespace/name`, with parts that are not empty, or has no UTF-8 form.
    """
    parts = topic.removeprefix("topic://").split("/")
    if not topic.startswith("topic://") or len(parts) != 3 or not all(parts):
        raise InvalidInput(f"{topic!r} is not a scalable topic; name it as topic://tenant/namespace/name")
    return "/api/v1/topics/" + "/".join(path_part(part) for part in parts)


def consumer_path(topic: str, subscription: str, consumer: str) -> str:
    """Return the path of a consumer of a subscription. Raises InvalidInput for a name as `topic_path` and
    `path_part` do.
    """
    return f"{topic_path(topic)}/subscriptions/{path_part(subscription)}/consumers/{path_part(consumer)}"


def _address(url: str) -> str:
    """Return the address of a worker. Raises InvalidInput, which does not show the address if it may contain
    a password.
    """
    return web_address(url, "an address of a worker" if set("@?#") & set(url) else f"worker {shown(url)}")


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _where(answer: httpx.Response, proxy: Proxy | None) -> str:
    """Return scheme, host and port of the server that responded, and the proxy, for messages."""
    return f"{_origin(answer.url)}{through(proxy)}"


def _elsewhere(url: str, answer: httpx.Response, error: CleaveError) -> CleaveError:
    """Return the error to raise for a response to a request that was sent to `url`. If another worker, to which the
    worker at `url` redirected, denies access, the message names both: a worker redirects only a request whose token
    it has accepted.
    """
    first, last = _origin(httpx.URL(url)), _origin(answer.url)
    if not isinstance(error, AccessDenied) or first == last:
        return error
    return AccessDenied(
        f"{last} refused the token that {first} had accepted: {error.message}; check that both workers have the same "
        "CLEAVE_API_SECRET"
    )


def _is_of_this_worker(answer: httpx.Response, error: CleaveError) -> bool:
    """Return True if only this worker, or a server before it, cannot respond at present, so that another worker may.
    `error` is the error of the response.
    """
    return answer.status_code >= 500 or (_is_temporary(answer) and isinstance(error, StoreUnavailable))


def _error(answer: httpx.Response, proxy: Proxy | None) -> CleaveError:
    """Return the error that a worker's response describes, to be raised by the caller. The JSON field `kind` names
    the class of the error, and the field `reason` is the text. A Retryable error has a delay of `RETRY_SECONDS`. The
    function reads the body of the response.

    A response that cannot be read, is not such JSON or has no known `kind` may come from another server between the
    client and the workers. The result is then StoreUnavailable for a status from 500 on and for
    `TEMPORARY_STATUSES`, otherwise Terminal. Its delay is that of the header Retry-After, from `RETRY_SECONDS` to
    `LONGEST_RETRY_SECONDS`. `proxy` is named in that text.
    """
    try:
        document = json.loads(answer.read())
        reason, kind = str(document["reason"]), _KINDS.get(str(document.get("kind")))
    except (ValueError, KeyError, TypeError, AttributeError, httpx.HTTPError):
        reason, kind = "", None
    delay_seconds = RETRY_SECONDS
    if kind is None:
        kind = StoreUnavailable if _is_temporary(answer) else Terminal
        reason = _foreign_reason(answer, proxy, reason)
        delay_seconds = min(max(float(_retry_after(answer) or 0), RETRY_SECONDS), LONGEST_RETRY_SECONDS)
    if issubclass(kind, Retryable):
        return kind(reason, delay_seconds)
    return kind(reason)


def _is_temporary(answer: httpx.Response) -> bool:
    """Return True if the status says that the request may be repeated, whichever server responded."""
    return answer.status_code >= 500 or answer.status_code in TEMPORARY_STATUSES


def _retry_after(answer: httpx.Response) -> str:
    """Return the delay that the header Retry-After gives in seconds, as at most nine digits; empty if it gives none."""
    after: str = answer.headers.get("Retry-After", "")
    return after[:9] if after.isdecimal() else ""


def _foreign_reason(answer: httpx.Response, proxy: Proxy | None, reason: str) -> str:
    """Return the message about a response that does not come from a worker, but from a busy gateway, a proxy
    or another program. `reason` is the reason that the response gives, empty if it gives none. If the status is not
    temporary and there is no `proxy`, the message says that the server is no worker. The message repeats the delay
    of the header Retry-After.
    """
    statement = f"{_where(answer, proxy)} answered {answer.status_code}{reason and f' ({reason})'}"
    is_other = not _is_temporary(answer) and proxy is None
    after = _retry_after(answer)
    advice = f"; retry in {after} s" if after else ""
    return (
        f"{statement}, and {NO_WORKER}{advice or '; correct the address'}"
        if is_other
        else f"{statement}{advice}"
    )
