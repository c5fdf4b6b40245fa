"""Makes calls to a cluster's admin REST API that end on time: with one connection pool and a deadline for
each call.

A call may consist of several requests, which share its deadline. Requests run in separate threads, so that
neither a slow name server nor a broker that sends its response slowly can block the caller for longer. This
module follows redirects between brokers (307), because `requests` drops credentials on redirects to another
host. `errors` decides what a status means.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from controller.clock import STEADY_CLOCK
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.http_errors import (
    closed,
    half_answer,
    is_broken_handshake,
    late,
    network_failure,
    refusal,
    unknown_address,
)
from controller.domain.errors import CleaveError, Terminal

PARALLEL_REQUESTS = 16
MAX_REDIRECTS = 5
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Largest size of a response. The longest lists (topics of a namespace) are far shorter."""
_CHUNK_BYTES = 256 * 1024
_HEADERS = {"Accept": "application/json", "Content-Type": "application/json"}


class Deadline:
    """The time by which a call must be over: `seconds` after the creation of this object."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        """Seconds until the deadline; never negative."""
        return max(0.0, self._at - time.monotonic())


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to send. `purpose` names the action in errors. Statuses in `accept` are results, not errors,
    except a 404 or 409 without a reason, which no broker sends. `body` is sent as JSON; None: no body.

    A `path` that begins with a slash is complete; any other path follows `/admin/v2/`.
    """

    method: str
    path: str
    purpose: str
    body: object = None
    accept: Collection[int] = ()
    is_text: bool = False
    """True if the response is a word, not JSON."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `document` is the JSON, None for an empty body, the text itself if the request `is_text`;
    `broker` is the host:port that responded.

    Lookup of names in `headers` ignores case.
    """

    status: int
    document: Any
    broker: str
    headers: Mapping[str, str]
    read_at_ms: int = 0
    """Time at which the response was complete, by the process's `STEADY_CLOCK`."""


class AdminCalls:
    """The connection pool of one cluster. Safe to share between threads. Connects at the first call.
    `call_timeout_seconds` is the time limit of a `deadline` without one of its own.
    """

    def __init__(self, access: PulsarAccess, *, call_timeout_seconds: float) -> None:
        self.call_timeout_seconds = call_timeout_seconds
        self._access = access
        self._bases = access.admin_urls
        self._base = 0  # index of the broker that responded last
        self.session = bearer_session(access)
        """The session of these calls, with their connections, certificates and token. Other modules also read pages
        with it. `close` closes it.
        """
        self._threads = ThreadPoolExecutor(PARALLEL_REQUESTS, thread_name_prefix="pulsar-admin")

    def deadline(self, seconds: float | None = None) -> Deadline:
        """Return a deadline for a call that begins at this moment. None as `seconds`: the ordinary time
        limit.
        """
        return Deadline(self.call_timeout_seconds if seconds is None else seconds)

    def ask(self, ask: Ask, deadline: Deadline) -> Answer:
        """Send the request in another thread, and return the response. A response whose status is in `ask.accept` is
        returned like a success. If a connection is refused or closes without a response, the request is sent again,
        to the cluster's brokers in turn.

        Raises DataPlaneTimeout at the deadline, after which the request may have been performed; DataPlaneUnavailable
        for a failure or refusal that may pass, for a 404 or 409 that no broker sent, and after `close`; NotFound,
        Conflict, Unsupported or another Terminal error for a lasting refusal whose status is not in `ask.accept`; and
        InvalidInput for an address or a token that cannot be used.
        """
        return self._result(self._begin(ask, deadline), ask, deadline)

    def ask_all(self, asks: Sequence[Ask], deadline: Deadline) -> list[Answer | CleaveError]:
        """Send the requests, up to `PARALLEL_REQUESTS` at the same time, and wait until all have ended or the
        deadline has passed. Return one result for each request, in the order of the requests: its response, or the
        error that `ask` would raise for the request. Such an error, DataPlaneTimeout included, is returned and not
        raised. For no requests the result is empty.
        """
        running = [self._begin(ask, deadline) for ask in asks]
        results: list[Answer | CleaveError] = []
        for ask, future in zip(asks, running, strict=True):
            try:
                results.append(self._result(future, ask, deadline))
            except CleaveError as error:
                results.append(error)
        return results

    def demand_all(self, asks: Sequence[Ask], deadline: Deadline) -> list[Answer]:
        """Send the requests, up to `PARALLEL_REQUESTS` at the same time, and return the responses, in the order of
        the requests. If requests failed, raise the error (as `ask` raises it) of the first failed request in this
        order, after all requests have ended or the deadline has passed. The other requests may then have been
        performed.
        """
        answers = []
        for result in self.ask_all(asks, deadline):
            if isinstance(result, CleaveError):
                raise result
            answers.append(result)
        return answers

    def close(self) -> None:
        """Close the connections. A request in progress ends on its own; later requests, and those that wait for a
        thread, fail with DataPlaneUnavailable.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.session.close()

    def _begin(self, ask: Ask, deadline: Deadline) -> Future[Answer]:
        """Begin to send the request in another thread, and return the future of the response. After `close`, nothing
        is sent, and the future is cancelled. Raises nothing.
        """
        try:
            return self._threads.submit(self._perform, ask, deadline)
        except RuntimeError:  # the threads have ended
            never_begun: Future[Answer] = Future()
            never_begun.cancel()
            return never_begun

    def _result(self, future: Future[Answer], ask: Ask, deadline: Deadline) -> Answer:
        """Wait for the response, and return it. At the deadline, cancel the request if it has not begun, and raise
        DataPlaneTimeout; a request that has begun continues. Raises also the errors of `_perform`, and
        DataPlaneUnavailable if `close` was called before the request was begun.
        """
        try:
            return future.result(timeout=deadline.left_seconds)
        except CancelledError:
            raise closed(ask.purpose) from None
        except NotYet:
            future.cancel()
            raise late(ask.purpose, deadline.seconds) from None

    def _perform(self, ask: Ask, deadline: Deadline) -> Answer:
        """Send the request to the broker that responded last, and return the response.

        If the request may be sent again after an error, try the brokers in turn, with two attempts, or one
        per broker if there are more, because a kept connection may be dead. Raises the error of
        `network_failure` after the last attempt, at the deadline, or at once if the request must not be sent
        again; and the errors of `_follow`.
        """
        tries = max(2, len(self._bases))
        for attempt in range(1, tries + 1):
            base = self._base
            try:
                path = ask.path if ask.path.startswith("/") else f"/admin/v2/{ask.path}"
                return self._follow(ask, f"{self._bases[base]}{path}", deadline)
            except requests.RequestException as error:
                mapped = network_failure(error, ask.purpose, self._bases[base], deadline.seconds)
                if attempt == tries or not _may_not_have_arrived(error) or not deadline.left_seconds:
                    raise mapped from error
                self._base = (base + 1) % len(self._bases)
        raise AssertionError("the last attempt returns or raises")

    def _follow(self, ask: Ask, url: str, deadline: Deadline) -> Answer:
        """Send the request to `url`, follow at most `MAX_REDIRECTS` redirects between brokers, and return the
        last response.

        Raises DataPlaneTimeout at the deadline; DataPlaneUnavailable after more redirects, or for a redirect to
        another scheme than HTTP; Terminal for a redirect without TLS that would show the token; InvalidInput for
        a token that cannot be read; and the errors of `_read`. Errors of `requests` are raised unmapped.
        """
        data = None if ask.body is None else json.dumps(ask.body)
        for _ in range(MAX_REDIRECTS + 1):
            if not deadline.left_seconds:
                raise late(ask.purpose, deadline.seconds)
            with self.session.request(
                ask.method,
                url,
                data=data,
                headers=_HEADERS,
                timeout=max(deadline.left_seconds, 0.001),
                allow_redirects=False,
                stream=True,
            ) as response:
                location = response.headers.get("Location") if 300 <= response.status_code < 400 else None
                if location is None:
                    return self._read(ask, response, deadline)
            url = self._checked_redirect(ask, url, location)
        raise refusal(ask.purpose, 307, f"redirected {MAX_REDIRECTS} times, last to {url}")

    def _read(self, ask: Ask, response: requests.Response, deadline: Deadline) -> Answer:
        """Read the body of the response, and return the response. For a refusal with a status in `ask.accept`, the
        `document` is the JSON, or a value without meaning if the body is not JSON.

        Raises the error of a refusal (status 300 or more) whose status is not in `ask.accept`; UnknownAddress for a
        404 whose body is not a JSON object with a `reason`, even if the status is accepted; DataPlaneTimeout at the
        deadline; and DataPlaneUnavailable for a body of more than `MAX_ANSWER_BYTES`, for an accepted 409 whose body
        is not a JSON object with a `reason`, and for a success whose body is not JSON although the request is not
        `is_text`. Errors of `requests` are raised unmapped.
        """
        body = bytearray()
        for chunk in response.iter_content(_CHUNK_BYTES):
            body += chunk
            if not deadline.left_seconds:
                raise late(ask.purpose, deadline.seconds)
            if len(body) > MAX_ANSWER_BYTES:
                raise half_answer(ask.purpose, response.status_code, f"longer than {MAX_ANSWER_BYTES} bytes")
        status, text = response.status_code, body.decode(errors="replace").strip()
        document = text if ask.is_text and status < 300 else _parse(text)
        is_refusal = status >= 300
        has_reason = isinstance(document, Mapping) and "reason" in document
        if status == 404 and not has_reason:
            # A proxy or another program may answer 404 to every request. If that counted as a broker's
            # response, logs would count as missing.
            raise unknown_address(ask.purpose, status, text[:80] or "empty")
        if is_refusal and status not in ask.accept:
            reason = str(document.get("reason")) if isinstance(document, Mapping) else text
            raise refusal(
                ask.purpose, status, reason.strip(), retry_after=response.headers.get("Retry-After")
            )
        if (
            status == 409 and not has_reason
        ):  # a proxy's 409 does not show that a log or a subscription exists
            raise half_answer(ask.purpose, status, f"without a reason: {text[:80] or 'empty'}")
        if document is _NO_JSON and not is_refusal:
            raise half_answer(ask.purpose, status, f"not JSON: {text[:80]}")
        broker = urlsplit(response.url).netloc
        return Answer(status, document, broker, response.headers, STEADY_CLOCK.now_ms())

    def _checked_redirect(self, ask: Ask, url: str, location: str) -> str:
        """Return the complete URL of a redirect. `url` is the URL that was requested, and `location` is the header of
        the response, which may be relative to `url`. Sends nothing. Raises DataPlaneUnavailable for a scheme other
        than HTTP and HTTPS, and Terminal for a redirect from HTTPS to HTTP while calls carry a token.
        """
        target = urljoin(url, location)
        if urlsplit(target).scheme not in ("http", "https"):
            raise half_answer(ask.purpose, 307, f"redirected to {target[:80]}")
        if self._access.has_credentials and url.startswith("https://") and target.startswith("http://"):
            raise Terminal(
                f"{ask.purpose}: {url} redirects to {target} without TLS, which would show the token; "
                "give the brokers an https web address"
            )
        return target


_NO_JSON = object()


def _parse(text: str) -> Any:
    """Return the value of a JSON text: None for an empty text, `_NO_JSON` for a text that is not JSON."""
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return _NO_JSON


def _may_not_have_arrived(error: requests.RequestException) -> bool:
    """Return True if the request may be sent again after the error: the connection was refused, or was closed without
    a response, during the TLS handshake too. The broker may have performed the request, but every call of this package
    may be repeated. False for a time-out, an invalid certificate or any other error.
    """
    if isinstance(error, requests.exceptions.SSLError):
        return is_broken_handshake(error)
    return isinstance(error, requests.ConnectionError) and not isinstance(error, requests.Timeout)


def may_be_under_way(error: CleaveError) -> bool:
    """Return True if a broker may still be processing the request that ended with `error`, a DataPlaneUnavailable of
    `AdminCalls`, because the connection broke before the response. False if the broker responded, or refused the
    connection.

    For other errors the result means nothing: it may be False for a DataPlaneTimeout, which always means that the
    request may be in progress, and True for an invalid certificate or address.
    """
    cause = error.__cause__
    if not isinstance(cause, requests.RequestException):
        return False  # the broker has responded
    inner = getattr(next(iter(cause.args), None), "reason", None)
    return not isinstance(inner, urllib3.exceptions.NewConnectionError)


class _Adapter(HTTPAdapter):
    """An adapter with an option to skip the check of host names, which `requests` lacks."""

    def __init__(self, *, verify_hostname: bool) -> None:
        self._verify_hostname = verify_hostname
        super().__init__(pool_connections=16, pool_maxsize=PARALLEL_REQUESTS)

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        if not self._verify_hostname:
            named["assert_hostname"] = False
        super().init_poolmanager(*arguments, **named)


def bearer_session(access: PulsarAccess) -> requests.Session:
    """Return a session of `requests` with its own pool and the certificates of `access`. The session sends the current
    token with each request, keeps no cookies, uses no proxy, and ignores `~/.netrc` and the environment. A request
    raises InvalidInput for a token that cannot be read. The caller closes the session.
    """

    def authorized(request: requests.PreparedRequest) -> requests.PreparedRequest:
        token = access.current_token()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    session = requests.Session()
    session.auth = authorized  # `requests` removes the token when a redirect leads to another host
    session.trust_env = (
        False  # no passwords of ~/.netrc and no proxy, because brokers respond at their own addresses
    )
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.verify = access.ca_file or True
    if access.cert_file and access.key_file:
        session.cert = (access.cert_file, access.key_file)
    adapter = _Adapter(verify_hostname=access.verify_hostname)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session
