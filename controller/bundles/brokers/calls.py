"""Sends one admin request to a broker, with a deadline for the complete answer, and follows redirects only within the cluster.

There are three cases: an answer, a request that certainly was not processed, and a request with an unknown outcome. The callers interpret
the status of an answer. Requests are never repeated, and messages never contain headers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError

from controller.dataplane.pulsar_load.http import BLOCK_BYTES, REDIRECTS, cut_off, origin
from controller.domain.errors import CleaveError, DataPlaneTimeout, DataPlaneUnavailable, Terminal

BODY_BYTES = 1 << 30
"""Maximum length of an answer. Statistics of 100,000 topics need a third of this."""
REASON_CHARACTERS = 300
_BACK_OFF_SECONDS = 5.0
_LONGEST_BACK_OFF_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `url` is the address that answered, after redirects. `retry_after_seconds`: time after which the broker asks to repeat
    the request; None if it states none.
    """

    status: int
    body: bytes
    url: str
    retry_after_seconds: float | None = None

    @property
    def reason(self) -> str:
        """Reason that the broker gives, in one line of at most 300 characters, without the stack trace; empty if the broker gives none."""
        try:
            document = json.loads(self.body)
        except ValueError:
            document = {}
        text = str(document.get("reason") or "") if isinstance(document, dict) else ""
        _, _, message = text.partition("Message:")  # an unexpected error has it before its stack trace
        plain = (message or text).partition("Stacktrace:")[0]
        return " ".join(plain.split())[:REASON_CHARACTERS]

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def send(
    session: requests.Session,
    method: str,
    url: str,
    deadline: float,
    *,
    trusted: Collection[str] = (),
    parameters: Mapping[str, str] | None = None,
    document: Any = None,
) -> Reply:
    """Send one request, and return the complete answer, whatever its status. `deadline` is a time of
    `time.monotonic`. `parameters` become the query of the URL. `document` is sent as JSON; None sends no body.

    Up to 3 redirects (302, 307, 308) are followed, only to the origins in `trusted`, with the same method and
    document and the session's credentials. Raises DataPlaneUnavailable if the request certainly was not processed:
    the deadline had passed, no connection was made, a redirect leads to another origin, or there are more than 3
    redirects. Raises DataPlaneTimeout if the outcome is unknown; then the caller must read the state before it
    repeats the request.
    """
    for _ in range(REDIRECTS + 1):
        response = _open(session, method, url, deadline, parameters, document)
        with response:
            body = _body(response, url, deadline)
            if response.status_code not in (302, 307, 308):
                return Reply(response.status_code, body, url, _retry_after(response))
            target = urljoin(url, response.headers.get("Location", ""))
        if origin(target) not in trusted:
            raise DataPlaneUnavailable(
                f"broker {origin(url)} redirects to {origin(target)}, which is not in the cluster's list of brokers; "
                "wait until it is listed, or set the pattern of broker addresses"
            )
        url, parameters = target, None  # the target URL contains the parameters
    raise DataPlaneUnavailable(f"brokers redirect in a loop for {urlsplit(url).path}; retry")


def error_of(reply: Reply) -> CleaveError:
    """Return the error for an unsuccessful answer, for callers without a more precise error.

    A status of 429, or of 500 and above, gives DataPlaneUnavailable, with the delay that the broker asks for (at most
    300 s; 5 s if the broker asks for none). Every other status gives Terminal. For 401 and 403 the message asks the
    reader to check the token.
    """
    answer = f"broker {origin(reply.url)} answers {urlsplit(reply.url).path} with {reply.status}"
    reason = f": {reply.reason}" if reply.reason else ""
    if reply.status in (401, 403):
        return Terminal(f"{answer}{reason}; check that the token is valid and belongs to a super user")
    if reply.status == 429 or reply.status >= 500:
        return DataPlaneUnavailable(answer + reason, _delay(reply))
    return Terminal(answer + reason)


def _delay(reply: Reply) -> float:
    """Return the seconds after which the request may be repeated: those that the broker asks for, at most 300, or 5."""
    delay = reply.retry_after_seconds
    return _BACK_OFF_SECONDS if delay is None else min(delay, _LONGEST_BACK_OFF_SECONDS)


def _open(
    session: requests.Session,
    method: str,
    url: str,
    deadline: float,
    parameters: Mapping[str, str] | None,
    document: Any,
) -> requests.Response:
    """Send the request, and return the response when its headers have arrived; the caller closes it. Raises DataPlaneUnavailable if the
    deadline has passed or no connection was made, and DataPlaneTimeout if the outcome of the request is unknown.
    """
    seconds_left = deadline - time.monotonic()
    if seconds_left <= 0:
        raise DataPlaneUnavailable(f"no time left to ask broker {origin(url)} for {urlsplit(url).path}")
    try:
        return session.request(
            method,
            url,
            params=parameters,
            json=document,
            headers={"Accept-Encoding": "identity"},
            timeout=(seconds_left, seconds_left),
            stream=True,
            allow_redirects=False,
        )
    except (requests.RequestException, OSError) as error:
        raise _no_answer(url, error) from None


def _body(response: requests.Response, url: str, deadline: float) -> bytes:
    """Return the complete body of the response. Raises DataPlaneTimeout if the body is incomplete at the deadline or the connection
    breaks, or if the body is longer than `BODY_BYTES`.
    """
    body = bytearray()
    try:
        with cut_off(response, deadline):
            for block in response.iter_content(BLOCK_BYTES):
                body += block
                if len(body) > BODY_BYTES:
                    raise DataPlaneTimeout(f"broker {origin(url)} answers {urlsplit(url).path} without end")
            # a socket that was shut looks like the end of a body without a stated length
            if time.monotonic() >= deadline:
                raise TimeoutError
    except (requests.RequestException, OSError, ValueError) as error:
        raise _no_answer(url, error) from None
    return bytes(body)


def _no_answer(url: str, error: Exception) -> DataPlaneUnavailable:
    """Return the error for a request without a complete answer: DataPlaneUnavailable if the broker was not connected, so that the request
    was not processed; otherwise DataPlaneTimeout.
    """
    where = f"broker {origin(url)} at {urlsplit(url).path}"
    if _never_went_out(error):
        return DataPlaneUnavailable(f"no connection to {where}: {type(error).__name__}")
    return DataPlaneTimeout(f"no whole answer from {where} in time: {type(error).__name__}")


def _never_went_out(error: BaseException) -> bool:
    """Return True if the error means that no connection was made, so that no part of the request was sent."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    cause = error.args[0] if error.args else None
    if isinstance(cause, MaxRetryError):
        cause = cause.reason
    return isinstance(cause, NewConnectionError | ConnectTimeoutError)


def _retry_after(response: requests.Response) -> float | None:
    """Return the header `Retry-After` in seconds, at least 0. None if the header is missing or is no number, as a date is."""
    try:
        seconds = float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None
    return None if math.isnan(seconds) else max(seconds, 0.0)
