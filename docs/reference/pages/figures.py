"""The figures in README.md, taken from benchmarks/RESULTS.md: `python -m docs.reference.pages.figures` updates them."""

from __future__ import annotations

import re

from docs.reference.pages.markdown import ROOT, table

README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "RESULTS.md"
_COMMIT_DIGITS = 8


def in_results() -> dict[str, str]:
    """Return the text of each place of README.md: the table, and the commits of its figures, which stand behind the
    explanation of the table. Raises LookupError if the results lack a figure.
    """
    return {"figures": _table(), "commits": _commits()}


def _commits() -> str:
    rows = {"pulsar_controllers": "Rows 1 and 3 are", "joins": "Row 2 is", "fleet_pass": "Row 4 is"}
    lines = [
        f"{row} in section `{page}` of RESULTS.md, measured at Cleave's commit `{_commit(page)[:_COMMIT_DIGITS]}`.\n"
        for page, row in rows.items()
    ]
    return "".join(lines)


def _table() -> str:
    consumer, gap = "second_consumer", "publish_gap"
    native, ours = "native", "pulsar"
    return table(
        ("", "Cleave", "Pulsar 5's own"),
        (
            (
                "a second consumer joins: median time until the topic has two active segments",
                f"{_of(f'active_ms, {ours}', consumer, 'p50')} ms",
                f"{_of(f'active_ms, {native}', consumer, 'p50')} ms",
            ),
            (
                "7, 50 or 200 consumers join a new topic of four segments within a second: time until the last one has its first message",
                ", ".join(
                    f"{_of(f'joins, {count} consumers, 4, new', 'pulsar', 'worst_seconds')} s"
                    for count in (7, 50, 200)
                ),
                "not measured",
            ),
            (
                "a segment is split under traffic: longest pause between two acknowledged sends, per split (median and worst of all measured splits); failed sends",
                _gap(ours, gap),
                _gap(native, gap),
            ),
            (
                "time of one pass (the task that evaluates all topics whose load or consumers have changed) over 100,000 topics, each with as many segments as its load needs: if nothing changed, and if the load of 1,000 topics changed",
                f"{_of('idle_pass.seconds')} s, {_of('changed_pass.seconds')} s",
                "not measured",
            ),
        ),
    )


def _commit(page: str) -> str:
    """Return the commit at which the figures of a page were measured."""
    match = re.search(
        rf"^## {page}\n.*?^Measured \S+ at commit `([^`]+)`", RESULTS.read_text(), re.DOTALL | re.MULTILINE
    )
    if match is None:
        raise LookupError(f"benchmarks/RESULTS.md names no commit of {page!r}")
    return match[1]


def in_readme() -> dict[str, str]:
    """Return the text that README.md contains at each place of `in_results`. Raises LookupError if it lacks a place."""
    text, found = README.read_text(), {}
    for name in in_results():
        match = _place(name).search(text)
        if match is None:
            raise LookupError(f"README.md has no place for {name}")
        found[name] = match[0]
    return found


def _place(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)


def write() -> None:
    """Write the figures of the results to README.md."""
    text, new = README.read_text(), in_results()
    for name, old in in_readme().items():
        begin = f"<!-- {name} -->\n"
        text = text.replace(begin + old, begin + new[name])
    README.write_text(text)


def _gap(system: str, title: str) -> str:
    figures = [_of(f"ms, {system}", title, column) for column in ("p50", "worst")]
    return f"{figures[0]} ms, {figures[1]} ms, {_of(f'{title}.failed_sends.{system}')}"


def _of(row: str, title: str = "figure", column: str = "value") -> str:
    """Return a cell of the table with this title and row. Raises LookupError if there is none."""
    columns: list[str] = []
    for line in RESULTS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|-"):
            columns = columns if line.startswith("|") else []
        elif not columns:
            columns = cells
        elif columns[0] == title and cells[0] == row:
            return cells[columns.index(column)]
    raise LookupError(f"benchmarks/RESULTS.md has no {row!r} under {title!r}")


if __name__ == "__main__":
    write()
