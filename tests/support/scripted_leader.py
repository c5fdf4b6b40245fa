"""A leader for a client's session, without a server: each call waits for the answer of the test, or is answered at once.

Pass it in place of `Servers`.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from controller.client.servers import Servers
from controller.domain.errors import StoreUnavailable

PATIENCE_SECONDS = 30.0
"""Nothing in a test takes so long."""
Result = TypeVar("Result")


class BackgroundCall(Generic[Result]):
    """A call in a thread of its own, started at once."""

    def __init__(self, act: Callable[[], Result]) -> None:
        self._results: list[Result] = []
        self._errors: list[BaseException] = []

        def run() -> None:
            try:
                self._results.append(act())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                self._errors.append(error)

        self._thread = threading.Thread(target=run, name="aside", daemon=True)
        self._thread.start()

    def result(self, within_seconds: float = PATIENCE_SECONDS) -> Result:
        """Return or raise the result of the call, and wait for it."""
        self._thread.join(within_seconds)
        if self._errors:
            raise self._errors[0]
        assert self._results, "the call does not end"
        return self._results[0]


@dataclass
class HandClock:
    """In place of the module `time`. The clock stands still until the test moves it."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        """Return `seconds`."""
        return self.seconds


@dataclass
class Call:
    """One call. `what` is the last part of its path: register, attach, pulse, released, goodbye."""

    what: str
    document: Mapping[str, Any]
    thread: threading.Thread = field(default_factory=threading.current_thread)
    """Who asks."""
    _answered: threading.Event = field(default_factory=threading.Event)
    _error: Exception | None = None

    @property
    def incarnation(self) -> str:
        """Incarnation that calls."""
        return str(self.document["incarnation"])

    def answer(self, error: Exception | None = None) -> None:
        """Answer the call, or refuse it with the error."""
        self._error = error
        self._answered.set()

    def wait(self) -> None:
        """Wait for the answer, in the calling thread."""
        assert self._answered.wait(PATIENCE_SECONDS), f"{self.what} is not answered"
        if self._error is not None:
            raise self._error


class Feed:
    """One stream of assignments."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[SimpleNamespace | None] = queue.SimpleQueue()

    def say(self, event: str, document: object) -> None:
        """Send the next event."""
        self._said.put(SimpleNamespace(event=event, data=json.dumps(document)))

    def hang_up(self) -> None:
        """Close the stream, from either side."""
        self._said.put(None)

    def __iter__(self) -> Iterator[SimpleNamespace]:
        while (event := self._said.get(timeout=PATIENCE_SECONDS)) is not None:
            yield event
        raise StoreUnavailable("the stream broke", 0.0)


class ScriptedLeader(Servers):
    """`held` are the kinds of calls that wait for the test; other calls are answered at once."""

    count = 1

    def __init__(self, on_call: Callable[[Call], None] = lambda _call: None, *held: str) -> None:
        """`on_call` gets each call when it arrives, in the calling thread."""
        self.held = set(held)
        self.calls: list[Call] = []
        self.feeds: list[Feed] = []
        self.open_feeds = 0
        self._on_call = on_call
        self._changed = threading.Condition()

    # As `Servers`.

    def ask(  # type: ignore[override]
        self,
        method: str,
        path: str,
        *,
        document: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        **_: object,
    ) -> Any:
        last = path.rpartition("/consumers/")[2].partition("/")[2]
        what = "goodbye" if method == "DELETE" else last or "register"
        self._called(what, document or query or {})
        return {"topic_id": 1, "silent_seconds": 1e6, "grace_seconds": 2e6} if what == "register" else None

    @contextmanager
    def events(  # type: ignore[override]
        self, _path: str, *, query: Mapping[str, Any], **_: object
    ) -> Iterator[Feed]:
        self._called("attach", query)
        feed = Feed()
        with self._changed:
            self.feeds.append(feed)
            self.open_feeds += 1
            self._changed.notify_all()
        try:
            yield feed
        finally:
            self.open_feeds -= 1

    def _called(self, what: str, document: Mapping[str, Any]) -> None:
        call = Call(what, document)
        self._on_call(call)
        if what not in self.held:
            call.answer()
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
        call.wait()

    # For the test.

    def call(self, what: str, number: int = 1) -> Call:
        """Wait for the n-th call of that kind, and return it."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(what)) >= number, PATIENCE_SECONDS), what
            return self.of(what)[number - 1]

    def of(self, what: str) -> list[Call]:
        """Return all calls of that kind."""
        return [call for call in self.calls if call.what == what]

    def feed(self, number: int = 1) -> Feed:
        """Wait for the n-th opened stream, and return it."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.feeds) >= number, PATIENCE_SECONDS)
            return self.feeds[number - 1]
