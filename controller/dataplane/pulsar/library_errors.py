"""Maps errors of the client library to errors of Cleave, in one table."""

from __future__ import annotations

from collections.abc import Mapping

import pulsar

from controller.domain.errors import (
    CleaveError,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    InvalidInput,
    SegmentNotFound,
    SegmentTerminated,
    SubscriptionNotFound,
    Terminal,
    Unsupported,
)

CONSUMER_LIMIT_REACHED = "the topic or the subscription has as many consumers as the broker allows"
CONSUMER_LIMIT_ADVICE = "close a consumer, or raise maxConsumersPerTopic or maxConsumersPerSubscription"
"""A cause of the library's ConsumerBusy, and the next step. ConsumerBusy also reports that a consumer of another type
is connected, and contains no text that tells the causes apart.
"""
_TABLE: Mapping[type[Exception], tuple[type[CleaveError], str]] = {
    pulsar.TopicTerminated: (SegmentTerminated, "look up the layout again and send to its successors"),
    pulsar.TopicNotFound: (SegmentNotFound, "it was deleted or never created: look up the layout again"),
    pulsar.SubscriptionNotFound: (SubscriptionNotFound, "create the subscription first"),
    pulsar.Timeout: (DataPlaneTimeout, "no answer in time: check the state before repeating"),
    pulsar.AuthenticationError: (
        Terminal,
        "the broker does not accept the credentials: set CLEAVE_PULSAR_TOKEN",
    ),
    pulsar.AuthorizationError: (Terminal, "the token's role may neither produce nor consume here: grant it"),
    pulsar.CryptoError: (
        InvalidInput,
        "messages are not sent without encryption: set CLEAVE_PULSAR_ENCRYPTION_PUBLIC_KEY_FILE to a public key, PEM",
    ),
    pulsar.InvalidUrl: (InvalidInput, "correct CLEAVE_PULSAR_SERVICE_URL"),
    pulsar.InvalidTopicName: (InvalidInput, "rename the topic"),
    pulsar.InvalidConfiguration: (InvalidInput, "correct the settings of this client"),
    pulsar.MessageTooBig: (InvalidInput, "send smaller messages, or raise the broker's maxMessageSize"),
    pulsar.IncompatibleSchema: (
        Terminal,
        "the namespace enforces a schema: turn schemaValidationEnforced off, or produce with that schema",
    ),
    pulsar.ConsumerBusy: (DataPlaneUnavailable, f"{CONSUMER_LIMIT_REACHED}: {CONSUMER_LIMIT_ADVICE}"),
    pulsar.NotAllowedError: (Terminal, "the namespace's policies forbid it"),
    pulsar.UnsupportedVersionError: (Unsupported, "this broker is too old: Cleave needs Pulsar 3.0 or newer"),
}
"""Errors of the library, mapped to Cleave's errors and the next step. Errors that are not listed count as an
outage and are retried.
"""


def mapped(error: Exception, purpose: str) -> CleaveError:
    """Return, without raising it, Cleave's error for an error of the client library, as `_TABLE` says;
    DataPlaneUnavailable for an error that the table does not list. `purpose` begins the message. A SegmentTerminated
    has no delay, because the layout can be looked up at once.
    """
    kind, advice = _TABLE.get(type(error), (DataPlaneUnavailable, "try again"))
    text = f"{purpose}: {type(error).__name__}; {advice}"
    return SegmentTerminated(text, delay_seconds=0.0) if kind is SegmentTerminated else kind(text)


def mapped_result(result: pulsar.Result, purpose: str) -> CleaveError:
    """Return Cleave's error for the result code of an asynchronous call, as `mapped` does."""
    kind = getattr(pulsar, result.name, None)
    return mapped(kind() if isinstance(kind, type) else RuntimeError(result.name), purpose)
