"""Each status a broker answers means one thing: come again after so long, or never, with the next move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from controller.dataplane.pulsar.http_errors import LONGEST_DELAY_SECONDS, refusal
from controller.domain.errors import (
    CleaveError,
    Conflict,
    DataPlaneUnavailable,
    NotFound,
    Retryable,
    SegmentNotFound,
    SubscriptionNotFound,
    Terminal,
    Unsupported,
)


@pytest.mark.parametrize(
    ("status", "reason", "kind", "advice"),
    [
        (401, "HTTP 401 Unauthorized", Terminal, "CLEAVE_PULSAR_TOKEN"),
        (
            401,
            "Unauthorized to validateTopicOperation for operation [PEEK_MESSAGES] on topic [persistent://t/n/x]",
            Terminal,
            "the right to consume",
        ),
        (
            401,
            "Unauthorized to validateTopicOperation for operation [UNLOAD] on topic [persistent://t/n/x]",
            Terminal,
            "admin of the tenant",
        ),
        (403, "Don't have permission", Terminal, "grant it the namespace"),
        (404, "Topic persistent://t/n/x not found", SegmentNotFound, "look up the layout again"),
        (404, "Subscription s not found for topic x", SubscriptionNotFound, "create the subscription first"),
        (404, "Namespace not found", NotFound, "cleave doctor --fix"),
        (404, "Tenant does not exist", NotFound, "create the tenant"),
        (405, "Method Not Allowed", Unsupported, "Pulsar 3.0"),
        (409, "Concurrent modification", DataPlaneUnavailable, "at this moment: try again"),
        (409, "", DataPlaneUnavailable, "at this moment: try again"),
        (412, "Topic does not exist and cannot be auto-created", SegmentNotFound, "look up the layout"),
        (412, "Failed to find ownership for topic", DataPlaneUnavailable, "another broker: try again"),
        (
            412,
            "Failed for Subscription Busy: Failed to fence subscription",
            DataPlaneUnavailable,
            "connecting or disconnecting: try again",
        ),
        (412, "Exceed maximum number of topics in namespace.", Conflict, "limits"),
        (408, "", DataPlaneUnavailable, "gave up waiting: try again"),
        (429, "Too many requests", DataPlaneUnavailable, "limits the rate of requests: try again later"),
        (307, "redirected 5 times", DataPlaneUnavailable, "ownership is changing: try again"),
        (400, "bad", Terminal, "refuses the request permanently"),
        (418, "a teapot", Terminal, "refuses the request permanently"),
        (500, "boom", DataPlaneUnavailable, "check its log"),
        (503, "ServiceUnitNotReady", DataPlaneUnavailable, "check its log"),
        (600, "?", DataPlaneUnavailable, "not expected for this request"),
    ],
)
def test_each_status(status: int, reason: str, kind: type[CleaveError], advice: str) -> None:
    error = refusal("create persistent://t/n/x", status, reason)

    assert type(error) is kind
    assert str(error).startswith(f"create persistent://t/n/x: answered {status} (")
    assert reason in str(error)
    assert advice in str(error)


@pytest.mark.parametrize(
    ("header", "delay_seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("-3", 0.0),
        ("86400", LONGEST_DELAY_SECONDS),
        ("inf", LONGEST_DELAY_SECONDS),
        ("soon", 1.0),
        ("nan", 1.0),
        ("1 Jan 99999999999999999999 00:00:00 GMT", 1.0),
        (None, 1.0),
    ],
)
def test_a_broker_may_say_when_to_come_again(header: str | None, delay_seconds: float) -> None:
    error = refusal("sample x", 429, "", retry_after=header)

    assert isinstance(error, Retryable)
    assert error.delay_seconds == delay_seconds


@pytest.mark.parametrize("zone", ["GMT", "+0000", "-0000", ""])
def test_the_moment_may_be_a_date(zone: str) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    error = refusal("sample x", 503, "", retry_after=f"{at.removesuffix('GMT')}{zone}".strip())

    assert isinstance(error, Retryable)
    assert 20.0 < error.delay_seconds <= 30.0


def test_patience_is_no_property_of_what_never_works() -> None:
    assert not isinstance(refusal("x", 403, "", retry_after="5"), Retryable)
