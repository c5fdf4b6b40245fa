"""`make demo`: start everything, run a day, show the results; the demo fails if the topic did not grow and shrink.

With PLANE=pulsar standard Java consumers read the topic in addition to those of Cleave's Python client.

Options are environment variables, because `make` passes them in this form. KEEP=1 leaves everything running at the
end, TRACE=file.csv replays a real load, DAY_SECONDS sets the length of the day (which waits until the expected
operations were seen, see `day_clock`), PLANE names the data plane (`planes`).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.live import Live
from rich.text import Text

from controller.command_output import console
from controller.demo.comparison import compare, costs_table
from controller.demo.load_profile import LoadProfile, from_trace, synthetic_day
from controller.demo.planes import plane_named
from controller.demo.report import count_lines, judge, judgement, operations_table, waits, write_page
from controller.demo.stack import Stack
from controller.demo.story import Moment, Story
from controller.devstack.accounts import server_account
from controller.devstack.failure import DevstackFailed
from controller.domain.errors import CleaveError, InvalidInput

DIRECTORY = Path(".cleave") / "demo"
DAY_SECONDS = 210.0
QUIET_SECONDS = 10.0


def main() -> int:
    """Run the demo. Return exit code 0 if the demo saw a split by load, a split by consumers and a merge, each consumer
    got its first message in time, and no subscription lost a message or got messages out of order. Return 1 if any of
    this did not happen or a server failed, and 2 for an invalid environment variable.
    """
    try:
        return _demo()
    except CleaveError as error:
        console.print(f"demo: {error}", style="red", markup=False)
        return 2 if isinstance(error, InvalidInput) else 1


def _demo() -> int:
    """Run the demo as the environment variables say, without the files of an earlier demo, which are deleted, and print the results. Return
    0, or 1 if the results show a problem. Raises CleaveError for an invalid variable or a server that fails.
    """
    trace = Path(os.environ["TRACE"]).resolve() if os.environ.get("TRACE") else None
    plane = plane_named(os.environ.get("PLANE", ""))
    day_seconds = _day_seconds(os.environ.get("DAY_SECONDS") or str(DAY_SECONDS))
    profile = (from_trace(trace) if trace else synthetic_day()).scaled(plane.load_share)
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {line}")

    plane.prepare(say)
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    # As root, PostgreSQL runs under another account, which must be able to enter. Files are for this user only.
    DIRECTORY.mkdir(parents=True, mode=0o700 if server_account() is None else 0o711)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say(f"load: {profile.name}, at most {max(profile.rates):,.0f} msg/s; all files are in {DIRECTORY}")
    with Stack(DIRECTORY, say, plane) as stack:
        _show_addresses(stack)
        story = Story(stack, day_seconds=day_seconds, profile=profile, trace=trace, say=say)
        with _live(say) as show:
            day = story.tell(lambda moment: show(_line(moment, story)))
        verdicts = {subscription: story.verdict(subscription) for subscription in story.subscriptions}
        problems = judge(day, verdicts)
        page = DIRECTORY / "report.html"
        write_page(page, day, verdicts, profile.name)
        console.print(operations_table(day))
        for line in count_lines(verdicts):
            console.print(line, highlight=False)
        console.print(waits(day))
        _show_costs(stack, profile, day.policy)
        console.print(f"charts: {page}")
        for problem in problems:
            console.print(f"demo failed: {problem}; see the logs in {DIRECTORY}", style="red")
        say(judgement(problems))
        if os.environ.get("KEEP"):
            _show_addresses(stack)
            _keep()
    return 1 if problems else 0


def _show_costs(stack: Stack, profile: LoadProfile, policy: Mapping[str, int | float | str]) -> None:
    """Print the cost of each rule; a failed comparison does not fail the demo."""
    try:
        costs = compare(stack, profile, policy, DIRECTORY.resolve())
    except DevstackFailed as error:
        console.print(f"cannot compare the rules: {error}", style="yellow", markup=False)
    else:
        console.print(costs_table(costs))


@contextmanager
def _live(say: Callable[[str], None]) -> Iterator[Callable[[Text], None]]:
    """Yield a function that shows a line. On a terminal it overwrites the previous line until the end of the block; otherwise it prints a
    line, at most one every `QUIET_SECONDS`.
    """
    if console.is_terminal:
        with Live(console=console, refresh_per_second=2, transient=True) as live:
            yield live.update
        return
    shown_at = -QUIET_SECONDS

    def show(line: Text) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= QUIET_SECONDS:
            shown_at = time.monotonic()
            say(line.plain)

    yield show


def _day_seconds(text: str) -> float:
    """Return the length of the day, at least a minute: a shorter day ends before the first aggregation has seen the burst. Raises
    InvalidInput unless `text` is a number from 60 to 86400.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 60 <= seconds <= 86_400:
        raise InvalidInput(f"DAY_SECONDS={text} is not a number of seconds; give 60 to 86400")
    return seconds


def _line(moment: Moment, story: Story) -> Text:
    """Return the line of text that shows an observation while the day runs."""
    hottest = max(moment.load.values(), default=0.0)
    waits = f" (waits for {story.clock.waits_for})" if story.clock.waits_for else ""
    return Text(
        f"{moment.share:4.0%} of the day{waits}  {moment.messages_per_second:7,.0f} msg/s  "
        f"{moment.segments} segments, hottest {hottest:,.0f}  {moment.consumers} consumers  "
        f"produced {story.produced():,}, consumed {story.consumed():,}"
    )


def _show_addresses(stack: Stack) -> None:
    lines = [f"{name}={address}" for name, address in stack.plane_settings.items()]
    if stack.airflow is not None:
        lines.append(f"Airflow is at {stack.airflow.url} (no password, loopback only)")
    lines.append(f'to query with SQL:    source {stack.env_file} && "$PSQL" "$READER_URL"')
    lines.append(
        f"to use the commands:  source {stack.env_file} && {Path(sys.executable).parent}/cleave topics list"
    )
    lines.append(
        f"to consume yourself:  source {stack.env_file}; applications use CLEAVE_URL, CLEAVE_TOKEN and CLIENT_URL"
    )
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _keep() -> None:
    """Wait for Ctrl-C."""
    console.print("everything keeps running; press Ctrl-C to stop")
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("stopping")


if __name__ == "__main__":
    sys.exit(main())
