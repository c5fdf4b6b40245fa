"""What the clients for asyncio in `pulsar_cleave` share: each lives in a thread of its own, and its calls are awaited.

The work is that of the synchronous clients. What `receive` has taken when the task that awaits it is cancelled is not lost: the
next `receive` gives it out, if it is this consumer's still. A call of another kind that is cancelled may or may not have been done,
as after any lost answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from controller.client.arguments import checks_arguments
from controller.client.closing import closed
from controller.domain.errors import InvalidInput
from controller.forks import OneProcess

SLICE_SECONDS = 0.05
"""A waiting `receive` holds the thread no longer than this at a time, so that other calls have their turn."""


class Closable(Protocol):
    """A synchronous client."""

    def close(self) -> None: ...


class Receiving(Closable, Protocol):
    """One that receives."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None: ...


Client = TypeVar("Client", bound=Closable)
Consumer = TypeVar("Consumer", bound=Receiving)
Item = TypeVar("Item")
Result = TypeVar("Result")


@checks_arguments
class AsyncClient(OneProcess, Generic[Client]):
    """One client and the thread that it lives in, from the beginning of `async with` to its end. For one event loop."""

    def __init__(self, make: Callable[[], Client]) -> None:
        """`make` makes the client. It is called in the thread, and may block."""
        self._make = make
        self._client: Client | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cleave-async")
        self._ended: Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._demand_maker()
        try:
            await self._in_thread(self._open)
        except BaseException:
            self._end(lambda client: client.close())  # it may be made yet, and then it is closed
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, act: Callable[[Client], Result]) -> Result:
        """Whatever else the client can do: `act` is called with it, in its thread."""
        return await self._in_thread(lambda: act(self._opened()))

    async def close(self) -> None:
        """Close it, which goes on if this is cancelled. Safe to repeat."""
        await self._await_end(lambda client: client.close())

    def _open(self) -> None:
        self._client = self._make()

    def _opened(self) -> Client:
        if self._client is None:
            raise InvalidInput(f"{type(self).__name__} is not open; use it in `async with`")
        return self._client

    async def _await_end(self, close: Callable[[Client], None]) -> None:
        await asyncio.shield(asyncio.wrap_future(self._end(close)))

    def _end(self, close: Callable[[Client], None]) -> Future[None]:
        """Have it closed once what is under way has ended."""
        if self._ended is None:
            self._ended = self._thread.submit(self._close, close)
            self._thread.shutdown(wait=False)
        return self._ended

    def _close(self, close: Callable[[Client], None]) -> None:
        if self._client is not None:
            close(self._client)

    async def _in_thread(self, act: Callable[[], Result]) -> Result:
        if self._ended is not None:
            raise closed(type(self).__name__)
        return await asyncio.wrap_future(self._thread.submit(act))


@checks_arguments
class AsyncConsumer(AsyncClient[Consumer], Generic[Consumer, Item]):
    """What the consumers share. Several tasks may receive at once; each item goes to one of them."""

    def __init__(self, make: Callable[[], Consumer]) -> None:
        """As for `AsyncClient`."""
        super().__init__(make)
        self._taken: deque[Item] = deque()
        """Received, and not given out yet. The thread puts in, the event loop takes out."""

    async def receive(self, timeout_seconds: float | None = None) -> Item | None:
        """The next one, waiting for it at most so long, or without end; None when there is none. Raises as the synchronous
        `receive`.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = SLICE_SECONDS if deadline is None else deadline - time.monotonic()
            slice_seconds = max(0.0, min(left, SLICE_SECONDS))
            await self._in_thread(partial(self._take, slice_seconds))
            with suppress(IndexError):  # another task was faster
                return self._taken.popleft()
            if deadline is not None and time.monotonic() >= deadline:
                return None

    async def __aiter__(self) -> AsyncIterator[Item]:
        """One after the other, without end."""
        while True:
            item = await self.receive()
            if item is not None:
                yield item

    async def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """See the consumer's `close`. It goes on if this is cancelled. Safe to repeat."""
        await self._await_end(lambda consumer: consumer.close(timeout_seconds, leave=leave))

    def pause(self) -> None:
        """See the consumer's `pause`. What was received already is given out."""
        self._opened().pause()

    def resume(self) -> None:
        """See the consumer's `resume`."""
        self._opened().resume()

    def _take(self, seconds: float) -> None:
        """In the thread: have something to give out, if there is. What was taken for a task that is gone comes first, unless it
        is another consumer's by now.
        """
        consumer = self._opened()
        for item in [item for item in self._taken if not self._is_own(consumer, item)]:
            with suppress(ValueError):  # the event loop was faster
                self._taken.remove(item)
        if not self._taken:
            received = self._receive(consumer, seconds)
            if received is not None:
                self._taken.append(received)

    def _receive(self, consumer: Consumer, seconds: float) -> Item | None:
        raise NotImplementedError

    def _is_own(self, consumer: Consumer, item: Item) -> bool:
        raise NotImplementedError
