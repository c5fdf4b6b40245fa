"""Log settings are global to a process, and Airflow has its own in the processes that test DAGs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def logging_kept() -> Iterator[None]:
    """Whatever is configured inside is forgotten afterwards."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    try:
        yield
    finally:
        if was_configured:
            structlog.configure(**before)
        else:
            structlog.reset_defaults()
