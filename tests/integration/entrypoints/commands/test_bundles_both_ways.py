"""What people look at of bundles prints the same, whether it is asked of the database or of `cleave serve`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.bundle_desk import CLUSTER, NAMESPACE, bundle_desk
from tests.support.over_http import OverHttp, serving

LOOKS = (
    "bundles show",
    f"bundles show {NAMESPACE}",
    "bundles show --limit 1",
    "bundles proposals",
    f"bundles proposals {NAMESPACE} --state proposed --cycle 1",
    "bundles proposals --state refused --state applied",
    "bundles proposals --limit 1",
)


def test_each_look_at_bundles_prints_the_same(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        bundle_desk(database, tmp_path, capsys, monkeypatch) as desk,
        serving(database, tmp_path, pulsar_cluster=CLUSTER) as server,
    ):
        desk.uneven()
        assert desk.cleave.json("bundles", "propose")["proposals"]
        http = OverHttp(desk.cleave, capsys, monkeypatch, server)

        for line in LOOKS:
            for form in ((), ("--json",)):
                there, here = (_ageless(way.ok(*line.split(), *form)) for way in (http, desk.cleave))
                assert there == here, line
        assert len(json.loads(http.ok("bundles", "show", "--json"))) == 2
        assert http.refused("bundles", "show", "acme/none") == desk.cleave.refused(
            "bundles", "show", "acme/none"
        )


def _ageless(text: str) -> str:
    return re.sub(r"\d+ (s|min) ago *|\"age_seconds\": \d+", "", text)
