"""The Java and Go programs on the page about standard clients compile."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from controller.devstack.pulsar.jars import PULSAR_4
from tests.support.brokers import demand_jars
from tests.support.stock_clients import GO, JAVA, ROOT, build, demand_go, demand_javac

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]  # the first run downloads the Pulsar clients
PAGE = ROOT / "docs/how-to/consume-with-stock-clients.md"


def blocks(language: str) -> list[str]:
    """The page's consumer and producer in that language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(found) == 2
    return found


def test_java(tmp_path: Path) -> None:
    for source in blocks(JAVA):
        [name] = re.findall(r"^public class (\w+)", source, re.MULTILINE)
        (tmp_path / f"{name}.java").write_text(source)
    sources = [*tmp_path.glob("*.java"), *(ROOT / "clients/java/src/main").rglob("*.java")]

    build([demand_javac(), "-cp", f"{demand_jars(PULSAR_4)}/*", "-d", tmp_path / "classes", *sources], ROOT)


def test_go(tmp_path: Path) -> None:
    """In a module of their own, with the versions of the tests' programs."""
    versions = ROOT / "tests/support/stock/go"
    module = (versions / "go.mod").read_text().replace("../../../..", str(ROOT))
    (tmp_path / "go.mod").write_text(module)
    shutil.copy(versions / "go.sum", tmp_path)
    for number, source in enumerate(blocks(GO)):
        program = tmp_path / f"program{number}" / "main.go"
        program.parent.mkdir()
        program.write_text(source)

    build([demand_go(), "vet", "-mod=mod", "./..."], tmp_path)
