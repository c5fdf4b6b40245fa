"""Log settings are global to a process, and Airflow has its own in the processes that test DAGs. This module restores them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def logging_kept() -> Iterator[None]:
    """Restore the log settings at the end of the block."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    root, handlers = logging.getLogger(), [*logging.getLogger().handlers]
    try:
        yield
    finally:
        root.handlers = handlers
        logging.captureWarnings(False)
        if was_configured:
            structlog.configure(**before)
        else:
            structlog.reset_defaults()
