"""Runs short forms of the key benchmarks on two commits in turns, and prints the ratios of their figures.

`python -m benchmarks.compare BASE` measures the commit BASE, in a worktree of its own, and the present tree, with the same Python and
libraries. The order alternates, so that a machine that slows down slows both. A ratio below 1 means that the figure is smaller in the
present tree. Each commit runs its own benchmarks; a benchmark or a figure that only one of them has is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.kept import ROOT, git

SHORT: Mapping[str, Sequence[str]] = {
    "reaction": ("--rounds", "40", "--fleet", "1000"),
    "sessions": ("--rounds", "5"),
    "operations": ("--seconds", "1", "--topics", "120"),
    "pulsar_controllers": ("--rounds", "5", "--burst-seconds", "0"),
    "decide": ("--rounds", "500"),
    "fleet_pass": ("--topics", "10000"),
}
"""The key benchmarks, and the options of their short forms."""
_NO_FIGURES = frozenset({"machine", "load_average", "rounds"})

Figures = dict[str, float]


@contextmanager
def worktree(commit: str, directory: Path) -> Iterator[Path]:
    """Check out the code of the commit until the end of the block."""
    place = directory / "base"
    git(ROOT, "worktree", "add", "--detach", str(place), commit)
    try:
        yield place
    finally:
        git(ROOT, "worktree", "remove", "--force", str(place))


def measure(tree: Path, name: str) -> Figures:
    """Return the figures of one run; none, with a note, if the benchmark fails."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.bench_{name}", *SHORT[name]],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{name} failed in {tree}: {done.stderr.strip()[-500:]}", file=sys.stderr)
        return {}
    return dict(numbers(json.loads(lines[-1])))


def numbers(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the measured numbers of a benchmark's document with the names that lead to them."""
    for key, value in document.items():
        if key in _NO_FIGURES or key.startswith("goal"):
            continue
        if isinstance(value, Mapping):
            yield from numbers(value, f"{path}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{path}{key}", float(value)


def ratios(base: Sequence[Figures], present: Sequence[Figures]) -> dict[str, list[float]]:
    """Return the ratio of each figure in each round, present to base. Figures that never differ are settings, and left out."""
    runs = [*base, *present]
    shared = [name for name in runs[0] if all(name in run for run in runs)]
    differing = [name for name in shared if len({run[name] for run in runs}) > 1]
    return {
        name: [new[name] / old[name] for old, new in zip(base, present, strict=True)]
        for name in differing
        if all(run[name] for run in base)
    }


def main() -> int:
    """Measure in turns and print the ratios. Return 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="commit to compare with")
    parser.add_argument("names", nargs="*", help="benchmarks; all of the key ones if left out")
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each benchmark on each commit; default: 3"
    )
    options = parser.parse_args()
    unknown = sorted({*options.names} - SHORT.keys())
    if unknown:
        parser.error(f"no key benchmark {', '.join(unknown)}; there are {', '.join(SHORT)}")
    has_failed = False
    with (
        tempfile.TemporaryDirectory(prefix="cleave-compare-") as name,
        worktree(options.base, Path(name)) as base,
    ):
        for benchmark in options.names or SHORT:
            runs: dict[Path, list[Figures]] = {base: [], ROOT: []}
            for number in range(options.rounds):
                for tree in (base, ROOT) if number % 2 == 0 else (ROOT, base):
                    runs[tree].append(measure(tree, benchmark))
            has_failed = has_failed or not all([*runs[base], *runs[ROOT]])
            print(f"\n{benchmark}, present tree / {options.base}: median ratio (least to most)", flush=True)
            for figure, figure_ratios in ratios(runs[base], runs[ROOT]).items():
                spread = f"{min(figure_ratios):.2f} to {max(figure_ratios):.2f}"
                print(f"  {statistics.median(figure_ratios):6.2f}  ({spread})  {figure}", flush=True)
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
