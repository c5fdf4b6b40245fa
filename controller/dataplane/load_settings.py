"""Contains the settings for reading load from a Pulsar cluster's brokers. Separate from the readers, which
import an HTTP library.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Settings for reading load from brokers."""

    page_seconds: float = 8.0
    """Time limit for the metrics pages of all brokers, which are read at the same time. A `sample` that reads pages
    waits for them half a second longer (`scraper.GRACE_SECONDS`): 8.5 s in all by default, more than the time-out of
    other calls, because a page of many topics is long.
    """
    pages_from: int = 200
    """Number of logs from which on the brokers' metrics pages are read; fewer logs are read one by one from
    their statistics. 0: always pages. Has no effect on `pulsar_scalable`, which always reads pages.
    """
    broker_url: str | None = None
    """Pattern of the brokers' web addresses with `{host}` and `{port}` (`BrokerList`)."""
    cluster: str | None = None
    """Name of the cluster to which the brokers belong, if the admin address serves several."""
