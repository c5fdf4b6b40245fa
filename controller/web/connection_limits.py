"""Guards the connections of a worker's HTTP server: how large a request's head may be, how long a request may take to arrive, and how many
connections may be open without an admitted request.

uvicorn has none of these bounds with the parser httptools, so this module extends its protocol. `request_slots` limits each token.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from enum import Enum
from http import HTTPStatus
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from controller.web.body_size import body_problem
from controller.web.networks import network_of

LONGEST_LINE_BYTES = 8 * 1024
"""Limit of the request line and of each header, as in nginx."""
LARGEST_HEAD_BYTES = 32 * 1024
"""Limit of the request line and all headers, as in nginx."""
MOST_PIPELINED = 16
"""Requests of a connection that wait for the answer to the one before them."""
UNREAD_SECONDS = 30.0
"""Seconds after which a client that does not read its answer is disconnected."""
_LINGER_SECONDS = 2.0
"""Seconds for which data after a refusal is read and discarded; otherwise a client that still sends would lose the answer."""
_PIECE_BYTES = 16 * 1024


class Awaited(Enum):
    """The part of a request that a connection waits for."""

    REQUEST = "request"
    """The next request. uvicorn closes an idle connection earlier, unless the client sends empty lines."""
    HEAD = "head"
    BODY = "body"


SECONDS = {Awaited.REQUEST: 10.0, Awaited.HEAD: 10.0, Awaited.BODY: 30.0}
"""Seconds for each part, from its beginning to its end."""


class _Refused(Exception):
    """Ends the parsing of a request."""


class Lobby:
    """The open connections without an admitted request. Only for the event loop's thread.

    If the lobby is full, the address with the most connections in the lobby loses its oldest connection. So a client
    that sends its token soon is served, however many connections another address opens.
    """

    def __init__(self, limit: int) -> None:
        self._most, self._count = limit, 0
        self._waiting: dict[str, dict[GuardedProtocol, None]] = {}

    def enter(self, connection: GuardedProtocol) -> None:
        """Add the connection; a connection that is in the lobby stays where it is.

        If the lobby is then over its limit, disconnect the oldest connection of the network with the most connections in the lobby, which
        may be this connection.
        """
        waiting = self._waiting.setdefault(connection.network, {})
        if connection in waiting:
            return
        waiting[connection] = None
        self._count += 1
        if self._count > self._most:
            most_crowded = max(self._waiting.values(), key=len)
            next(iter(most_crowded)).drop()

    def leave(self, connection: GuardedProtocol) -> None:
        """Remove the connection if it is there."""
        waiting = self._waiting.get(connection.network, {})
        if connection not in waiting:
            return
        del waiting[connection]
        self._count -= 1
        if not waiting:
            del self._waiting[connection.network]


class GuardedProtocol(HttpToolsProtocol):
    """One connection, with limits on the size and duration of requests, on waiting requests, and on unread answers. The state of a request
    refers to the connection as `connection`.
    """

    def __init__(self, *, lobby: Lobby, **options: Any) -> None:
        """Create a connection that is in `lobby`, which all connections of the server share, from `connection_made` on while it has no
        admitted request. `options` are those of uvicorn's protocol.
        """
        super().__init__(**options)
        self.network = ""
        self._lobby = lobby
        self._awaited: Awaited | None = None
        self._timer: TimerHandle | None = None
        self._unread: TimerHandle | None = None
        self._refusal: tuple[int, str] | None = None
        self._head_bytes = self._headers_bytes = 0
        self._is_new_head = False

    def admit(self) -> None:
        """Remove the connection from the lobby, because its request is admitted."""
        self._lobby.leave(self)

    def release(self) -> None:
        """Return the connection to the lobby, because its request is answered. Does nothing for a connection that is closing."""
        if not self.transport.is_closing():
            self._lobby.enter(self)

    def drop(self) -> None:
        """Disconnect at once, even in the middle of a request."""
        self._lobby.leave(self)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Enter the lobby, and wait for the first request."""
        super().connection_made(transport)
        self.network = network_of(self.client[0] if self.client else "")
        self._await(Awaited.REQUEST)
        self._lobby.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the lobby, and end all waits."""
        self._await(None)
        self._cancel_unread()
        self._lobby.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data in pieces. Answer 431 if more than `LARGEST_HEAD_BYTES` of an unfinished head arrive after the piece in which the
        head begins. Discard data after a refusal.
        """
        for start in range(0, len(data), _PIECE_BYTES):
            if self._refusal is not None or self.transport.is_closing():
                return
            piece = data[start : start + _PIECE_BYTES]
            self._is_new_head = False
            super().data_received(piece)
            if self._awaited is Awaited.HEAD and not self._is_new_head:
                self._head_bytes += len(piece)
                if self._head_bytes > LARGEST_HEAD_BYTES:
                    self._refuse(431, f"the headers are larger than {LARGEST_HEAD_BYTES} bytes; send fewer")

    def on_message_begin(self) -> None:
        """Begin a request: put this connection into the request's state as `connection`, reset the counts of the
        head's bytes, and limit the time in which the head must arrive.
        """
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        self._is_new_head, self._head_bytes, self._headers_bytes = True, 0, 0
        self._await(Awaited.HEAD)

    def on_url(self, url: bytes) -> None:
        """Add a part of the address to the request. Raise the error of `_stop`, so that the answer is 414, if the
        address is longer than `LONGEST_LINE_BYTES`.
        """
        super().on_url(url)
        if len(self.url) > LONGEST_LINE_BYTES:
            self._stop(414, f"the address is longer than {LONGEST_LINE_BYTES} bytes; shorten it")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add the header to the request. Raise the error of `_stop`, so that the answer is 431, for a header (name and value) above
        `LONGEST_LINE_BYTES`, or if the address and the headers so far together exceed `LARGEST_HEAD_BYTES`.
        """
        super().on_header(name, value)
        size = len(name) + len(value)
        self._headers_bytes += size
        if size > LONGEST_LINE_BYTES:
            self._stop(431, f"a header is longer than {LONGEST_LINE_BYTES} bytes; shorten it")
        if len(self.url) + self._headers_bytes > LARGEST_HEAD_BYTES:
            self._stop(431, f"the headers are larger than {LARGEST_HEAD_BYTES} bytes; send fewer")

    def on_headers_complete(self) -> None:
        """Start the app, or queue the request behind the request in progress, and allow a limited time for the body to arrive. The app
        starts before the body is complete.

        Refuse a body that is too large or has no length with 413. If an earlier request of the connection is not completely answered,
        disconnect the client instead; so a request beyond `MOST_PIPELINED` queued requests ends the connection.
        """
        problem = body_problem(self.headers)
        if problem is not None:
            self._stop(413, problem)
        if len(self.pipeline) >= MOST_PIPELINED:
            self._stop(429, f"{MOST_PIPELINED} requests wait on this connection; read their answers first")
        super().on_headers_complete()
        self._await(Awaited.BODY)

    def on_message_complete(self) -> None:
        """Wait for the next request if the answer is complete, otherwise for no part."""
        super().on_message_complete()
        self._await(Awaited.REQUEST if self.cycle.response_complete else None)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless the connection waits for a part of a request already."""
        super().on_response_complete()
        if self._awaited is None and self.cycle.response_complete:
            self._await(Awaited.REQUEST)

    def pause_writing(self) -> None:
        """Stop writing, because the client does not read its answer. Disconnect the client if it has not read enough
        for writing to resume within `UNREAD_SECONDS`.
        """
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_SECONDS, self.drop)

    def resume_writing(self) -> None:
        """Keep the connection, because the client has read its answer."""
        super().resume_writing()
        self._cancel_unread()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the answer has a text of its own
        """Answer with the status and reason of `_stop`, or with 400 if the request is not valid HTTP. uvicorn calls this method when its
        parser gives up.
        """
        status, reason = self._refusal or (400, "the request is not valid HTTP/1.1; correct it")
        self._refuse(status, reason)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the request is answered like any other, and a client could fill the log."""

    def _stop(self, status: int, reason: str) -> None:
        """Raise an error that ends the parsing, after which `send_400_response` answers with this status and reason."""
        self._refusal = (status, reason)
        raise _Refused(reason)

    def _await(self, part: Awaited | None) -> None:
        """Wait for the part of a request, at most its time in `SECONDS`, instead of the part before. None: wait for nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._awaited = part
        self._timer = None if part is None else self.loop.call_later(SECONDS[part], self._give_up)

    def _give_up(self) -> None:
        """End the wait for a part whose time is over: disconnect a connection without a request, `_refuse` a late head or body with 408.
        If the app itself has paused reading, wait again.
        """
        part = self._awaited
        if part is Awaited.REQUEST or part is None:
            self.drop()
        elif self.flow.read_paused:  # the app does not read, so the delay is not the client's
            self._await(part)
        else:
            self._refuse(
                408, f"the {part.value} of the request took longer than {SECONDS[part]:g} s; send it again"
            )

    def _refuse(self, status: int, reason: str) -> None:
        """Answer with the status and a JSON reason, and disconnect once the client has had `_LINGER_SECONDS` to read the answer. The app
        sees a request in progress as disconnected. If the answer of this request has begun, or another request is not answered, only
        disconnect: the client would take the refusal for the answer to its oldest request.
        """
        # From the end of its head on, the refused request is the newest one that the app has got.
        is_newest = self._awaited is Awaited.BODY
        self._refusal = (status, reason)
        self._await(None)
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or self.pipeline or not is_newest:
                self.drop()
                return
        self._unset_keepalive_if_required()
        body = msgspec.json.encode({"reason": reason, "kind": "InvalidInput"})
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(_LINGER_SECONDS, self.drop)

    def _cancel_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
