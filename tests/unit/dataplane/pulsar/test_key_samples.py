"""Samples of keys whose reader fails after it was opened."""

from __future__ import annotations

from contextlib import closing
from unittest.mock import Mock

import pulsar
import pytest

from controller.dataplane.pulsar import key_samples
from controller.dataplane.pulsar.admin import AdminCalls
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.key_samples import KeySamples
from controller.domain.errors import DataPlaneUnavailable, SegmentTerminated
from tests.support.scripted_broker import scripted_broker

LOG = "persistent://t/n/x-segment-0000-ffff-0"
TWO_MESSAGES = {
    "state": "LedgerOpened",
    "lastConfirmedEntry": "3:1",
    "numberOfEntries": 2,
    "entriesAddedCounter": 2,
    "ledgers": [{"ledgerId": 3, "entries": 0}],
    "cursors": {},
}


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
    with scripted_broker() as broker:
        broker.behaves(broker.says(200, TWO_MESSAGES), broker.says(200, {}))
        access = PulsarAccess(admin_url=broker.url, service_url="pulsar://127.0.0.1:1")
        with closing(AdminCalls(access, call_timeout_seconds=20.0)) as calls:
            samples = KeySamples(access, calls)

            with pytest.raises(mapped, match=f"sample keys of {LOG}: {error.__name__}"):
                samples.sample(LOG, most=10)
            samples.close()
    assert reader.close.called


@pytest.mark.parametrize(
    ("internal", "stats"),
    [({"state": "LedgerOpened"}, {}), (TWO_MESSAGES, {"msgInCounter": "many"}), (TWO_MESSAGES, [])],
)
def test_incomplete_statistics_are_an_error_that_passes(internal: object, stats: object) -> None:
    with scripted_broker() as broker:
        broker.behaves(broker.says(200, internal), broker.says(200, stats))
        access = PulsarAccess(admin_url=broker.url, service_url="pulsar://127.0.0.1:1")
        with closing(AdminCalls(access, call_timeout_seconds=20.0)) as calls:
            samples = KeySamples(access, calls)

            with pytest.raises(
                DataPlaneUnavailable, match=f"sample keys of {LOG}: .*lacks the requested data"
            ):
                samples.sample(LOG, most=10)
            samples.close()
