"""The plane whose calls fail on purpose counts every call that reaches a data plane."""

from __future__ import annotations

from controller.dataplane.base import SetWiseDataPlane
from tests.support.faulty_data_plane import CALLS

STAY_INSIDE = {"backing_topic", "close"}


def test_every_call_of_the_protocol_can_fail() -> None:
    calls = {
        name
        for one in SetWiseDataPlane.__mro__
        for name, value in vars(one).items()
        if callable(value) and not name.startswith("_")
    }

    assert "describe_logs" in calls
    assert calls - STAY_INSIDE <= CALLS
