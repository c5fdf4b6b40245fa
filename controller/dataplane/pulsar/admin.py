"""Calls to a cluster's admin REST API that end on time: one connection pool, a deadline for each call.

A call may be several requests; they share its deadline. Requests run in threads of their own, so that neither a slow
name server nor a broker that sends its answer slowly can hold the caller longer. Redirects between brokers (307) are
followed here, since `requests` drops credentials on the way to another host. What a status means is decided in
`errors`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from controller.clock import STEADY_CLOCK
from controller.dataplane.pulsar.access import PulsarAccess
from controller.dataplane.pulsar.errors import half_answer, late, network_failure, refusal, unknown_address
from controller.dataplane.pulsar_load.http import AuthorizedSession
from controller.domain.errors import CleaveError, Terminal

PARALLEL_REQUESTS = 16
MAX_REDIRECTS = 5
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""The longest lists (topics of a namespace) are far shorter."""
_CHUNK_BYTES = 256 * 1024


class Deadline:
    """When the call that a request belongs to must be over."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        """Never negative."""
        return max(0.0, self._at - time.monotonic())


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `act` says in errors what was attempted; statuses in `accept` are answers, not errors.

    A `path` that begins with a slash is the whole one; any other follows `/admin/v2/`.
    """

    method: str
    path: str
    act: str
    body: object = None
    accept: Collection[int] = ()
    is_text: bool = False
    """The answer is a word, not JSON."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `document` is the JSON, None where the body is empty; `broker` is host:port of who answered.

    Names of `headers` are found in any case.
    """

    status: int
    document: Any
    broker: str
    headers: Mapping[str, str]
    read_at_ms: int = 0
    """When the answer was there, by the process's `STEADY_CLOCK`."""


class AdminCalls:
    """The pool; safe to share between threads. The first call connects."""

    def __init__(self, access: PulsarAccess, *, call_timeout_seconds: float) -> None:
        self.call_timeout_seconds = call_timeout_seconds
        self._access = access
        self._bases = access.admin_urls
        self._base = 0  # the one that answered last
        self._session = _session(access)
        self._threads = ThreadPoolExecutor(PARALLEL_REQUESTS, thread_name_prefix="pulsar-admin")

    @property
    def session(self) -> AuthorizedSession:
        """A session with the connections, certificates and token of these calls, for pages that are read elsewhere."""
        return AuthorizedSession(self._session, self._headers)

    def deadline(self, seconds: float | None = None) -> Deadline:
        """A new deadline, for a call that begins now. `seconds` None: the ordinary time."""
        return Deadline(self.call_timeout_seconds if seconds is None else seconds)

    def ask(self, ask: Ask, deadline: Deadline) -> Answer:
        """The answer; CleaveError as `errors` maps it."""
        return self._result(self._threads.submit(self._perform, ask, deadline), ask, deadline)

    def ask_all(self, asks: Sequence[Ask], deadline: Deadline) -> list[Answer | CleaveError]:
        """Several at a time, answers or errors in order."""
        running = [self._threads.submit(self._perform, ask, deadline) for ask in asks]
        found: list[Answer | CleaveError] = []
        for ask, future in zip(asks, running, strict=True):
            try:
                found.append(self._result(future, ask, deadline))
            except CleaveError as error:
                found.append(error)
        return found

    def demand_all(self, asks: Sequence[Ask], deadline: Deadline) -> list[Answer]:
        """Several at a time. The first error is raised when all have ended or their time is over."""
        answers = []
        for found in self.ask_all(asks, deadline):
            if isinstance(found, CleaveError):
                raise found
            answers.append(found)
        return answers

    def close(self) -> None:
        """Give back connections; a request under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._session.close()

    def _result(self, future: Future[Answer], ask: Ask, deadline: Deadline) -> Answer:
        try:
            return future.result(timeout=deadline.left_seconds)
        except NotYet:
            future.cancel()
            raise late(ask.act, deadline.seconds) from None

    def _perform(self, ask: Ask, deadline: Deadline) -> Answer:
        """Ask one broker after the other while they are away, and once more where a kept connection had died."""
        tries = max(2, len(self._bases))
        for attempt in range(1, tries + 1):
            base = self._base
            try:
                path = ask.path if ask.path.startswith("/") else f"/admin/v2/{ask.path}"
                return self._follow(ask, f"{self._bases[base]}{path}", deadline)
            except requests.RequestException as error:
                mapped = network_failure(error, ask.act, self._bases[base], deadline.seconds)
                if attempt == tries or not _may_never_have_arrived(error) or not deadline.left_seconds:
                    raise mapped from error
                self._base = (base + 1) % len(self._bases)
        raise AssertionError("the last attempt returns or raises")

    def _follow(self, ask: Ask, url: str, deadline: Deadline) -> Answer:
        """The answer of the broker that the request is sent on to."""
        data = None if ask.body is None else json.dumps(ask.body)
        for _ in range(MAX_REDIRECTS + 1):
            if not deadline.left_seconds:
                raise late(ask.act, deadline.seconds)
            with self._session.request(
                ask.method,
                url,
                data=data,
                headers=self._headers(),
                timeout=max(deadline.left_seconds, 0.001),
                allow_redirects=False,
                stream=True,
            ) as response:
                location = response.headers.get("Location") if 300 <= response.status_code < 400 else None
                if location is None:
                    return self._read(ask, response, deadline)
            url = self._checked_redirect(ask, url, location)
        raise refusal(ask.act, 307, f"redirected {MAX_REDIRECTS} times, lastly to {url}")

    def _read(self, ask: Ask, response: requests.Response, deadline: Deadline) -> Answer:
        body = bytearray()
        for chunk in response.iter_content(_CHUNK_BYTES):
            body += chunk
            if not deadline.left_seconds:
                raise late(ask.act, deadline.seconds)
            if len(body) > MAX_ANSWER_BYTES:
                raise half_answer(ask.act, response.status_code, f"longer than {MAX_ANSWER_BYTES} bytes")
        status, text = response.status_code, body.decode(errors="replace").strip()
        document = text if ask.is_text and status < 300 else _parse(text)
        is_refusal = status >= 300
        if is_refusal and status == 404 and not (isinstance(document, Mapping) and "reason" in document):
            # A proxy or another program may answer 404 to everything.
            # If that were taken for a broker's answer, logs would count as missing.
            raise unknown_address(ask.act, status, text[:80] or "empty")
        if is_refusal and status not in ask.accept:
            reason = str(document.get("reason")) if isinstance(document, Mapping) else text
            raise refusal(ask.act, status, reason.strip(), retry_after=response.headers.get("Retry-After"))
        if document is _NO_JSON and not is_refusal:
            raise half_answer(ask.act, status, f"not JSON: {text[:80]}")
        broker = urlsplit(response.url).netloc
        return Answer(status, document, broker, response.headers, STEADY_CLOCK.now_ms())

    def _headers(self) -> dict[str, str]:
        token = self._access.current_token()
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        return headers if token is None else {**headers, "Authorization": f"Bearer {token}"}

    def _checked_redirect(self, ask: Ask, url: str, location: str) -> str:
        target = urljoin(url, location)
        if urlsplit(target).scheme not in ("http", "https"):
            raise half_answer(ask.act, 307, f"redirected to {target[:80]}")
        if self._access.has_credentials and url.startswith("https://") and target.startswith("http://"):
            raise Terminal(
                f"{ask.act}: {url} redirects to {target} without TLS, which would show the token; "
                "give the brokers an https web address"
            )
        return target


_NO_JSON = object()


def _parse(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return _NO_JSON


def _may_never_have_arrived(error: requests.RequestException) -> bool:
    """A refused connection, or one that was closed without an answer. Every call of ours may be repeated."""
    return isinstance(error, requests.ConnectionError) and not isinstance(
        error, requests.Timeout | requests.exceptions.SSLError
    )


def may_be_under_way(error: CleaveError) -> bool:
    """Return True if the request that ended with the error may have reached a broker that is still at it: the connection
    broke before the answer.
    """
    cause = error.__cause__
    if not isinstance(cause, requests.RequestException):
        return False  # the broker has answered
    inner = getattr(next(iter(cause.args), None), "reason", None)
    return not isinstance(inner, urllib3.exceptions.NewConnectionError)


class _Adapter(HTTPAdapter):
    """An adapter with a switch for the check of host names, which `requests` does not have."""

    def __init__(self, *, verify_hostname: bool) -> None:
        self._verify_hostname = verify_hostname
        super().__init__(pool_connections=16, pool_maxsize=PARALLEL_REQUESTS)

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        if not self._verify_hostname:
            named["assert_hostname"] = False
        super().init_poolmanager(*arguments, **named)


class _Bearer(AuthBase):
    """The current token on each request. `requests` removes it when a redirect leaves the host."""

    def __init__(self, access: PulsarAccess) -> None:
        self._access = access

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        token = self._access.current_token()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        return request


def bearer_session(access: PulsarAccess) -> requests.Session:
    """A pool of its own with the certificates and the token, for callers that send requests themselves."""
    session = _session(access)
    session.auth = _Bearer(access)
    return session


def _session(access: PulsarAccess) -> requests.Session:
    session = requests.Session()
    session.trust_env = (
        False  # neither ~/.netrc's passwords nor a proxy: brokers answer by their own addresses
    )
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.verify = access.ca_file or True
    if access.cert_file and access.key_file:
        session.cert = (access.cert_file, access.key_file)
    adapter = _Adapter(verify_hostname=access.verify_hostname)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session
