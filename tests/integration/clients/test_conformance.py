"""The Java and the Go producer compute what Cleave's own rules compute: their conformance tests pass, run by their own tools."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from controller.devstack.pulsar.jars import MavenMissing, maven_command
from docs.reference import generate
from tests.support.missing import skip_without
from tests.support.stock_clients import GO, JAVA, ROOT, build, demand_go

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]  # the first run downloads the Pulsar clients
VECTORS = "client-vectors.json"


def demand_maven() -> str:
    """The path of `mvn`."""
    try:
        return maven_command()
    except MavenMissing as missing:
        skip_without(str(missing))


def test_java(tmp_path: Path) -> None:
    """In a copy, so that Maven writes nothing into the checkout."""
    project = shutil.copytree(
        ROOT / "clients" / JAVA, tmp_path / JAVA, ignore=shutil.ignore_patterns("target")
    )
    vectors = generate.HERE / VECTORS

    said = build(
        [demand_maven(), "--batch-mode", "-Dstyle.color=never", f"-Dvectors={vectors}", "test"], project
    )

    assert "BUILD SUCCESS" in said
    assert _ran(said) == len(
        re.findall("@Test", (project / "src/test/java/cleave/ConformanceTest.java").read_text())
    )


def _ran(said: str) -> int:
    """The number of tests that Maven ran, all without a failure."""
    [totals] = set(re.findall(r"Tests run: (\d+), Failures: 0, Errors: 0, Skipped: 0", said))
    return int(totals)


def test_go() -> None:
    said = build([demand_go(), "test", "-count=1", "-v", "./..."], ROOT / "clients" / GO)

    tests = re.findall(
        r"^func (Test\w+)", (ROOT / "clients/go/conformance_test.go").read_text(), re.MULTILINE
    )
    assert sorted(re.findall(r"^--- PASS: (\w+)", said, re.MULTILINE)) == sorted(tests)


@pytest.mark.parametrize("language", [JAVA, GO])
@pytest.mark.parametrize("ci", ["true", ""])
def test_without_its_tool_one_line_says_how_to_get_it(
    language: str, ci: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test is skipped, and fails where CI=true."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(BaseException, match=r"^no (Maven|go) here[^\n]*$") as caught:
        demand_maven() if language == JAVA else demand_go()

    assert isinstance(caught.value, pytest.fail.Exception if ci else pytest.skip.Exception)
