"""Requests to the REST API generated from its own description: the requests, their callers, and the checks of every answer."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import requests
import schemathesis
from schemathesis import checks

from controller.devstack.serving import token_for, token_of
from controller.questions.question import PAGES
from controller.web.access import Role
from tests.support.asking import bearer

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
REAL = {
    "tenant": "acme",
    "namespace": "shop",
    "topic": "orders",
    "subscription": "billing",
    "consumer": "a",
    "segment_id": 0,
}
STREAMS = r"/(watch|assignment)$"
"""They have no end."""
MOST_SEGMENTS = 8
GOOD_FOR_ONE = ('["orders-monday-1"]', json.dumps(PAGES, separators=(",", ":")))
"""Examples of a key of a change and of a page: with them each other change and list would be refused before anything is looked at."""
SLOWEST_SECONDS = 5.0
_PATIENCE_SECONDS = 120.0


def described(address: str) -> Any:
    """Return the schema of a real worker. Its maximum of segments is lower, because topics of thousands of segments take long and are not
    the subject.
    """
    document = httpx.get(f"{address}/openapi.json", timeout=60.0).text
    document = document.replace('"maximum":65536', f'"maximum":{MOST_SEGMENTS}')
    for examples in GOOD_FOR_ONE:
        assert examples in document
        document = document.replace(examples, "[]")
    schema = schemathesis.openapi.from_dict(json.loads(document))
    schema.config.update(base_url=address)
    return schema


def authorization(path: str) -> dict[str, str]:
    """Return the header of a token that may call the path."""
    if path == "/api/v1/load/samples":
        token = token_of(Role.BROKER)
    elif "/consumers/" in path or "/queue" in path or path.endswith(("/key-counts", "/suspects")):
        token = token_for()
    else:
        token = token_of(Role.ADMIN)
    return bearer(token)


@dataclass
class Answers:
    """Counts of the answers. A failure is recorded and the next request follows."""

    statuses: Counter[int] = field(default_factory=Counter)
    streams: int = 0
    """Of the answers, those that began a stream."""
    slowest: tuple[float, str] = (0.0, "")
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return the number of all answers."""
        return sum(self.statuses.values())

    def ask(self, case: schemathesis.Case, session: requests.Session) -> requests.Response:
        """Send the request, check the answer, and return it; of a stream only the beginning is read. Return an empty answer if the
        library does not send the request.
        """
        is_stream = re.search(STREAMS, case.operation.path) is not None
        transport_options = case.as_transport_kwargs(headers=authorization(case.operation.path))
        began = time.perf_counter()
        try:
            answer = session.request(
                **transport_options, stream=is_stream, timeout=_PATIENCE_SECONDS, allow_redirects=False
            )
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidHeader, UnicodeError):
            return requests.Response()
        seconds = time.perf_counter() - began
        self._note(case, answer.status_code, seconds)
        try:
            if is_stream and answer.status_code == 200:
                self.streams += 1
                answer._content = next(answer.iter_content(None), b"")
                if not answer.content:
                    self.failures[case.operation.label] = "the stream is empty"
            else:
                case.validate_response(answer, checks=CHECKS)
        except Exception as error:  # noqa: BLE001 - a group of failures, each of its own kind
            kind = f"{case.operation.label} {answer.status_code} {type(error).__name__}"
            self.failures.setdefault(kind, f"{error}\n{answer.text[:500] if not is_stream else ''}"[:2000])
        finally:
            answer.close()
        return answer

    def _note(self, case: schemathesis.Case, status: int, seconds: float) -> None:
        self.statuses[status] += 1
        self.slowest = max(self.slowest, (seconds, case.operation.label))
        if seconds > SLOWEST_SECONDS:
            self.failures.setdefault(f"{case.operation.label} slow", f"{seconds:.1f} s, answered {status}")
