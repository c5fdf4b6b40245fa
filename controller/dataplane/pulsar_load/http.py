"""HTTP as the readers of brokers need it: bodies read in blocks, and one deadline for each whole body.

A time-out of the socket ends the wait for a silent server, but not for a slow one. So each reading has a timer that
shuts the socket at the deadline. Errors become Retryable here and name the broker, never a header.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit

import requests

from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable

BLOCK_BYTES = 1 << 20
"""The most of a body that is in memory at once."""
DOCUMENT_BYTES = 64 << 20
"""A document longer than this is refused: statistics of a topic with 100,000 consumers are shorter."""
REDIRECTS = 3
"""A broker that does not own a topic redirects to the one that does. No more redirects than this are followed."""


class HttpSession(Protocol):
    """What is used of `requests.Session`. Certificates and tokens belong to the session."""

    def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: tuple[float, float],
        stream: bool,
        allow_redirects: bool,
    ) -> requests.Response:
        """Send the request and return when the head of the answer is there."""


class AuthorizedSession:
    """A session whose headers are read for each request, for instance a renewed token."""

    def __init__(self, session: HttpSession, headers: Callable[[], Mapping[str, str]]) -> None:
        self._session, self._headers = session, headers

    def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: tuple[float, float],
        stream: bool,
        allow_redirects: bool,
    ) -> requests.Response:
        """As `HttpSession.get`."""
        return self._session.get(
            url,
            headers={**self._headers(), **headers},
            timeout=timeout,
            stream=stream,
            allow_redirects=allow_redirects,
        )


def origin(url: str) -> str:
    """`scheme://host:port` of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def blocks(session: HttpSession, url: str, deadline: float) -> Iterator[bytes]:
    """The body in blocks of up to BLOCK_BYTES, whole by `deadline` (`time.monotonic` seconds) or an error.

    Raises DataPlaneTimeout and DataPlaneUnavailable; what was read before is then not the whole.
    """
    response = _open(session, url, deadline)
    with response, cut_off(response, deadline) as timer:
        if response.status_code != 200:
            raise _refused(url, response.status_code)
        if "Content-Length" not in response.headers and not response.raw.chunked:
            raise DataPlaneUnavailable(f"broker {origin(url)} answers with a body whose end cannot be told")
        try:
            for block in response.iter_content(BLOCK_BYTES):
                if time.monotonic() >= deadline:  # a socket that is shut still gives what has arrived
                    break
                yield block
        except (requests.RequestException, OSError, ValueError) as error:  # ValueError: TLS that was shut
            raise _broken(url, error, deadline) from None
        if not timer.is_alive():  # cut off: for a body without a stated length that looks like its end
            raise _broken(url, TimeoutError(), deadline)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a broker answered: a document, that there is none (`document` and `moved_to` are None), or whom to ask."""

    document: Any = None
    moved_to: str | None = None
    """The URL that a redirect names, unchecked. To follow it is to send the session's credentials there."""


def ask(session: HttpSession, url: str, deadline: float) -> Answer:
    """The JSON at `url` by `deadline`. Raises DataPlaneTimeout and DataPlaneUnavailable."""
    response = _open(session, url, deadline)
    with response, cut_off(response, deadline):
        if response.status_code == 200:
            return Answer(_json(response, url, deadline))
        if response.status_code == 404:
            return Answer()
        if response.status_code in (302, 307, 308) and "Location" in response.headers:
            return Answer(moved_to=urljoin(url, response.headers["Location"]))
        raise _refused(url, response.status_code)


def _open(session: HttpSession, url: str, deadline: float) -> requests.Response:
    left = deadline - time.monotonic()
    if left <= 0:
        raise _broken(url, TimeoutError(), deadline)
    # Identity: a page of a gigabyte costs its broker far more to compress than the network to carry.
    try:
        return session.get(
            url,
            headers={"Accept": "*/*", "Accept-Encoding": "identity"},
            timeout=(left, left),
            stream=True,
            allow_redirects=False,
        )
    except (requests.RequestException, OSError) as error:
        raise _broken(url, error, deadline) from None


@contextlib.contextmanager
def cut_off(response: requests.Response, deadline: float) -> Iterator[threading.Timer]:
    """Shuts the socket at the deadline, so that the reading thread sees the end."""

    def shut() -> None:
        with contextlib.suppress(
            Exception
        ):  # read to its end meanwhile: the connection serves another request
            response.raw.shutdown()

    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), shut)
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


def _json(response: requests.Response, url: str, deadline: float) -> Any:
    body = bytearray()
    try:
        for block in response.iter_content(BLOCK_BYTES):
            body += block
            if len(body) > DOCUMENT_BYTES:
                raise DataPlaneUnavailable(f"broker {origin(url)} answers {urlsplit(url).path} without end")
        return json.loads(body)
    except (requests.RequestException, OSError) as error:
        raise _broken(url, error, deadline) from None
    except ValueError:
        raise DataPlaneUnavailable(
            f"broker {origin(url)} answers {urlsplit(url).path} with what is no JSON; is it Pulsar's web address?"
        ) from None


def _refused(url: str, status: int) -> DataPlaneUnavailable:
    hint = "; check the token and its rights" if status in (401, 403) else ""
    return DataPlaneUnavailable(f"broker {origin(url)} answers {urlsplit(url).path} with {status}{hint}")


def _broken(url: str, error: Exception, deadline: float) -> DataPlaneUnavailable:
    if time.monotonic() >= deadline or isinstance(error, requests.Timeout):
        return DataPlaneTimeout(f"broker {origin(url)} did not answer {urlsplit(url).path} whole in time")
    return DataPlaneUnavailable(
        f"broker {origin(url)} broke off at {urlsplit(url).path}: {type(error).__name__}"
    )
