"""The matrix tries what the metadata allows: its smallest is the lower bound, its largest below the upper one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.matrix.versions import LARGEST, SMALLEST

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(line) for extra in ("embedded", "airflow", "spark") for line in EXTRAS[extra]]


@pytest.mark.parametrize("package", sorted(SMALLEST))
def test_its_smallest_and_largest_are_those_of_the_metadata(package: str) -> None:
    [allowed] = [one.specifier for one in REQUIREMENTS if one.name == package]
    bounds = {bound.operator: Version(bound.version) for bound in allowed}

    assert bounds[">="] == Version(SMALLEST[package])
    assert LARGEST[package] in allowed
    major, minor = Version(LARGEST[package]).release[:2]
    assert bounds["<"] == Version(f"{major}.{minor + 1}")


@pytest.mark.parametrize("version", [SMALLEST["apache-airflow"], LARGEST["apache-airflow"]])
def test_each_airflow_has_its_pins(version: str) -> None:
    pins = (Path(__file__).parents[2] / "matrix" / f"airflow-{version}.txt").read_text().splitlines()

    assert {f"apache-airflow=={version}", f"sqlalchemy=={SMALLEST['sqlalchemy']}"} <= set(pins)
    assert not [pin for pin in pins if pin.startswith("pyspark-client")]
