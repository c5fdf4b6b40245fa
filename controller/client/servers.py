"""Cleave's workers as an application's client asks them: JSON over HTTP, and server-sent events.

Any worker answers or sends the client to the one that can. One that does not answer is passed over for the next. Errors come back
as the ones of `domain.errors`; how long to go on trying is the caller's.
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
from controller.domain.bearer import bearer_token
from controller.domain.errors import CleaveError, InvalidInput, Retryable, StoreUnavailable, Terminal
from controller.domain.proxies import Proxy, through
from controller.domain.shown import shown
from controller.domain.utf8 import utf8
from controller.domain.web_address import web_address
from controller.forks import OneProcess, Renewed

MOST_REDIRECTS = 3
MOST_IDLE_CONNECTIONS = 16
"""Kept for the next call. The library looks at every connection of a pool, and polls each idle one, at each call's begin and end under one
lock: with hundreds in a pool, of as many consumers in one process, calls wait for seconds. So streams have pools of their own, too.
"""
NO_WORKER = "is no worker of Cleave"
TOKEN_EXPIRED = "token expired"  # noqa: S105 - a reason
_KINDS: Mapping[str, type[CleaveError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, CleaveError)
}


class EventFeed(OneProcess):
    """The events of one stream; for one thread, but that any may hang up."""

    _endings = frozenset({"hang_up"})

    def __init__(self, answer: httpx.Response, through: str = "") -> None:
        """`through` is how a message names the proxy."""
        self._answer, self._through = answer, through

    def __iter__(self) -> Iterator[httpx_sse.ServerSentEvent]:
        where = f"{_origin(self._answer.url)}{self._through}"
        try:
            yield from httpx_sse.EventSource(self._answer).iter_sse()
        except httpx.HTTPError as error:
            raise StoreUnavailable(f"the stream of {where} broke: {error}", 0.1) from error
        raise StoreUnavailable(f"the stream of {where} ended", 0.1)

    def hang_up(self) -> None:
        """End it now: whoever waits for its next event is told that it broke."""
        stream = self._answer.extensions.get("network_stream")
        found = None if stream is None else stream.get_extra_info("socket")
        if found is not None:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)


@checks_arguments
class Servers(Renewed):
    """Safe to share between threads, and with forked processes: each has connections of its own. Connects at the first call."""

    def __init__(
        self,
        urls: Sequence[str],
        token: str | Callable[[], str],
        *,
        call_timeout_seconds: float = 5.0,
        proxy: str | None = None,
    ) -> None:
        """`urls` are workers' addresses, any of them; `token` is asked for anew at each call if it is a function. Calls go through `proxy`,
        and without one directly, whatever proxies the environment names.
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
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=MOST_IDLE_CONNECTIONS)
        self._http = self._new_client(timeout=self._timeout, limits=limits)
        self._feeds: set[EventFeed] = set()
        self._lock = threading.Lock()

    def _begin_in_child(self) -> None:
        is_closed = self._http.is_closed
        self._begin()
        if is_closed:
            self._http.close()

    @property
    def count(self) -> int:
        """So many addresses are tried, one after the other."""
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
        """The answer's JSON; None where there is none. Raises StoreUnavailable while no worker can answer, else what it said.

        Where none was reached, or none answered whole, the error's cause is the library's own: what was asked may have happened.
        """
        timeout = self._timeout if timeout_seconds is None else httpx.Timeout(timeout_seconds)
        with self._answered(self._http, method, path, document, query, timeout, headers) as answer:
            try:
                body = answer.read()
                return json.loads(body) if body else None
            except (httpx.HTTPError, ValueError) as error:
                what = "has not answered whole" if isinstance(error, httpx.HTTPError) else NO_WORKER
                raise StoreUnavailable(f"{_where(answer, self._proxy)} {what}: {error}", 0.1) from error

    @contextmanager
    def events(self, path: str, *, query: Mapping[str, Any], silent_seconds: float) -> Iterator[EventFeed]:
        """A stream of events, as they come. StoreUnavailable when it breaks, or after `silent_seconds` without one."""
        timeout = httpx.Timeout(self._timeout.connect, read=silent_seconds)
        with (
            self._new_client() as http,
            self._answered(http, "GET", path, None, query, timeout) as answer,
        ):
            feed = EventFeed(answer, through(self._proxy))
            with self._lock:
                self._feeds.add(feed)
            try:
                yield feed
            finally:
                with self._lock:
                    self._feeds.discard(feed)

    def close(self) -> None:
        """Give back the connections. Streams break."""
        self._http.close()
        with self._lock:
            feeds = [*self._feeds]
        for feed in feeds:
            feed.hang_up()

    def _new_client(self, **options: Any) -> httpx.Client:
        """Nothing of the environment but its certificates: a proxy there is for the internet, and `NO_PROXY` may be more than the library reads."""
        proxy = None if self._proxy is None else self._proxy.url
        return httpx.Client(verify=self._tls, trust_env=False, proxy=proxy, **options)

    @contextmanager
    def _answered(
        self,
        http: httpx.Client,
        method: str,
        path: str,
        document: object,
        query: Mapping[str, Any] | None,
        timeout: httpx.Timeout,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx.Response]:
        """A good answer of the first worker that gives one, its body not read yet."""
        if self._http.is_closed:
            raise Terminal("this client of Cleave was closed; make a new one")
        away: Exception | None = None
        refused: CleaveError | None = None
        for index in range(len(self._urls)):
            url = self._urls[(self._first + index) % len(self._urls)]
            try:
                answer = self._sent(http, method, f"{url}{path}", document, query, timeout, headers)
            except (httpx.HTTPError, httpx.InvalidURL, KeyError) as error:
                away = error
                continue
            if answer.status_code >= 500:  # this one cannot just now; another may
                refused = _error(answer, self._proxy)
                answer.close()
                continue
            if index:
                with self._lock:
                    self._first = (self._first + index) % len(self._urls)
            try:
                if answer.status_code >= 300:
                    raise _error(answer, self._proxy)
                yield answer
            finally:
                answer.close()
            return
        if refused is not None:
            raise refused
        kind = type(away).__name__
        where = f"{', '.join(self._urls)}{through(self._proxy)}"
        raise StoreUnavailable(f"no worker answers at {where}: {kind}: {away}", 0.2) from away

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
        """The answer, wherever the client is sent for it. (The library would leave out the token at another worker.)"""
        for _ in range(MOST_REDIRECTS + 1):
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
            answer = http.send(request, stream=True)
            if answer.status_code != 307:
                return answer
            url, query = urljoin(url, answer.headers["Location"]), None
            answer.close()
        raise httpx.TooManyRedirects(f"sent on {MOST_REDIRECTS} times, at last to {url}")


def path_part(name: str) -> str:
    """A name as one part of a path. Dots alone are encoded too: a library would take them for the directory above. Raises InvalidInput."""
    encoded = quote(utf8(name, "name"), safe="")
    return encoded if encoded.strip(".") else encoded.replace(".", "%2E")


def is_for_the_token(end: httpx_sse.ServerSentEvent) -> bool:
    """Return True if a stream ended only because its token has run out."""
    return bool(json.loads(end.data)["reason"] == TOKEN_EXPIRED)


def topic_path(topic: str) -> str:
    """Where a topic is found. Raises InvalidInput for what is no `topic://tenant/namespace/name`."""
    parts = topic.removeprefix("topic://").split("/")
    if not topic.startswith("topic://") or len(parts) != 3 or not all(parts):
        raise InvalidInput(f"{topic!r} is not a scalable topic; name it as topic://tenant/namespace/name")
    return "/api/v1/topics/" + "/".join(path_part(part) for part in parts)


def consumer_path(topic: str, subscription: str, consumer: str) -> str:
    """Where a consumer of a subscription is found."""
    return f"{topic_path(topic)}/subscriptions/{path_part(subscription)}/consumers/{path_part(consumer)}"


def _address(url: str) -> str:
    """The address of a worker. Raises InvalidInput, which does not repeat what may be a password."""
    return web_address(url, "an address of a worker" if set("@?#") & set(url) else f"worker {shown(url)}")


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _where(answer: httpx.Response, proxy: Proxy | None) -> str:
    return f"{_origin(answer.url)}{through(proxy)}"


def _error(answer: httpx.Response, proxy: Proxy | None) -> CleaveError:
    """What a worker said, as the error it is; another server on the way answers without a reason."""
    try:
        said = json.loads(answer.read())
        reason, kind = str(said["reason"]), _KINDS.get(str(said.get("kind")))
    except (ValueError, KeyError, TypeError, AttributeError, httpx.HTTPError):
        reason, kind = "", None
    if kind is None:
        kind = StoreUnavailable if answer.status_code >= 500 else Terminal
        reason = _stranger(answer, proxy, reason)
    if issubclass(kind, Retryable):
        return kind(reason, 0.2)
    return kind(reason)


def _stranger(answer: httpx.Response, proxy: Proxy | None, reason: str) -> str:
    """What is said about an answer that no worker gives: a gateway's that is busy, a proxy's, or that of another program."""
    told = f"{_where(answer, proxy)} answered {answer.status_code}{reason and f' ({reason})'}"
    is_other = answer.status_code < 500 and proxy is None
    after = answer.headers.get("Retry-After", "")
    again = f"; ask again in {after[:9]} s" if after.isdecimal() else ""
    return f"{told}, and {NO_WORKER}{again or '; correct the address'}" if is_other else f"{told}{again}"
