"""Child processes: readiness, last words, and an end that takes the whole family along."""

from __future__ import annotations

import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest

from controller.devstack.failure import DevstackFailed
from controller.devstack.process import ChildProcess, run_checked
from tests.support.waiting import wait_until

STUBBORN = (
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "print('ready', child.pid, flush=True)\n"
    "time.sleep(600)\n"
)


def python(program: str, directory: Path, **options: signal.Signals) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", program], log=directory / "log", cwd=directory, **options)


def test_stopping_ends_a_stubborn_child_and_its_child_in_another_session(tmp_path: Path) -> None:
    child = python(STUBBORN, tmp_path)
    child.start()
    child.wait_ready(lambda: "ready" in (tmp_path / "log").read_text(), timeout_seconds=30)
    grandchild = psutil.Process(int((tmp_path / "log").read_text().split()[1]))

    child.stop(grace_seconds=0.2)

    assert not child.running
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


def test_a_child_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    child = python("print('first', flush=True); raise SystemExit('no disk left')", tmp_path)
    child.start()

    with pytest.raises(DevstackFailed, match=r"ended unexpectedly.*first / no disk left"):
        child.wait_ready(lambda: False, timeout_seconds=30)


def test_last_words_are_those_of_this_start_only(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("from an earlier start\n")
    child = python("raise SystemExit('now')", tmp_path)
    child.start()

    with pytest.raises(DevstackFailed) as caught:
        child.wait_ready(lambda: False, timeout_seconds=30)

    assert "earlier" not in str(caught.value)


def test_a_child_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    child = python("import time; time.sleep(600)", tmp_path)
    child.start()
    pid = child.pid

    with pytest.raises(DevstackFailed, match=r"was not ready within 0\.2 s"):
        child.wait_ready(lambda: False, timeout_seconds=0.2)

    assert not psutil.pid_exists(pid)


def test_kill_gives_no_chance_to_clean_up(tmp_path: Path) -> None:
    program = (
        "import atexit, pathlib, time\n"
        "atexit.register(lambda: pathlib.Path('cleaned').touch()); print('ready', flush=True); time.sleep(600)"
    )
    child = python(program, tmp_path, stop_signal=signal.SIGINT)
    child.start()
    child.wait_ready(lambda: "ready" in (tmp_path / "log").read_text(), timeout_seconds=30)

    child.kill()

    assert not child.running
    assert not (tmp_path / "cleaned").exists()


def test_stopping_what_never_started_is_no_error(tmp_path: Path) -> None:
    child = python("", tmp_path)

    child.stop()

    with pytest.raises(DevstackFailed, match=r"call start\(\) first"):
        _ = child.pid


def test_a_failing_command_is_reported_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(DevstackFailed, match="ended with 3: it said this"):
        run_checked([sys.executable, "-c", "print('it said this'); raise SystemExit(3)"], cwd=tmp_path)


def test_a_child_that_was_asked_to_end_did_not_end_by_itself(tmp_path: Path) -> None:
    died, asked = python("raise SystemExit(3)", tmp_path), python("import time; time.sleep(600)", tmp_path)
    assert not died.ended_by_itself
    died.start()
    asked.start()
    wait_until(lambda: died.ended_by_itself, message="it has died")
    asked.ask_to_end()
    wait_until(lambda: not asked.running, message="it has ended")

    assert (died.exit_code, asked.ended_by_itself) == (3, False)
    died.stop()
    asked.stop()


def test_a_child_is_started_again_after_its_end(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = f"import pathlib, time; p = pathlib.Path({str(mark)!r}); first = not p.exists(); p.touch(); first or time.sleep(600)"
    child = python(program, tmp_path)
    child.start()
    wait_until(lambda: child.ended_by_itself, message="the first has ended")

    child.restart()

    assert child.running
    child.stop()


def test_a_log_and_the_files_of_a_child_are_for_this_user_alone(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    program = "open('data', 'w').close()"
    child = ChildProcess([sys.executable, "-c", program], log=log, cwd=tmp_path)
    child.start()
    wait_until(lambda: not child.running, message="the child ends")
    child.stop()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (log.parent, log, tmp_path / "data")]
    assert modes == [0o700, 0o600, 0o600]

    log.chmod(0o644)
    child.start()
    child.stop()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
