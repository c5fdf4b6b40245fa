"""Where a part is missing: a developer's test is skipped with one line, which fails a whole check."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.browser import executable
from tests.support.missing import skip_without

MISSING = "no browser: install one"


@pytest.mark.parametrize("ci", ["true", "TRUE", "1"])
def test_a_whole_check_fails(ci: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)

    with pytest.raises(pytest.fail.Exception) as failed:
        skip_without(MISSING)

    assert (failed.value.msg, failed.value.pytrace) == (MISSING, False)


@pytest.mark.parametrize("ci", [None, "", "false", "0"])
def test_elsewhere_the_test_is_skipped(ci: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)

    with pytest.raises(pytest.skip.Exception) as skipped:
        skip_without(MISSING)

    assert skipped.value.msg == MISSING


@pytest.mark.parametrize(("ci", "ends"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_browser_it_says_what_to_install_in_one_line(
    ci: str, ends: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ends, match=r"^no browser: install one of chromium[^\n]*apt-get install chromium\)$"):
        executable()
