"""How much of the code behind a figure has changed, counted in a repository of the test's own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import staleness
from benchmarks.staleness import Staleness, exercised


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark that imports one module and starts another by its name; a third has nothing to do with it."""
    files = {
        "benchmarks/bench_one.py": "from controller.store import rows\nPROGRAM = 'controller.cli'\n",
        "controller/store/__init__.py": "",
        "controller/store/rows.py": "".join(f"A{number} = {number}\n" for number in range(17)),
        "controller/cli.py": "import controller.store.rows\n",
        "controller/other.py": "B = 1\n",
        "sql/schema/rows.sql": "SELECT 1;\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    monkeypatch.setattr(staleness, "ROOT", tmp_path)
    monkeypatch.setattr(staleness, "RESULTS", tmp_path)
    for cached in (staleness._named_in, staleness._changed_since):
        cached.cache_clear()
        monkeypatch.setattr(staleness, cached.__name__, cached.__wrapped__)
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    own = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *own, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(root: Path) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "x")
    return git(root, "rev-parse", "HEAD")


def test_the_code_behind_a_benchmark_is_what_it_imports_and_what_it_starts(repository: Path) -> None:
    assert exercised("benchmarks/bench_one.py") == {
        "benchmarks/bench_one.py",
        "controller/cli.py",
        "controller/store/__init__.py",
        "controller/store/rows.py",
        "sql/schema/rows.sql",
    }


def test_changed_lines_are_counted_and_moved_files_are_not(repository: Path) -> None:
    measured = git(repository, "rev-parse", "HEAD")
    (repository / "controller/store/rows.py").rename(repository / "controller/store/table.py")
    for name in ("benchmarks/bench_one.py", "controller/cli.py"):
        changed = (
            (repository / name).read_text().replace("store.rows", "store.table").replace(" rows", " table")
        )
        (repository / name).write_text(changed)
    (repository / "controller/other.py").write_text("B = 2\n")
    git(repository, "add", "-A")

    found = staleness.staleness("one", {"commit": f"{measured[:12]}-dirty"})

    assert found == Staleness(f"{measured[:12]}-dirty", changed=2, lines=21, is_noted=True)
    assert found.is_stale
    assert str(found).endswith("2 of 21 lines (10%) of the code behind it have changed since")


def test_lines_that_moved_to_another_file_are_not_counted(repository: Path) -> None:
    """From one file to another, and from a deleted file to several."""
    measured = git(repository, "rev-parse", "HEAD")
    rows, moved = repository / "controller/store/rows.py", repository / "controller/store/moved.py"
    lines = rows.read_text().splitlines(keepends=True)
    rows.write_text("import controller.store.moved\n" + "".join(lines[:8]))
    moved.write_text("".join(lines[8:]))
    git(repository, "add", "-A")

    assert staleness.staleness("one", {"commit": measured}) == Staleness(measured, 1, 22, is_noted=True)

    present = commit(repository)
    moved.unlink()
    (repository / "controller/store/first.py").write_text("".join(lines[8:12]))
    (repository / "controller/store/second.py").write_text("".join(lines[12:]))
    rows.write_text("import controller.store.first\nimport controller.store.second\n" + "".join(lines[:8]))
    git(repository, "add", "-A")

    assert staleness.staleness("one", {"commit": present}).changed == 2


def test_comments_docstrings_and_layout_are_not_counted(repository: Path) -> None:
    measured = git(repository, "rev-parse", "HEAD")
    rows = repository / "controller/store/rows.py"
    rows.write_text(
        f'"""Rows."""\n# All of them.\n{rows.read_text()}'.replace("A1 = 1\n", "A1 = (\n    1\n)\n")
    )

    assert staleness.staleness("one", {"commit": measured}).changed == 0


def test_figures_without_a_commit_are_of_the_last_one_before_their_day(repository: Path) -> None:
    found = staleness.staleness("one", {"measured_at": "2099-01-01T00:00:00+00:00"})

    assert found == Staleness(git(repository, "rev-parse", "HEAD")[:12], 0, 21, is_noted=False)
    assert "(by its day)" in str(found)


def test_the_oldest_section_counts(repository: Path) -> None:
    older = git(repository, "rev-parse", "HEAD")
    (repository / "controller/store/rows.py").write_text("A = 1\n" * 17)
    newer = commit(repository)
    section = {"measured_at": "2026-01-01T00:00:00+00:00", "commit": older}

    found = staleness.staleness(
        "one", {"measured_at": "2026-01-02T00:00:00+00:00", "commit": newer, "embedded": section}
    )

    assert (found.commit, found.is_stale) == (older, True)


@pytest.mark.parametrize(("changed", "is_stale"), [(5, False), (6, True)])
def test_more_than_a_twentieth_of_changed_lines_is_too_much(changed: int, is_stale: bool) -> None:
    assert Staleness("c", changed, 100, is_noted=True).is_stale is is_stale


def test_the_check_of_a_release_fails_while_a_figure_is_stale(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = git(repository, "rev-parse", "HEAD")
    (repository / "one.json").write_text(json.dumps({"commit": measured}))
    assert staleness.main() == 0

    (repository / "controller/store/rows.py").write_text("A = 1\n" * 17)

    assert staleness.main() == 1
    assert "one: commit" in capsys.readouterr().out


def test_a_commit_that_is_not_there_is_told(repository: Path) -> None:
    with pytest.raises(LookupError, match="git diff"):
        staleness.staleness("one", {"commit": "0123456789ab"})
