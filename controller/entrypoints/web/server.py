"""Serves the app in a thread of its own, beside the worker's loop, on a socket that is bound before the worker announces it."""

from __future__ import annotations

import socket
import ssl

import uvicorn

from controller.bootstrap import ConsumerServices
from controller.domain.errors import InvalidInput
from controller.entrypoints.web.access import demand_secret
from controller.entrypoints.web.app import create_app
from controller.services.computing.computers import Computers
from controller.settings import Settings

_BACKLOG = 2048
"""Connections that wait to be taken; as many as uvicorn has by itself."""


class WebServer:
    """Bound at once, served by `run`."""

    def __init__(self, settings: Settings, secret: str) -> None:
        """Raises InvalidInput for an address that cannot be had, or a secret that is too short."""
        demand_secret(secret)
        self._cert, self._key = _cert_and_key(settings)
        self._secret, self._most_at_once = secret, settings.serve_connections
        host, port = settings.serve_host, settings.serve_port
        if host in ("0.0.0.0", "::", "") and settings.serve_url is None:  # noqa: S104 - refused
            raise InvalidInput(
                f"CLEAVE_SERVE_HOST is {host!r}, every address of this machine, and consumers are to be told one: set "
                "CLEAVE_SERVE_URL to where they reach this worker"
            )
        is_long = ":" in host
        self._socket = socket.socket(socket.AF_INET6 if is_long else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(_BACKLOG)  # who comes before the server has started waits a moment
        except OSError as error:
            self._socket.close()
            raise InvalidInput(
                f"consumers cannot be served at {host}:{port}: {error}; set CLEAVE_SERVE_HOST and CLEAVE_SERVE_PORT"
            ) from error
        own = f"http{'s' if self._cert else ''}://{f'[{host}]' if is_long else host}:{self._socket.getsockname()[1]}"
        self.address = (settings.serve_url or own).rstrip("/")
        self._server: uvicorn.Server | None = None
        self._services: ConsumerServices | None = None
        self._computers = Computers()

    def serve(self, services: ConsumerServices) -> WebServer:
        """Itself, with what it is to serve."""
        self._services = services
        app = create_app(services, self._secret, most_at_once=self._most_at_once, computers=self._computers)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
            ssl_certfile=self._cert,
            ssl_keyfile=self._key,
        )
        self._server = uvicorn.Server(config)
        return self

    def run(self) -> None:
        """Until `stop`."""
        if self._server is None or self._services is None:
            return
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._computers.close()
            self._services.api.close()

    def stop(self) -> None:
        """Finish what is being answered and leave; streams were ended by whoever pushes into them."""
        if self._server is not None:
            self._server.should_exit = True


def _cert_and_key(settings: Settings) -> tuple[str | None, str | None]:
    """None where HTTP is served. Raises InvalidInput for one without the other, or files that do not belong together."""
    cert, key = settings.serve_cert_file, settings.serve_key_file
    if cert is None and key is None:
        return None, None
    if cert is None or key is None:
        raise InvalidInput(
            "CLEAVE_SERVE_CERT_FILE and CLEAVE_SERVE_KEY_FILE go together; set both, or neither"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")  # else it would ask
    except OSError as error:
        raise InvalidInput(
            f"certificate {cert} with key {key} cannot be used: {error}; give two PEM files that belong together"
        ) from error
    return cert, key


def web_server(settings: Settings) -> WebServer | None:
    """What serves consumers, bound; None where no secret for their tokens is set."""
    secret = settings.api_secret
    return None if secret is None else WebServer(settings, secret.get_secret_value())
