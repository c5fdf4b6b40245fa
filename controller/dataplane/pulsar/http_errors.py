"""Maps a broker's refusals and network failures to errors, in one table each.

Every response becomes Retryable with a delay, or Terminal with a sentence that contains the action, the
status, the broker's reason and the next step. `library_errors` does the same for the binary protocol.
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import requests
import urllib3

from controller.domain.errors import (
    CleaveError,
    Conflict,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    InvalidInput,
    NotFound,
    SegmentNotFound,
    SubscriptionNotFound,
    Terminal,
    Unsupported,
)

LONGEST_DELAY_SECONDS = 60.0
"""Longest delay. A broker that requests a longer one is called again after this time nevertheless."""


def _retryable(delay_seconds: float, advice: str) -> Callable[[str], CleaveError]:
    """Return a function that makes a DataPlaneUnavailable with this delay from the text of a refusal. The
    message ends with `advice`.
    """
    return lambda text: DataPlaneUnavailable(f"{text}; {advice}", delay_seconds=delay_seconds)


def _terminal(kind: type[Terminal], advice: str) -> Callable[[str], CleaveError]:
    """Return a function that makes an error of this class from the text of a refusal. The message ends with
    `advice`.
    """
    return lambda text: kind(f"{text}; {advice}")


_NO_NAMESPACE = _terminal(
    NotFound,
    "create the tenant and namespace, then `cleave doctor --fix` gives it the settings segments need",
)
_LACKS_RIGHT = _terminal(
    Terminal, "the token's role lacks the right: make it an admin of the tenant, or grant it the namespace"
)
# The first row whose status and words match applies. The words are searched in the broker's reason, ignoring
# case.
_TABLE: tuple[tuple[range, str, Callable[[str], CleaveError]], ...] = (
    (
        range(401, 404),
        "PEEK_MESSAGES",
        _terminal(
            Terminal,
            "grant the token's role the right to consume: a producer reads entries to learn what a terminated topic has stored",
        ),
    ),
    (range(401, 402), r"validate\w+Operation", _LACKS_RIGHT),
    (
        range(401, 402),
        "",
        _terminal(
            Terminal,
            "the broker does not accept the credentials: set CLEAVE_PULSAR_TOKEN or CLEAVE_PULSAR_TOKEN_FILE",
        ),
    ),
    (range(403, 404), "", _LACKS_RIGHT),
    (range(404, 405), "subscription", _terminal(SubscriptionNotFound, "create the subscription first")),
    (range(404, 405), "namespace|tenant|cluster|policies", _NO_NAMESPACE),
    (
        range(404, 405),
        "",
        _terminal(SegmentNotFound, "it was deleted or never created: look up the layout again"),
    ),
    (
        range(405, 406),
        "",
        _terminal(Unsupported, "this broker has no such call: Cleave needs Pulsar 3.0 or newer"),
    ),
    (range(409, 410), "", _retryable(0.5, "another program is changing it at this moment: try again")),
    (range(412, 413), "does not exist", _terminal(SegmentNotFound, "look up the layout again")),
    (
        range(412, 413),
        "ownership|not served|unload",
        _retryable(0.5, "it is moving to another broker: try again"),
    ),
    (
        range(412, 413),
        "subscription busy|failed to fence|failed to disconnect",
        _retryable(0.2, "its consumers are connecting or disconnecting: try again"),
    ),
    (
        range(412, 413),
        "",
        _terminal(Conflict, "the broker's own limits or rules forbid it: change them or the request"),
    ),
    (range(408, 409), "", _retryable(1.0, "the broker gave up waiting: try again")),
    (range(429, 430), "", _retryable(1.0, "the broker limits the rate of requests: try again later")),
    (
        range(300, 400),
        "",
        _retryable(1.0, "the brokers redirect in a loop, because ownership is changing: try again"),
    ),
    (range(400, 500), "", _terminal(Terminal, "the broker refuses the request permanently")),
    (range(500, 600), "", _retryable(1.0, "the broker failed: check its log if this continues")),
)


def refusal(purpose: str, status: int, reason: str, *, retry_after: str | None = None) -> CleaveError:
    """Return, without raising it, the error for a response with a status and a broker's reason, as the first matching
    row of the table says; DataPlaneUnavailable for a status that no row contains. `purpose` begins the message.

    `retry_after` is the text of the header Retry-After, a number of seconds or a date. The header sets the delay of a
    DataPlaneUnavailable, to at most `LONGEST_DELAY_SECONDS`. Without the header (None), or if the header cannot be
    read, the delay is that of the row.
    """
    text = f"{purpose}: answered {status} ({reason[:300] or 'no reason given'})"
    for statuses, words, build in _TABLE:
        if status in statuses and re.search(words, reason, re.IGNORECASE):
            error = build(text)
            break
    else:
        error = DataPlaneUnavailable(f"{text}; that status is not expected for this request")
    requested_seconds = _retry_after_seconds(retry_after)
    if isinstance(error, DataPlaneUnavailable) and requested_seconds is not None:
        error.delay_seconds = min(requested_seconds, LONGEST_DELAY_SECONDS)
    return error


def half_answer(purpose: str, status: int, what: str) -> DataPlaneUnavailable:
    """Return the error for a response that is incomplete, or that no broker sends. `what` describes the
    response in the message.
    """
    return DataPlaneUnavailable(
        f"{purpose}: answer {status} cannot be used ({what}); is CLEAVE_PULSAR_ADMIN_URL a broker's web address?"
    )


class UnknownAddress(DataPlaneUnavailable):
    """A 404 without a reason. A broker always gives a reason, so the broker lacks the call, or another
    program responds.
    """


def unknown_address(purpose: str, status: int, what: str) -> UnknownAddress:
    """Return the error for a 404 without a reason. The caller determines which cause of `UnknownAddress`
    applies. `what` describes the response in the message.
    """
    return UnknownAddress(str(half_answer(purpose, status, what)))


def closed(purpose: str) -> DataPlaneUnavailable:
    """Return the error for a call that was not begun because the connections were closed."""
    return DataPlaneUnavailable(f"{purpose}: the connections were closed; create another client")


def late(purpose: str, seconds: float) -> DataPlaneTimeout:
    """Return the error for a response that was not complete within `seconds`."""
    return DataPlaneTimeout(f"{purpose}: no answer within {seconds:g} s; check the state before repeating")


def network_failure(
    error: requests.RequestException, purpose: str, address: str, seconds: float
) -> CleaveError:
    """Return, without raising it, the error for a call to `address` that ended with `error` of `requests`:
    DataPlaneTimeout for a time-out; Terminal for an invalid certificate; DataPlaneUnavailable for a connection that was
    refused or broke, during the TLS handshake too, and for a body that cannot be decoded; InvalidInput for any other
    error, such as an invalid URL. `purpose` begins the message. `seconds` is the time limit of the call, for the
    message.
    """
    if isinstance(error, requests.Timeout) or any(
        isinstance(cause, urllib3.exceptions.ReadTimeoutError) for cause in error.args
    ):
        return late(purpose, seconds)
    cause = _text(_root_cause(error))
    if isinstance(error, requests.exceptions.SSLError) and not is_broken_handshake(error):
        return Terminal(
            f"{purpose}: {address} has no valid certificate ({cause}); check CLEAVE_PULSAR_CA_FILE, the certificate's names "
            "and CLEAVE_PULSAR_VERIFY_HOSTNAME"
        )
    if isinstance(error, requests.exceptions.ChunkedEncodingError | requests.exceptions.ContentDecodingError):
        return DataPlaneUnavailable(
            f"{purpose}: {address} stopped in the middle of its response ({cause}); check the state before repeating"
        )
    if isinstance(error, requests.ConnectionError):
        return DataPlaneUnavailable(f"{purpose}: {address} is out of reach ({cause})")
    return InvalidInput(f"{purpose}: {address} cannot be called ({cause}); correct CLEAVE_PULSAR_ADMIN_URL")


def is_broken_handshake(error: requests.RequestException) -> bool:
    """Return True if the other side closed the connection during the TLS handshake, as a broker does that restarts."""
    return isinstance(_root_cause(error), ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)


def _root_cause(error: BaseException) -> BaseException:
    """Return the innermost cause. `requests` nests errors three levels deep."""
    cause: BaseException = error
    while True:
        inner = getattr(cause, "reason", None) or next(
            (argument for argument in cause.args if isinstance(argument, BaseException)), None
        )
        if not isinstance(inner, BaseException) or inner is cause:
            break
        cause = inner
    return cause


def _text(cause: BaseException) -> str:
    """Return the text of a cause, without the address if the connection failed; the cause's class name if it has no
    text.
    """
    text = (
        str(cause).rpartition(": ")[2]
        if isinstance(cause, urllib3.exceptions.NewConnectionError)
        else str(cause)
    )
    return text.strip("()' ") or type(cause).__name__


def _retry_after_seconds(text: str | None) -> float | None:
    """Return the seconds, at least 0, that a header Retry-After gives as a number or a date. None without a
    header or for another text.
    """
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return None if math.isnan(seconds) else max(0.0, seconds)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:  # a date of HTTP is in UTC
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
