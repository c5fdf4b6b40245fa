"""Opens and closes connections of the binary protocol: within a call's deadline, closed in another thread.

The library retries for minutes. This module gives up at the call's deadline, and closes a connection that
opens later. Producers share one `pulsar.Client`, and each reader has its own: the library (3.13, C++ 4.2)
closes the connection when a broker reports that a consumer has reached the end of a terminated topic
(apache/pulsar-client-cpp#605), and everything else on that connection fails with it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any, TypeVar
from weakref import WeakSet

import pulsar

from controller.dataplane.log_client import Closable
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.encryption import decrypting, encrypting
from controller.dataplane.pulsar.http_errors import closed
from controller.domain.errors import (
    CleaveError,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    Unsupported,
)

PARALLEL_OPENS = 8
PARALLEL_FLUSHES = 64
"""Number of functions of `Connections.run_aside` that run at once. Others wait for a thread."""
Opened = TypeVar("Opened")


class Connections:
    """The clients of one cluster. Safe to share between threads. Connects at the first use. The constructor
    raises Unsupported if `access` has no binary address.
    """

    def __init__(self, access: PulsarAccess, *, call_timeout_seconds: float) -> None:
        if access.service_url is None:
            raise Unsupported(
                "producing and consuming need the brokers' binary address: set CLEAVE_PULSAR_SERVICE_URL"
            )
        self._access, self._call_timeout_seconds = access, call_timeout_seconds
        self.encrypting, self.decrypting = encrypting(access), decrypting(access)
        """Arguments for opening producers, and those for opening consumers and readers."""
        self._lock = threading.Lock()
        self._shared: pulsar.Client | None = None
        self._clients: WeakSet[pulsar.Client] = WeakSet()
        self._has_ended = False
        self._threads = ThreadPoolExecutor(PARALLEL_OPENS, thread_name_prefix="pulsar-open")
        self._flushing = ThreadPoolExecutor(PARALLEL_FLUSHES, thread_name_prefix="pulsar-flush")

    def open(self, purpose: str, deadline: Deadline, build: Callable[[pulsar.Client], Opened]) -> Opened:
        """Call `build` with the client that producers share, in another thread, and return the object that `build`
        opens. `purpose` begins the messages of errors.

        Raises DataPlaneTimeout at the deadline; an object that opens later is closed. Raises DataPlaneUnavailable
        after `close` or `end`. Errors of the library and other errors of `build` are raised unmapped.
        """
        return self._bounded(purpose, deadline, lambda: build(self._shared_client()))

    def open_alone(
        self, purpose: str, deadline: Deadline, build: Callable[[pulsar.Client], Opened]
    ) -> tuple[pulsar.Client, Opened]:
        """Create a client of its own, call `build` with the client in another thread, and return the client and the
        object that `build` opens. The caller closes the object and the client with `close_aside`. `purpose` begins
        the messages of errors.

        Raises DataPlaneTimeout at the deadline; what opens later is closed. Raises DataPlaneUnavailable after `close`
        or `end`. Errors of the library and other errors of `build` are raised unmapped, and the client is then
        closed.
        """

        def connect() -> tuple[pulsar.Client, Opened]:
            client = self._client()
            try:
                return client, build(client)
            except BaseException:
                _close(client)
                raise

        return self._bounded(purpose, deadline, connect)

    def close_aside(self, *opened: Closable) -> None:
        """Close the objects in a background thread, one after the other in the given order, without waiting. Errors
        of the library are ignored. Works also after `close`, which does not close the clients of `open_alone`. Does
        nothing while the interpreter ends.
        """
        try:
            self._threads.submit(_close, *opened)
        except RuntimeError:  # the threads have ended
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=_close, args=opened, name="pulsar-close").start()

    def run_aside(self, function: Callable[[], object]) -> None:
        """Run `function` in a background thread, without waiting. Errors of the library and Cleave's errors are
        ignored. At most `PARALLEL_FLUSHES` functions run at once; others wait for a thread. Does nothing after
        `close`.
        """

        def quietly() -> None:
            with contextlib.suppress(pulsar.PulsarException, CleaveError):
                function()

        with contextlib.suppress(RuntimeError):
            self._flushing.submit(quietly)

    def close(self) -> None:
        """Close the shared client, once background threads have ended the openings and closings that were
        requested. Functions of `run_aside` that have not begun are dropped. Clients of `open_alone` are not
        closed.
        """
        self._flushing.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=True, cancel_futures=False)
        with self._lock:
            client, self._shared = self._shared, None
        if client is not None:
            _close(client)

    def end(self) -> None:
        """Close all clients, those of `open_alone` included, each in its own thread, and wait until all are closed.
        Meant for the end of the process; works in any state of this object. Later calls of `open` and `open_alone`
        raise DataPlaneUnavailable.
        """
        self._has_ended = True
        closing = [threading.Thread(target=_close, args=(client,)) for client in list(self._clients)]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _bounded(self, purpose: str, deadline: Deadline, connect: Callable[[], Opened]) -> Opened:
        """Return the result of `connect`, which runs in another thread. Raises DataPlaneTimeout at the
        deadline: then `connect` is not begun, or the objects that it opens later are closed. Raises
        DataPlaneUnavailable after `close` and `end`.
        """
        if self._has_ended:
            raise DataPlaneUnavailable(f"{purpose}: this process is ending")
        try:
            future = self._threads.submit(connect)
        except RuntimeError:  # the threads have ended
            raise closed(purpose) from None
        try:
            return future.result(timeout=deadline.left_seconds)
        except NotYet:
            # An opening that still waits for a thread would later take a cursor that no reader reads from.
            if not future.cancel():
                future.add_done_callback(_close_late)
            raise DataPlaneTimeout(
                f"{purpose}: {self._access.service_url} did not open it within {deadline.seconds:g} s"
            ) from None

    def _shared_client(self) -> pulsar.Client:
        """Return the client that producers share. Created at the first call."""
        with self._lock:
            if self._shared is None:
                self._shared = self._client()
            return self._shared

    def _client(self) -> pulsar.Client:
        """Return a new client, which `end` closes."""
        client = pulsar.Client(self._access.service_url, **self._options())
        self._clients.add(client)
        return client

    def _options(self) -> dict[str, Any]:
        """Return the arguments of a client: authentication, time limits, certificates, and a logger that
        writes nothing.
        """
        access = self._access
        return {
            "authentication": _authentication(access),
            "operation_timeout_seconds": max(1, int(self._call_timeout_seconds)),
            "connection_timeout_ms": max(100, int(self._call_timeout_seconds * 1000)),
            "tls_trust_certs_file_path": access.ca_file,
            "tls_validate_hostname": access.verify_hostname,
            "tls_certificate_file_path": access.cert_file if access.has_credentials else None,
            "tls_private_key_file_path": access.key_file if access.has_credentials else None,
            # The library logs every retry; relevant errors are raised. A logger of Python would be called
            # twice for each message, whatever its level, by threads that continue while the interpreter ends.
            "logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        }


def _authentication(access: PulsarAccess) -> pulsar.Authentication | None:
    """Return the authentication by token if there is one, read for each connection; otherwise the
    authentication by the client certificate. None if `access` has neither.
    """
    if access.has_credentials:
        return pulsar.AuthenticationToken(lambda: access.current_token() or "")
    if access.cert_file and access.key_file:
        return pulsar.AuthenticationTLS(access.cert_file, access.key_file)
    return None


def _close_late(future: Future[Any]) -> None:
    """Close the objects that an opening returned after its deadline: first the object, then its client if the opening
    created one. Do nothing if the opening failed or was cancelled. Errors of the library are ignored.
    """
    if not future.cancelled() and future.exception() is None:
        opened = future.result()
        _close(*reversed(opened)) if isinstance(opened, tuple) else _close(opened)


def _close(*opened: Closable) -> None:
    """Close the objects one after the other, and ignore errors of the library."""
    for connection in opened:
        with contextlib.suppress(pulsar.PulsarException):
            connection.close()
        if isinstance(connection, pulsar.Client):
            # otherwise the client keeps consumers that could not be closed, and each of them keeps the client
            connection._consumers.clear()
