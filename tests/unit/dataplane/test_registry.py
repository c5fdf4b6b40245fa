"""Data planes by name, and the libraries that each needs."""

from __future__ import annotations

import sys

import pytest

from controller.dataplane.registry import (
    PlaneSettings,
    build_log_client,
    dead_letter_topic,
    demand_dead_letters,
)
from controller.domain.errors import InvalidInput, Unsupported


def test_libraries_that_are_not_installed_are_named_with_the_extra_that_brings_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "controller.dataplane.embedded", None)
    settings = PlaneSettings(embedded_url="postgresql://localhost/x")

    with pytest.raises(Unsupported, match=r"run pip install 'pulsar-cleave\[embedded\]'"):
        build_log_client("embedded", settings)


@pytest.mark.parametrize("data_plane", ["embedded", "pulsar"])
def test_names_that_leave_no_room_for_the_name_of_the_dead_letters_are_refused(data_plane: str) -> None:
    topic = "topic://t/n/" + "x" * 480
    room = 1000 - len(dead_letter_topic(data_plane, topic, ""))

    demand_dead_letters(data_plane, topic, "s" * room)
    with pytest.raises(InvalidInput, match=r"1001 bytes; .*at most 1000"):
        demand_dead_letters(data_plane, topic, "s" * (room + 1))


def test_a_plane_without_dead_letters_has_no_limit_for_them() -> None:
    demand_dead_letters("pulsar_scalable", "topic://t/n/x", "s" * 2_000)
