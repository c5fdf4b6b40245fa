"""Samples of keys whose reader fails after it was opened."""

from __future__ import annotations

from typing import cast
from unittest.mock import Mock

import pulsar
import pytest

from controller.dataplane.pulsar import key_samples
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.key_samples import KeySamples
from controller.domain.errors import DataPlaneUnavailable, SegmentTerminated

LOG = "persistent://t/n/x-segment-0000-ffff-0"


class Statistics:
    """In place of `AdminCalls`: one topic with two messages."""

    call_timeout_seconds = 5.0

    def deadline(self) -> Deadline:
        """As `AdminCalls.deadline`."""
        return Deadline(self.call_timeout_seconds)

    def ask(self, ask: Ask, _deadline: Deadline) -> Answer:
        """As `AdminCalls.ask`."""
        internal = {
            "lastConfirmedEntry": "3:1",
            "entriesAddedCounter": 2,
            "ledgers": [{"ledgerId": 3, "entries": 0}],
        }
        document = internal if "internalStats" in ask.path else {"msgInCounter": 2, "bytesInCounter": 20}
        return Answer(200, document, "", {})


@pytest.mark.parametrize(
    ("error", "mapped"),
    [(pulsar.AlreadyClosed, DataPlaneUnavailable), (pulsar.TopicTerminated, SegmentTerminated)],
)
def test_an_error_of_reading_is_cleaves_and_the_reader_is_closed(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], mapped: type[Exception]
) -> None:
    reader = Mock()
    reader.read_next.side_effect = error
    monkeypatch.setattr(key_samples, "_open", lambda *_: reader)
    access = PulsarAccess(admin_url="http://127.0.0.1:1", service_url="pulsar://127.0.0.1:1")
    samples = KeySamples(access, cast(AdminCalls, Statistics()))

    with pytest.raises(mapped, match=f"sample keys of {LOG}: {error.__name__}"):
        samples.sample(LOG, most=10)
    samples.close()
    assert reader.close.called
