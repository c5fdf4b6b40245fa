"""A `cleave` command as a separate process, without the settings of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from controller.devstack.process import ChildProcess
from controller.settings import PROJECT_ROOT


def cleave_process(*arguments: str, log: Path, **settings: object) -> ChildProcess:
    """Return the process, which is not started. Settings are given by their names, in any case: `serve_port=8080`.

    A worker without `landing_url` collects no load.
    """
    if arguments[:1] == ("worker",) and "landing_url" not in settings:
        arguments = (*arguments, "--no-collect")
    env = {key: value for key, value in os.environ.items() if not key.startswith("CLEAVE_")}
    env |= {f"CLEAVE_{key.upper()}": str(value) for key, value in settings.items()}
    command = [sys.executable, "-m", "controller.commands.cli", *arguments]
    return ChildProcess(command, log=log, cwd=PROJECT_ROOT, env=env)
