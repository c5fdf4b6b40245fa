"""`make demo`: start everything, let a day pass, show what happened; fails if the topic did not grow and shrink.

Options come as environment variables, since `make` passes them so: KEEP=1 leaves everything running at the end,
TRACE=file.csv replays a real load, DAY_SECONDS sets how long the day takes, PLANE names the data plane (`planes`).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich.live import Live
from rich.text import Text

from controller.demo.load_profile import from_trace, synthetic_day
from controller.demo.planes import plane_named
from controller.demo.report import counts, operations_table, write_page
from controller.demo.stack import Stack
from controller.demo.story import Moment, Story
from controller.domain.errors import CleaveError, InvalidInput
from controller.entrypoints.output import console

DIRECTORY = Path(".cleave") / "demo"
DAY_SECONDS = 240.0


def main() -> int:
    """Run the demo. The exit code is 0 when a split by load, a split by consumers and a merge were seen, and no message
    was lost or out of order.
    """
    try:
        return _demo()
    except CleaveError as error:
        console.print(f"demo: {error}", style="red", markup=False)
        return 2 if isinstance(error, InvalidInput) else 1


def _demo() -> int:
    trace = Path(os.environ["TRACE"]).resolve() if os.environ.get("TRACE") else None
    plane = plane_named(os.environ.get("PLANE", ""))
    day_seconds = _day_seconds(os.environ.get("DAY_SECONDS") or str(DAY_SECONDS))
    profile = (from_trace(trace) if trace else synthetic_day()).scaled(plane.load_share)
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {line}")

    plane.prepare(say)
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say(f"load: {profile.name}, at most {max(profile.rates):,.0f} msg/s; everything is kept in {DIRECTORY}")
    with Stack(DIRECTORY, say, plane) as stack:
        story = Story(stack, day_seconds=day_seconds, trace=trace, say=say)
        with Live(console=console, refresh_per_second=2, transient=True) as live:
            seen = story.tell(lambda moment: live.update(_line(moment, story, day_seconds)))
        verdict = story.verdict()
        page = DIRECTORY / "report.html"
        write_page(page, seen, verdict, profile.name)
        console.print(operations_table(seen))
        console.print(counts(verdict))
        console.print(f"charts: {page}")
        if os.environ.get("KEEP") and stack.airflow is not None:
            _keep(stack.airflow.url, stack.plane_settings)
    problems = [f"did not see {name}" for name in seen.missing]
    if not verdict.in_order_and_complete:
        problems.append("messages were lost or out of key order")
    for problem in problems:
        console.print(f"demo failed: {problem}; logs are in {DIRECTORY}", style="red")
    say("done" if not problems else "failed")
    return 1 if problems else 0


def _day_seconds(text: str) -> float:
    """At least a minute: a shorter day is over before the first aggregation has seen the burst."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 60 <= seconds <= 86_400:
        raise InvalidInput(f"DAY_SECONDS={text} is not a number of seconds from 60 to 86400")
    return seconds


def _line(moment: Moment, story: Story, day_seconds: float) -> Text:
    hottest = max(moment.load.values(), default=0.0)
    return Text(
        f"{moment.at_seconds:5.0f} of {day_seconds:.0f} s  {moment.messages_per_second:7,.0f} msg/s  "
        f"{moment.segments} segments, hottest {hottest:,.0f}  {moment.consumers} consumers  "
        f"produced {story.produced():,}, consumed {story.consumed():,}"
    )


def _keep(url: str, plane_settings: Mapping[str, str]) -> None:
    for setting, address in plane_settings.items():
        console.print(f"{setting}={address}", markup=False, soft_wrap=True)
    console.print(f"Airflow is at {url} (no password, loopback only); Ctrl-C ends everything")
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("stopping")


if __name__ == "__main__":
    sys.exit(main())
