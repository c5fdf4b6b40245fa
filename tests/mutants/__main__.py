"""`python -m tests.mutants`: try every mutation of the catalogue; ends with 1 unless all are killed.

The list is checked first, then that the named tests pass as things are. Each process has a scratch checkout and a
PostgreSQL of its own; nothing in the working tree is touched.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.table import Table

from tests.mutants import catalogue
from tests.mutants.catalogue import Mutation
from tests.mutants.server import postgres
from tests.mutants.trial import Scratch, Trial, Verdict

ROOT = Path(__file__).parents[2]
_SCHEMA = ("sql/", "controller/store/postgres/migrations.py")
"""What a migrated database comes from: a mutation of it needs one of its own."""


@contextmanager
def _bench(directory: Path) -> Iterator[Scratch]:
    """A scratch checkout whose tests share one PostgreSQL and one migrated database to copy from."""
    with (
        postgres(directory / "postgres") as environment,
        Scratch(ROOT, directory / "checkout", environment) as scratch,
    ):
        yield scratch


def _attempt(scratch: Scratch, mutation: Mutation) -> Trial:
    if mutation.change.file.startswith(_SCHEMA):
        return scratch.attempt(mutation, CLEAVE_TEST_POSTGRES_TEMPLATE="")
    return scratch.attempt(mutation)


def _unfit(scratch: Scratch, tests: Sequence[str]) -> list[str]:
    """Those of the tests that do not pass as things are; with what pytest printed, if it is the last one's."""
    outcomes, output = scratch.run(["--continue-on-collection-errors", *tests]) if tests else ({}, "")
    unfit = [
        test
        for test in tests
        if {told for case, told in outcomes.items() if case == test or case.startswith(f"{test}[")}
        != {"passed"}
    ]
    return [*unfit, output] if unfit else []


def _try_all(mutations: Sequence[Mutation], processes: int, console: Console) -> list[Trial] | None:
    """Each mutation tried; None when a named test does not pass without any."""
    with ExitStack() as stack, ThreadPoolExecutor(processes) as pool:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cleave-mutants-")))
        free: SimpleQueue[Scratch] = SimpleQueue()
        scratches = [stack.enter_context(_bench(home / str(number))) for number in range(processes)]
        tests = sorted({test for one in mutations for test in one.tests})
        shares = [tests[number::processes] for number in range(processes)]
        unfit = [line for found in pool.map(_unfit, scratches, shares) for line in found]
        if unfit:
            console.print("These do not pass as things are:", *unfit, sep="\n", markup=False)
            return None
        for scratch in scratches:
            free.put(scratch)

        def one_after_the_other(mutation: Mutation) -> Trial:
            scratch = free.get()
            try:
                trial = _attempt(scratch, mutation)
            finally:
                free.put(scratch)
            console.print(f"{trial.verdict:<9}{trial.seconds:5.1f} s  {mutation.subject}  {mutation.id}")
            return trial

        return list(pool.map(one_after_the_other, mutations))


def _table(trials: Sequence[Trial]) -> Table:
    table = Table("verdict", "mutation", "harm", "why", show_lines=True)
    table.columns[-1].overflow = "fold"
    for trial in trials:
        one = trial.mutation
        table.add_row(trial.verdict, f"{one.subject}/{one.id}", one.harm, trial.why)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Try the catalogue of mutations."
    )
    parser.add_argument("only", nargs="*", help="subjects (names of the files) or ids; all if none is given")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    console, began = Console(), time.monotonic()
    listed = catalogue.read()
    stale = catalogue.problems(listed, ROOT)
    mutations = [one for one in listed if not given.only or {one.subject, one.id} & set(given.only)]
    if stale or not mutations:
        console.print(*(stale or ["No such mutation."]), sep="\n", markup=False)
        return 1
    trials = _try_all(mutations, given.processes, console)
    if trials is None:
        return 1
    alive = [trial for trial in trials if trial.verdict is not Verdict.KILLED]
    if alive:
        console.print(_table(alive))
    counts = ", ".join(f"{sum(one.verdict is kind for one in trials)} {kind}" for kind in Verdict)
    tests = len({test for one in mutations for test in one.tests})
    console.print(f"{len(trials)} mutations, {tests} tests: {counts}; {time.monotonic() - began:.0f} s")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
