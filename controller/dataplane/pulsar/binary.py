"""Connections over the binary protocol: opened within a call's deadline, closed in another thread, errors mapped in one
table.

The library's own retries go on for minutes; what is opened here is given up at the call's deadline, and closed if it is
opened later after all. Producers share one `pulsar.Client`, each reader has its own: the library (3.13, C++ 4.2) breaks
the connection when a broker tells that a consumer has reached the end of a terminated topic
(apache/pulsar-client-cpp#605), and everything else on that connection breaks with it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import pulsar

from controller.dataplane.pulsar.access import PulsarAccess
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.encryption import decrypting, encrypting
from controller.domain.errors import (
    CleaveError,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    InvalidInput,
    SegmentNotFound,
    SegmentTerminated,
    SubscriptionNotFound,
    Terminal,
    Unsupported,
)

PARALLEL_OPENS = 8
PARALLEL_FLUSHES = 64
"""Appends under way at once; the library's flush holds a thread until the batch is answered."""
Opened = TypeVar("Opened")


class Closable(Protocol):
    """A producer, consumer, reader or client."""

    def close(self) -> None: ...


_TABLE: Mapping[type[Exception], tuple[type[CleaveError], str]] = {
    pulsar.TopicTerminated: (SegmentTerminated, "look up the layout again and send to its successors"),
    pulsar.TopicNotFound: (SegmentNotFound, "it was deleted or never created: look up the layout again"),
    pulsar.SubscriptionNotFound: (SubscriptionNotFound, "create the subscription first"),
    pulsar.Timeout: (DataPlaneTimeout, "no answer in time: look before repeating"),
    pulsar.AuthenticationError: (Terminal, "the broker knows no such credentials: set CLEAVE_PULSAR_TOKEN"),
    pulsar.AuthorizationError: (Terminal, "the token's role may neither produce nor consume here: grant it"),
    pulsar.CryptoError: (
        InvalidInput,
        "nothing is sent in the clear instead: set CLEAVE_PULSAR_ENCRYPTION_PUBLIC_KEY_FILE to a public key, PEM",
    ),
    pulsar.InvalidUrl: (InvalidInput, "correct CLEAVE_PULSAR_SERVICE_URL"),
    pulsar.InvalidTopicName: (InvalidInput, "rename the topic"),
    pulsar.InvalidConfiguration: (InvalidInput, "correct the settings of this client"),
    pulsar.MessageTooBig: (InvalidInput, "send smaller messages, or raise the broker's maxMessageSize"),
    pulsar.IncompatibleSchema: (
        Terminal,
        "the namespace enforces a schema: turn schemaValidationEnforced off, or produce with that schema",
    ),
    pulsar.NotAllowedError: (Terminal, "the namespace's policies forbid it"),
    pulsar.UnsupportedVersionError: (Unsupported, "this broker is too old: Cleave needs Pulsar 3.0 or newer"),
}
"""Codes that are not listed count as an outage and are tried again."""


def mapped(error: Exception, act: str) -> CleaveError:
    """Cleave's error for one of the client library's."""
    kind, advice = _TABLE.get(type(error), (DataPlaneUnavailable, "try again"))
    text = f"{act}: {type(error).__name__}; {advice}"
    return SegmentTerminated(text, delay_seconds=0.0) if kind is SegmentTerminated else kind(text)


def mapped_result(result: pulsar.Result, act: str) -> CleaveError:
    """The same for the result code of an asynchronous call."""
    kind = getattr(pulsar, result.name, None)
    return mapped(kind() if isinstance(kind, type) else RuntimeError(result.name), act)


class Connections:
    """Makes clients of one cluster; safe to share between threads. The first use connects."""

    def __init__(self, access: PulsarAccess, *, call_timeout_seconds: float) -> None:
        if access.service_url is None:
            raise Unsupported(
                "producing and consuming need the brokers' binary address: set CLEAVE_PULSAR_SERVICE_URL"
            )
        self._access, self._call_timeout_seconds = access, call_timeout_seconds
        self.encrypting, self.decrypting = encrypting(access), decrypting(access)
        """What producers, and what consumers and readers, are opened with."""
        self._lock = threading.Lock()
        self._shared: pulsar.Client | None = None
        self._clients: WeakSet[pulsar.Client] = WeakSet()
        self._has_ended = False
        self._threads = ThreadPoolExecutor(PARALLEL_OPENS, thread_name_prefix="pulsar-open")
        self._flushing = ThreadPoolExecutor(PARALLEL_FLUSHES, thread_name_prefix="pulsar-flush")

    def open(self, act: str, deadline: Deadline, build: Callable[[pulsar.Client], Opened]) -> Opened:
        """What `build` opens on the shared client; errors of the library pass through unmapped."""
        return self._bounded(act, deadline, lambda: build(self._shared_client()))

    def open_alone(
        self, act: str, deadline: Deadline, build: Callable[[pulsar.Client], Opened]
    ) -> tuple[pulsar.Client, Opened]:
        """The same on a client of its own, which the caller closes with `close_aside`."""

        def connect() -> tuple[pulsar.Client, Opened]:
            client = self._client()
            try:
                return client, build(client)
            except BaseException:
                _close(client)
                raise

        return self._bounded(act, deadline, connect)

    def close_aside(self, *opened: Closable) -> None:
        """Close these, one after the other, without waiting for it."""
        with contextlib.suppress(RuntimeError):  # closed ourselves: so are they
            self._threads.submit(_close, *opened)

    def run_aside(self, act: Callable[[], object]) -> None:
        """Do it in another thread, and ignore its errors. Does nothing after `close`."""

        def quietly() -> None:
            with contextlib.suppress(pulsar.PulsarException, CleaveError):
                act()

        with contextlib.suppress(RuntimeError):
            self._flushing.submit(quietly)

    def close(self) -> None:
        """Close what is open; waits for what is being closed aside."""
        self._flushing.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=True, cancel_futures=False)
        with self._lock:
            client, self._shared = self._shared, None
        if client is not None:
            _close(client)

    def end(self) -> None:
        """The process is ending, in whatever state this is: end the library's threads, and open nothing any more."""
        self._has_ended = True
        closing = [threading.Thread(target=_close, args=(client,)) for client in list(self._clients)]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _bounded(self, act: str, deadline: Deadline, connect: Callable[[], Opened]) -> Opened:
        if self._has_ended:
            raise DataPlaneUnavailable(f"{act}: this process is ending")
        future = self._threads.submit(connect)
        try:
            return future.result(timeout=deadline.left_seconds)
        except NotYet:
            # What still waits for a thread would later take a cursor that nobody reads from.
            if not future.cancel():
                future.add_done_callback(_close_late)
            raise DataPlaneTimeout(
                f"{act}: {self._access.service_url} did not open it within {deadline.seconds:g} s"
            ) from None

    def _shared_client(self) -> pulsar.Client:
        with self._lock:
            if self._shared is None:
                self._shared = self._client()
            return self._shared

    def _client(self) -> pulsar.Client:
        client = pulsar.Client(self._access.service_url, **self._options())
        self._clients.add(client)
        return client

    def _options(self) -> dict[str, Any]:
        access = self._access
        return {
            "authentication": _authentication(access),
            "operation_timeout_seconds": max(1, int(self._call_timeout_seconds)),
            "connection_timeout_ms": max(100, int(self._call_timeout_seconds * 1000)),
            "tls_trust_certs_file_path": access.ca_file,
            "tls_validate_hostname": access.verify_hostname,
            "tls_certificate_file_path": access.cert_file if access.has_credentials else None,
            "tls_private_key_file_path": access.key_file if access.has_credentials else None,
            # It logs every retry; what matters is raised. A logger of Python's would be called twice for each message, by threads
            # that go on while the interpreter ends, whatever its level.
            "logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        }


def _authentication(access: PulsarAccess) -> pulsar.Authentication | None:
    """A token where there is one, read anew for each connection; else the client certificate."""
    if access.has_credentials:
        return pulsar.AuthenticationToken(lambda: access.current_token() or "")
    if access.cert_file and access.key_file:
        return pulsar.AuthenticationTLS(access.cert_file, access.key_file)
    return None


def _close_late(future: Future[Any]) -> None:
    if not future.cancelled() and future.exception() is None:
        found = future.result()
        _close(*reversed(found)) if isinstance(found, tuple) else _close(found)


def _close(*opened: Closable) -> None:
    for one in opened:
        with contextlib.suppress(pulsar.PulsarException):
            one.close()
        if isinstance(one, pulsar.Client):
            one._consumers.clear()  # it keeps those that could not be closed, and each of them keeps it
