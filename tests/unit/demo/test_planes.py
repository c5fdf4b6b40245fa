"""The demo's data planes: which there are, and what is said in one line where one cannot be had."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.registry import PLANE_NAMES, PlaneSettings, build_log_client, build_planes
from controller.demo import __main__ as demo
from controller.demo.planes import EMBEDDED, NAMESPACE, PLANES, plane_named
from controller.demo.story import TOPIC
from controller.domain.errors import InvalidInput


def test_every_plane_is_one_that_cleave_and_its_clients_know() -> None:
    access = PulsarAccess(admin_url="http://broker:8080", service_url="pulsar://broker:6650")
    settings = PlaneSettings(embedded_url="postgresql://localhost/logs", pulsar=access)

    planes = build_planes(settings)
    assert set(PLANES) <= planes.keys() == set(PLANE_NAMES)
    for plane in planes.values():
        plane.close()
    for name in PLANES:
        build_log_client(name, settings).close()


def test_no_name_is_the_embedded_plane_which_starts_nothing(tmp_path: Path) -> None:
    plane = plane_named("")

    assert plane is plane_named("embedded") is EMBEDDED
    with ExitStack() as running:
        assert plane.start(running, tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_the_topic_is_in_the_namespace_that_is_made_for_it() -> None:
    assert TOPIC.startswith(f"topic://{NAMESPACE}/")


def test_an_unknown_plane_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="PLANE=kafka is unknown; choose one of embedded, pulsar"):
        plane_named("kafka")


@pytest.mark.parametrize(
    ("plane", "code", "line"),
    [("kafka", 2, "PLANE=kafka is unknown"), ("pulsar", 1, "apt install maven")],
    ids=["unknown", "no Maven"],
)
def test_a_plane_that_cannot_be_had_ends_the_demo_before_anything_runs(
    plane: str,
    code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "PLANE": plane,
        "PATH": "",
        "CLEAVE_CACHE_DIR": str(tmp_path),
        "COLUMNS": "300",
    }.items():
        monkeypatch.setenv(name, value)

    assert demo.main() == code

    said = [one for one in capsys.readouterr().out.splitlines() if one.startswith("demo: ")]
    assert len(said) == 1
    assert line in said[0]
    assert not (tmp_path / demo.DIRECTORY).exists()
