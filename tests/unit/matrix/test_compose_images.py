"""The images that the cell `compose` pulls or substitutes are those that the stack uses."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.matrix.compose import BASES

ROOT = Path(__file__).parents[3]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
NOT_STARTED = {"grafana", "pulsar"}


def test_the_bases_are_the_images_of_the_services_that_the_cell_starts_and_of_the_build() -> None:
    built = {service["image"] for service in SERVICES.values() if "build" in service}
    started = {service["image"] for name, service in SERVICES.items() if name not in NOT_STARTED}
    stages = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    assert set(BASES) == (started - built) | set(stages)


def test_each_base_has_a_substitute() -> None:
    script = (ROOT / "tests" / "matrix" / "containers" / "substitutes.sh").read_text()

    assert [base for base in BASES if f"={base}\n" not in script] == []
