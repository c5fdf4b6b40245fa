"""The figures in README.md, taken from benchmarks/RESULTS.md: `python -m docs.reference.pages.figures` updates them."""

from __future__ import annotations

import re

from docs.reference.pages.markdown import ROOT, table

README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "RESULTS.md"
_COMMIT_DIGITS = 8
_SCENES = {
    "1, new": "a new topic of one segment",
    "1, after a merge": "a topic of one segment after a merge",
    "4, new": "a new topic of four segments",
    "4, after a split": "a topic of four segments after a split",
    "4, after a merge": "a topic of four segments after a merge",
}
"""Scenes of the section `joins`, in words."""


def in_results() -> dict[str, str]:
    """Return the text of each place of README.md: the table, the comparison of its figures, and their commits. Raises
    LookupError if the results lack a figure.
    """
    return {"figures": _table(), "comparison": _comparison(), "commits": _commits()}


def _comparison() -> str:
    """Return which controller has the lower figures in rows 1 and 3, and whether the goals of rows 1 to 3 were met. Row 4 has no
    goal.
    """
    native, ours = "native", "pulsar"
    places = {
        "the median of row 1": ("active_ms, {}", "second_consumer", "p50"),
        "the median of row 3": ("ms, {}", "publish_gap", "p50"),
        "the worst pause of row 3": ("ms, {}", "publish_gap", "worst"),
    }
    lower: dict[str, list[str]] = {"Cleave": [], "Pulsar's controller": []}
    for place, (row, title, column) in places.items():
        ms = {system: float(_of(row.format(system), title, column)) for system in (native, ours)}
        lower["Cleave" if ms[ours] < ms[native] else "Pulsar's controller"].append(place)
    rounds = _of("rounds", section="pulsar_controllers")
    join_goal = _judged(f"second_consumer.goal_p50_ms.{ours}", f"active_ms, {ours}", "second_consumer", "p50")
    gap_goals = [
        _judged(f"publish_gap.goal_ms.{ours}.{column}", f"ms, {ours}", "publish_gap", column)
        for column in ("p50", "worst")
    ]
    goals = [(count, *_of(f"{ours}.goal_of_{count}", section="joins").split(": ")) for count in ("7", "200")]
    scenes = {scene: float(_of(f"joins, 200 consumers, {scene}", ours, "worst_seconds")) for scene in _SCENES}
    slowest = max(scenes, key=scenes.__getitem__)
    sentences = [
        *(f"{name} is faster in {', and in '.join(where)}." for name, where in lower.items() if where),
        f"Rows 1 and 3 come from {rounds} rounds for each system.",
        f"Goal of row 1: {join_goal}.",
        f"Goals of row 2: {', '.join(f'{goal} for {count} consumers ({result})' for count, goal, result in goals)}.",
        f"Goals of row 3: {gap_goals[0]} in the median, {gap_goals[1]} at worst.",
        f"RESULTS.md has row 2 for {len(scenes)} kinds of topics; with 200 consumers, the slowest is {_SCENES[slowest]}: {scenes[slowest]:g} s.",
    ]
    return "\n".join(sentences) + "\n"


def _judged(goal_row: str, row: str, title: str, column: str) -> str:
    """Return the goal in milliseconds of the section `pulsar_controllers`, and in parentheses whether the figure meets it."""
    goal = _of(goal_row, section="pulsar_controllers")
    return f"{goal} ms ({'met' if float(_of(row, title, column)) <= float(goal) else 'missed'})"


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
                "7, 50 or 200 consumers join a new topic of four segments within a second: time until the last one has its first message (one run each)",
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
                f"{int(_of('topics', section='fleet_pass')):,} topics of {_of('segments_per_topic', section='fleet_pass')} segments: time to evaluate those that are due (the work of a *pass*), if all are due because they are new, if none is due, and if {int(_of('changed_pass.evaluated')):,} are due because their load changed",
                ", ".join(f"{_of(f'{name}_pass.seconds')} s" for name in ("first", "idle", "changed")),
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


def _of(row: str, title: str = "figure", column: str = "value", *, section: str = "") -> str:
    """Return a cell of the first table with this title and row, of the section if one is given. Raises LookupError if
    there is none.
    """
    columns: list[str] = []
    text = RESULTS.read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
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
