"""Readers at a position that the broker refuses: each refusal of the library becomes an error of Cleave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from unittest.mock import Mock

import pulsar
import pytest

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.domain.errors import DataPlaneUnavailable

LOG = "persistent://t/n/x"


@pytest.fixture
def client() -> Iterator[PulsarLogClient]:
    """Of a broker that nobody asks."""
    access = PulsarAccess(admin_url="http://127.0.0.1:1", service_url="pulsar://127.0.0.1:1")
    with closing(PulsarLogClient(access)) as client:
        yield client


@pytest.mark.parametrize("refusal", [pulsar.ConsumerBusy, pulsar.ConsumerAssignError])
def test_a_refusal_is_an_error_that_passes_and_names_the_log(
    client: PulsarLogClient, monkeypatch: pytest.MonkeyPatch, refusal: type[Exception]
) -> None:
    monkeypatch.setattr(client._cursors, "is_at_end", lambda *_: False)
    monkeypatch.setattr(client._connections, "open_alone", Mock(side_effect=refusal()))

    with pytest.raises(DataPlaneUnavailable, match=f"read {LOG}: {refusal.__name__}; "):
        client.open_reader_at(LOG, None, on_arrival=lambda: None)
