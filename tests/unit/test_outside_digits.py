"""Numbers in outside text: digits of other scripts, and more digits than a number may have, are refused in Cleave's own words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.dataplane.pulsar_load.metrics_page import Page, TopicCounters, watched_labels
from controller.domain.errors import InvalidInput
from controller.postgres.address import DatabaseAddress
from controller.questions import spans
from controller.tasks.ended_operation import ended_operation
from controller.web.body_size import SmallRequests

HOSTILE = ("²", "١٢", "１７", "9" * 5_000, "9" * 19, "-1", "1_0", "")


@pytest.mark.parametrize("text", HOSTILE)
def test_an_operation_of_such_a_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="whole number"):
        ended_operation(dsn="postgresql://localhost/none", extras={}, operation_id=text)


@pytest.mark.parametrize("text", HOSTILE)
def test_an_epoch_of_such_a_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="neither an epoch"):
        spans.moment(text)


@pytest.mark.parametrize("port", [one for one in HOSTILE if one])
def test_a_port_of_such_a_number_is_refused(port: str) -> None:
    with pytest.raises(InvalidInput):
        DatabaseAddress.of(f"postgresql://cleave@db:{port}/cleave")


@pytest.mark.parametrize("length", HOSTILE)
def test_a_body_of_such_a_length_is_refused_and_not_read(length: str) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        pytest.fail("the body is read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", length.encode("utf-8"))]}
    asyncio.run(SmallRequests(receive)(scope, receive, send))  # type: ignore[arg-type]

    assert sent[0]["status"] == 413


@pytest.mark.parametrize("value", ["9" * 5_000, "9" * 19, "1e999", "1.2.3", "1ee5"])
def test_such_a_counter_on_a_page_silences_its_log_alone(value: str) -> None:
    logs = ["persistent://a/b/odd", "persistent://a/b/c"]
    page = Page(watched_labels(logs))
    for log, number in zip(logs, (value, "7"), strict=True):
        page.feed(f'pulsar_in_messages_total{{cluster="c",topic="{log}"}} {number}\n'.encode())

    assert page.topics == {logs[1]: TopicCounters(msg_in=7)}


def test_a_process_that_began_after_the_end_of_the_calendar_began_at_no_known_time() -> None:
    page = Page({})
    page.feed(b"process_start_time_seconds 9e15\n")

    assert page.started_at_ms is None
