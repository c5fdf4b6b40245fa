"""Tells whether the window of an aggregation run still may be merged: windows are merged in the order of their ends."""

from __future__ import annotations

from datetime import datetime

from controller import telemetry
from controller.clock import to_ms

log = telemetry.get_logger(__name__)


def is_late(run_id: str, window_end_ms: int, watermark: datetime | None) -> bool:
    """Return True, and log it, if the window does not end after `watermark`, the end of the last merged window. Without
    a watermark no window is late.
    """
    last_end_ms = None if watermark is None else to_ms(watermark)
    if last_end_ms is None or last_end_ms < window_end_ms:
        return False
    log.warning(
        "window not aggregated, because it does not end after the last merged window",
        run_id=run_id,
        window_end_ms=window_end_ms,
        last_window_end_ms=last_end_ms,
    )
    return True
