"""Provides HTTP for the readers of brokers: bodies in blocks, and one deadline for each whole body.

A timeout of the socket ends the wait for a silent server, but not for a slow one. Each read therefore has a
timer that shuts the socket at the deadline. Errors become Retryable here; they name the broker, but never a
header.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from controller.domain.errors import CleaveError, DataPlaneTimeout, DataPlaneUnavailable

BLOCK_BYTES = 1 << 20
"""Largest part of a body that is in memory at once."""
DOCUMENT_BYTES = 64 << 20
"""Largest size of a document: statistics of a topic with 100,000 consumers are smaller."""
REDIRECTS = 3
"""Largest number of redirects that are followed. A broker that does not own a topic redirects to its
owner.
"""


def origin(url: str) -> str:
    """Return `scheme://host:port` of a URL; without the port if the URL has none."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def blocks(
    session: requests.Session,
    url: str,
    deadline: float,
    refusal: Callable[[str, int], CleaveError] | None = None,
) -> Iterator[bytes]:
    """Send a GET of `url` when the first block is requested, and yield the body of the response in blocks of up to
    `BLOCK_BYTES`. The body must be complete by `deadline` (`time.monotonic` seconds).

    Raises DataPlaneTimeout at the deadline, and DataPlaneUnavailable for a body without a recognizable end, and for a
    broken connection. Blocks that were yielded before an error are an incomplete body. For a status other than 200 (a
    redirect is not followed), raises the error that `refusal` returns for the URL and the status; with None as
    `refusal`, DataPlaneUnavailable.
    """
    response = _open(session, url, deadline)
    with response, cut_off(response, deadline):
        if response.status_code != 200:
            raise (refusal or _refused)(url, response.status_code)
        if response.raw.length_remaining is None and not response.raw.chunked:
            raise DataPlaneUnavailable(f"broker {origin(url)} sent a body without a recognizable end")
        try:
            for block in response.iter_content(BLOCK_BYTES):
                # a socket that is shut still returns data that has arrived
                if time.monotonic() >= deadline:
                    raise _broken(url, TimeoutError(), deadline)
                yield block
        # ValueError is raised by a TLS socket that was shut
        except (requests.RequestException, OSError, ValueError) as error:
            raise _broken(url, error, deadline) from None


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's response: a document; no document (`document` and `moved_to` are None); or the address to
    call instead.
    """

    document: Any = None
    moved_to: str | None = None
    """The URL of a redirect, unchecked. Following it sends the session's credentials there."""


def ask(session: requests.Session, url: str, deadline: float) -> Answer:
    """Send a GET of `url`, and return the answer, complete by `deadline` (`time.monotonic` seconds). The answer
    contains the JSON of the response; no document for a 404 or for the JSON `null`; or the target of a redirect with
    status 302, 307 or 308, which is not followed.

    Raises DataPlaneTimeout at the deadline, and DataPlaneUnavailable for another status, a broken connection, or a
    document that is not JSON or exceeds `DOCUMENT_BYTES`.
    """
    response = _open(session, url, deadline)
    with response, cut_off(response, deadline):
        if response.status_code == 200:
            return Answer(_json(response, url, deadline))
        if response.status_code == 404:
            return Answer()
        if response.status_code in (302, 307, 308) and "Location" in response.headers:
            return Answer(moved_to=urljoin(url, response.headers["Location"]))
        raise _refused(url, response.status_code)


def _open(session: requests.Session, url: str, deadline: float) -> requests.Response:
    """Send a GET of `url`, and return the response, of any status and with an unread body, when its headers
    have arrived. Redirects are not followed. `deadline` is in `time.monotonic` seconds. Raises
    DataPlaneTimeout at the deadline, DataPlaneUnavailable for a connection that is refused or breaks.
    """
    remaining_seconds = deadline - time.monotonic()
    if remaining_seconds <= 0:
        raise _broken(url, TimeoutError(), deadline)
    # Identity encoding: compressing a page of a gigabyte costs the broker far more than sending it costs the
    # network.
    try:
        return session.get(
            url,
            headers={"Accept": "*/*", "Accept-Encoding": "identity"},
            timeout=(remaining_seconds, remaining_seconds),
            stream=True,
            allow_redirects=False,
        )
    except (requests.RequestException, OSError) as error:
        raise _broken(url, error, deadline) from None


@contextlib.contextmanager
def cut_off(response: requests.Response, deadline: float) -> Iterator[None]:
    """Shut the response's socket at the deadline (`time.monotonic` seconds), unless the block has ended. The thread
    that reads the body then sees an error, or an end of the body that is false. After the end of a body, the block
    must therefore check whether the deadline has passed. Raises nothing.
    """

    def shut() -> None:
        with contextlib.suppress(
            Exception
        ):  # if the body was read to its end meanwhile, the connection serves another request
            response.raw.shutdown()

    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _json(response: requests.Response, url: str, deadline: float) -> Any:
    """Return the JSON of the response's body. Raises DataPlaneUnavailable for a body that is not JSON, and the
    errors of `_document_body`.
    """
    body = _document_body(response, url, deadline)
    try:
        return json.loads(body)
    except ValueError:
        raise DataPlaneUnavailable(
            f"broker {origin(url)} did not send JSON for {urlsplit(url).path}; is it Pulsar's web address?"
        ) from None


def _document_body(response: requests.Response, url: str, deadline: float) -> bytearray:
    """Return the response's body. Raises DataPlaneUnavailable for a body that exceeds `DOCUMENT_BYTES` or breaks
    off, DataPlaneTimeout at the deadline.
    """
    body = bytearray()
    try:
        for block in response.iter_content(BLOCK_BYTES):
            body += block
            if len(body) > DOCUMENT_BYTES:
                raise DataPlaneUnavailable(
                    f"broker {origin(url)} sent a document for {urlsplit(url).path} that exceeds {DOCUMENT_BYTES} bytes"
                )
    # ValueError is raised by a TLS socket that was shut
    except (requests.RequestException, OSError, ValueError) as error:
        raise _broken(url, error, deadline) from None
    # a socket that was shut looks like the end of a body without a stated length
    if time.monotonic() >= deadline:
        raise _broken(url, TimeoutError(), deadline)
    return body


def _refused(url: str, status: int) -> DataPlaneUnavailable:
    """Return the error for a status that is not expected."""
    hint = "; check the token and its rights" if status in (401, 403) else ""
    return DataPlaneUnavailable(f"broker {origin(url)} answers {urlsplit(url).path} with {status}{hint}")


def _broken(url: str, error: Exception, deadline: float) -> DataPlaneUnavailable:
    """Return the error for a connection that failed: DataPlaneTimeout if the deadline has passed or `error` is a
    timeout of `requests`, otherwise DataPlaneUnavailable.
    """
    if time.monotonic() >= deadline or isinstance(error, requests.Timeout):
        return DataPlaneTimeout(f"broker {origin(url)} did not send {urlsplit(url).path} completely in time")
    return DataPlaneUnavailable(
        f"broker {origin(url)} closed the connection at {urlsplit(url).path}: {type(error).__name__}"
    )
