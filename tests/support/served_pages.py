"""Cleave's pages on a port of loopback, below a path as in Airflow, for a real browser. There is no Airflow."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from controller.devstack.ports import LOOPBACK
from controller.pages.app import pages_app
from controller.pages.context import PageContext
from tests.support.waiting import wait_until

PREFIX = "/cleave"


@contextmanager
def served_pages(where: Callable[[], Mapping[str, Any]]) -> Iterator[str]:
    """Serve the pages and yield their address, without a slash at its end. Requests of a form to Airflow are answered with 404."""
    context, outer = PageContext(where), FastAPI()
    outer.mount(PREFIX, pages_app(context))
    with socket.create_server((LOOPBACK, 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(outer, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            wait_until(lambda: server.started, message="the pages are served")
            yield f"http://{LOOPBACK}:{listening.getsockname()[1]}{PREFIX}"
        finally:
            server.should_exit = True
            thread.join()
            context.close()
