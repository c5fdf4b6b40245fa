"""How a Pulsar cluster's brokers are read for load. Apart from the readers, which take an HTTP library to load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How load is read from brokers."""

    page_seconds: float = 8.0
    """For a broker's whole metrics page."""
    pages_from: int = 200
    """From this many logs on they are read from metrics pages, fewer one by one from their statistics. 0: always from
    pages.
    """
    broker_url: str | None = None
    """Pattern of brokers' web addresses with `{host}` and `{port}`, see `BrokerList`."""
    cluster: str | None = None
    """The cluster whose brokers these are, where the admin address serves several."""
