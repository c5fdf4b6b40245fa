"""Serves the app in a thread of its own, on a socket that is bound before the worker publishes the address."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl

import uvicorn

from controller.bootstrap import ConsumerServices
from controller.domain.errors import InvalidInput
from controller.services.computing.computers import Computers
from controller.settings import Settings
from controller.telemetry import get_logger
from controller.web.access import demand_secret
from controller.web.app import create_app
from controller.web.connection_limits import GuardedProtocol, Lobby
from controller.web.request_slots import Slots

log = get_logger(__name__)

_BACKLOG = 2048
"""Connections that wait to be accepted; uvicorn's own default."""
MOST_WITHOUT_REQUEST = 1_000
"""Connections without an admitted request; a well-behaved connection is in this state for milliseconds, or idle."""
_OTHER_FILES = 500
"""Open files that the process needs in addition to its connections."""
_HANDSHAKE_SECONDS = 10.0


class WebServer:
    """An HTTP server. The constructor binds the socket, `run` serves."""

    def __init__(self, settings: Settings, secret: str) -> None:
        """Bind the socket and listen; `address` is then the URL that the worker publishes. Tokens are signed with `secret`. Raises
        InvalidInput for an address that cannot be bound or that consumers cannot use, a secret that is too short, or unusable certificate
        files.
        """
        demand_secret(secret)
        self._cert, self._key = _cert_and_key(settings)
        self._secret, self._settings = secret, settings
        host, port = settings.serve_host, settings.serve_port
        if host in ("0.0.0.0", "::", "") and settings.serve_url is None:  # noqa: S104 - refused
            raise InvalidInput(
                f"CLEAVE_SERVE_HOST is {host!r}, which means every address of this machine, but consumers need one: set "
                "CLEAVE_SERVE_URL to an address at which they reach this worker"
            )
        is_ipv6 = ":" in host
        self._socket = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(
                _BACKLOG
            )  # clients that connect before the server has started wait in the backlog
        # TypeError is raised for a host name that cannot be encoded
        except (OSError, TypeError) as error:
            self._socket.close()
            raise InvalidInput(
                f"consumers cannot be served at {host}:{port}: {error}; set CLEAVE_SERVE_HOST and CLEAVE_SERVE_PORT"
            ) from error
        own = f"http{'s' if self._cert else ''}://{f'[{host}]' if is_ipv6 else host}:{self._socket.getsockname()[1]}"
        self.address = (settings.serve_url or own).rstrip("/")
        self._server: uvicorn.Server | None = None
        self._services: ConsumerServices | None = None
        self._computers = Computers()

    def serve(self, services: ConsumerServices) -> WebServer:
        """Create the app that `run` serves with these services, and return this server. Serves nothing yet. May
        increase the process's limit of open files; a limit that stays too low reduces the numbers of requests and
        connections, and is logged. Must be called before `run`.
        """
        self._services = services
        max_requests, max_without_request = _connections(self._settings.serve_connections)
        slots = Slots(max_requests, self._settings.serve_connections_of_subject)
        config = uvicorn.Config(
            create_app(services, self._secret, slots, computers=self._computers, address=self.address),
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
            ssl_certfile=self._cert,
            ssl_keyfile=self._key,
        )
        self._server = _GuardedServer(config, Lobby(max_without_request))
        return self

    def run(self) -> None:
        """Serve in this thread until `stop`, then close the computations and the services' `api`. Returns at once if `serve` was not
        called.
        """
        if self._server is None or self._services is None:
            return
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._computers.close()
            self._services.api.close()

    def stop(self) -> None:
        """Make `run` return. Requests in progress have 2 s to finish. The feeds end their streams themselves."""
        if self._server is not None:
            self._server.should_exit = True


class _GuardedServer(uvicorn.Server):
    """A uvicorn server with guarded connections."""

    def __init__(self, config: uvicorn.Config, lobby: Lobby) -> None:
        super().__init__(config)
        self._lobby = lobby

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Run the startup of the app, and then accept connections on `sockets`, each with the limits of
        `GuardedProtocol`; None: on no socket. uvicorn calls this method in place of its own, which cannot pass the
        lobby to a protocol. A TLS handshake may take `_HANDSHAKE_SECONDS`, instead of a minute as in uvicorn.

        Raises SystemExit if the startup of the app fails, and the errors of `loop.create_server`, such as OSError,
        for a socket that cannot be used.
        """
        await super().startup(sockets=[])

        def guarded() -> GuardedProtocol:
            return GuardedProtocol(
                lobby=self._lobby,
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        loop, context = asyncio.get_running_loop(), self.config.ssl
        for listener in sockets or []:
            self.servers.append(
                await loop.create_server(
                    guarded,
                    sock=listener,
                    ssl=context,
                    backlog=_BACKLOG,
                    ssl_handshake_timeout=None if context is None else _HANDSHAKE_SECONDS,
                )
            )


def _connections(wanted: int) -> tuple[int, int]:
    """Return the limit of requests in progress and the limit of connections without a request. These are `wanted` and
    `MOST_WITHOUT_REQUEST` if the process may open enough files. A limit of open files that is too low is first increased, as far as the
    hard limit allows.

    If that is not far enough, a warning is logged. The second result is then cut to a quarter of the allowed files, and the first to the
    files that remain without the second result and a reserve for other files, at least 1. One result may keep its full value.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + MOST_WITHOUT_REQUEST + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted, MOST_WITHOUT_REQUEST
    allowed = files if hard == resource.RLIM_INFINITY else min(files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed >= files:
        return wanted, MOST_WITHOUT_REQUEST
    waiting = min(MOST_WITHOUT_REQUEST, allowed // 4)
    served = max(1, min(wanted, allowed - waiting - min(_OTHER_FILES, allowed // 4)))
    log.warning("open files limited", allowed=allowed, wanted=files, connections=served)
    return served, waiting


def _cert_and_key(settings: Settings) -> tuple[str | None, str | None]:
    """Return the paths of certificate and key; both None if the server uses plain HTTP. Raises InvalidInput for one without the other, and
    for files that cannot be read, need a password or do not match.
    """
    cert, key = settings.serve_cert_file, settings.serve_key_file
    if cert is None and key is None:
        return None, None
    if cert is None or key is None:
        raise InvalidInput(
            "CLEAVE_SERVE_CERT_FILE and CLEAVE_SERVE_KEY_FILE go together; set both, or neither"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            cert, key, password=""
        )  # an empty password, because OpenSSL would prompt for one
    except OSError as error:
        raise InvalidInput(
            f"certificate {cert} with key {key} cannot be used: {error}; give two PEM files that belong together"
        ) from error
    return cert, key


def web_server(settings: Settings) -> WebServer | None:
    """Return the bound server for consumers. None if no secret for tokens is set. Raises the errors of `WebServer`."""
    secret = settings.api_secret
    return None if secret is None else WebServer(settings, secret.get_secret_value())
