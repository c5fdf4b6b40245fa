"""Data planes by name, and the libraries that each needs."""

from __future__ import annotations

import sys

import pytest

from controller.dataplane.registry import PlaneSettings, build_log_client
from controller.domain.errors import Unsupported


def test_libraries_that_are_not_installed_are_named_with_the_extra_that_brings_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "controller.dataplane.embedded", None)
    settings = PlaneSettings(embedded_url="postgresql://localhost/x")

    with pytest.raises(Unsupported, match=r"run pip install 'pulsar-cleave\[embedded\]'"):
        build_log_client("embedded", settings)
