"""Data planes by the name that is stored with each topic. Adapters are imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from controller.dataplane.base import DataPlane, LogClient
from controller.domain.errors import Unsupported

Factory = TypeVar("Factory")


def _embedded(url: str, call_timeout_seconds: float) -> DataPlane:
    from controller.dataplane.embedded import EmbeddedDataPlane

    return EmbeddedDataPlane(url, call_timeout_seconds=call_timeout_seconds)


def _embedded_logs(url: str, call_timeout_seconds: float) -> LogClient:
    from controller.dataplane.embedded import EmbeddedLogClient

    return EmbeddedLogClient(url, call_timeout_seconds=call_timeout_seconds)


DATA_PLANES: Mapping[str, Callable[[str, float], DataPlane]] = {"embedded": _embedded}
LOG_CLIENTS: Mapping[str, Callable[[str, float], LogClient]] = {"embedded": _embedded_logs}


def open_data_plane(name: str, url: str, *, call_timeout_seconds: float) -> DataPlane:
    """The adapter of that name for the logs at `url`; Unsupported, listing the known ones, for any other."""
    return _known(DATA_PLANES, name)(url, call_timeout_seconds)


def open_log_client(name: str, url: str, *, call_timeout_seconds: float) -> LogClient:
    """The application's side of the same data plane; errors as for `open_data_plane`."""
    return _known(LOG_CLIENTS, name)(url, call_timeout_seconds)


def _known(factories: Mapping[str, Factory], name: str) -> Factory:
    try:
        return factories[name]
    except KeyError:
        known = ", ".join(sorted(factories))
        raise Unsupported(f"data plane {name!r} is unknown here; use one of {known}") from None
