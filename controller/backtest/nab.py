"""The recorded loads of the project's figures: three traces of the Numenta Anomaly Benchmark.

They are taxi passengers in New York (one reading per 30 minutes), requests at a load balancer (5 minutes) and the sum
of mentions of ten companies in tweets (5 minutes). `load_series` scales them and converts them to equal steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from controller.backtest.load_series import LoadSeries, read_csv

_TICKERS = ("AAPL", "AMZN", "CRM", "CVS", "FB", "GOOG", "IBM", "KO", "PFE", "UPS")

FILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "taxi": ("realKnownCause/nyc_taxi.csv",),
        "tweets": tuple(f"realTweets/Twitter_volume_{ticker}.csv" for ticker in _TICKERS),
        "elb": ("realAWSCloudwatch/elb_request_count_8c0756.csv",),
    }
)
"""The files of each trace below the directory of the benchmark's data."""


def trace(traces: Path, name: str, **options: Any) -> LoadSeries:
    """Return the recorded load with this name, a key of `FILES`. `traces` is the directory that contains `nab`; `options`
    are keyword arguments of `read_csv`, such as `days`. Raises InvalidInput and OSError as `read_csv` does.
    """
    return read_csv(name, [traces / "nab" / file for file in FILES[name]], **options)
