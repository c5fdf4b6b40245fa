"""Log lines go where standard error is now, and are one JSON object each when programs read them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest

from controller import telemetry
from tests.support.log_settings import logging_kept


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Leave what other tests expect."""
    with logging_kept():
        yield


def test_a_stream_that_was_closed_since_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    telemetry.configure_logging()
    log = telemetry.get_logger("somebody")
    log.info("before")
    first.close()
    monkeypatch.setattr(sys, "stderr", second)

    log.info("after", figure=7)

    assert "after" in second.getvalue()
    assert "figure=7" in second.getvalue()


def test_json_lines_are_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    telemetry.configure_logging(json_lines=True)

    telemetry.get_logger("somebody").warning("tick failed", skipped=2)

    line = json.loads(stream.getvalue())
    assert (line["event"], line["skipped"], line["level"]) == ("tick failed", 2, "warning")
