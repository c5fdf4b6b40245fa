"""Runs benchmarks one after the other, stores the line of JSON of each, and writes RESULTS.md from the stored figures.

`python -m benchmarks` runs all, `python -m benchmarks decide operations` some, `--only-report` none. Figures come from real runs only:
RESULTS.md is never edited by hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.kept import RESULTS, keep
from benchmarks.staleness import staleness

HERE = Path(__file__).parent


def names() -> list[str]:
    """Return the names of all benchmarks, by file name."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def run(name: str) -> bool:
    """Run one benchmark as a process, and store and print its last line of JSON. Return False if it failed or printed none."""
    print(f"== {name}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.bench_{name}"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{name} failed with exit code {done.returncode}", file=sys.stderr)
        return False
    keep(name, json.loads(lines[-1]))
    print(lines[-1], flush=True)
    return True


def records(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the innermost sections of a document with the names that lead to them."""
    own = {key: value for key, value in document.items() if not isinstance(value, dict)}
    if own:
        yield path, own
    for key, value in document.items():
        if isinstance(value, dict):
            yield from records(value, (*path, key))


def figures(document: dict[str, Any]) -> list[str]:
    """Return lines of Markdown. Sections with the same figures are rows of one table; the other figures are a list of names and values."""
    lines: list[str] = []
    by_shape: dict[tuple[str, tuple[str, ...]], list[tuple[str, dict[str, Any]]]] = {}
    single: list[tuple[str, Any]] = []
    for path, section_figures in records(document):
        by_shape.setdefault((path[0] if path else "", tuple(section_figures)), []).append(
            (", ".join(path[1:]), section_figures)
        )
    for (section, names), rows in by_shape.items():
        if len(rows) == 1:
            label = ".".join(part for part in (section, rows[0][0].replace(", ", ".")) if part)
            single += [(f"{label}.{name}" if label else name, value) for name, value in rows[0][1].items()]
            continue
        lines += ["", f"| {section} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        lines += [f"| {label} | {' | '.join(str(row[name]) for name in names)} |" for label, row in rows]
    head = ["", "| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in single)]
    return (head if single else []) + lines


def report() -> str:
    """Return the text of RESULTS.md: a table for each stored result, with the command and the machine."""
    parts = [
        "# Results",
        "",
        "Written by `make bench` from `benchmarks/results/`, where long runs of other commands keep theirs too; a figure is of the machine and the day that stand beside it.",
        "`goal` is what the project set itself; a figure that misses it stays here as it is.",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        kept = json.loads(path.read_text())
        behind = staleness(path.stem, kept)
        machine = kept.pop("machine", {})
        for key in ("benchmark", "commit"):
            kept.pop(key, None)
        day = kept.pop("measured_at")
        command = kept.pop("command", f".venv/bin/python -m benchmarks.bench_{path.stem}")
        parts += ["", f"## {path.stem}", "", f"`{command}`", ""]
        place = ", ".join(f"{key} {value}" for key, value in machine.items())
        parts += [f"Measured {day} at {behind}. On: {place}.", *figures(kept)]
    return "\n".join(parts) + "\n"


def main() -> int:
    """Run the named benchmarks (default: all; none with `--only-report`), then write the report. Return 1 if any failed; an unknown name
    ends the program.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="which; all where left out")
    parser.add_argument("--only-report", action="store_true", help="write RESULTS.md from what is kept")
    options = parser.parse_args()
    chosen = [] if options.only_report else (options.names or names())
    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(names())}")
    failed = [name for name in chosen if not run(name)]
    (HERE / "RESULTS.md").write_text(report())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
