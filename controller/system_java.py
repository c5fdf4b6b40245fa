"""The Java of this machine, if it is new enough for Spark 4: whether Spark can compute here hangs on it.

Asks the environment and the `java` it names, and changes nothing. The Java in a wheel, for the local stack alone, is
`devstack/java`'s.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

OLDEST: Final = 17
"""The oldest major version that Spark 4 runs on."""


NO_SPARK: Final = "none"
"""The setting of the Spark master that asks for no Spark."""


def can_run_spark(master: str) -> bool:
    """Whether PySpark is installed and there is a Java for it.

    A Spark Connect server (`sc://`) has its own Java. Every other master needs one on this machine.
    """
    if master == NO_SPARK or importlib.util.find_spec("pyspark") is None:
        return False
    return master.startswith("sc://") or system_java_home() is not None


def system_java_home() -> Path | None:
    """JAVA_HOME, else the home of `java` on PATH, if it is new enough."""
    named = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    homes = [Path(named)] if named else []
    homes += [Path(on_path).resolve().parent.parent] if on_path else []
    return next((home for home in homes if _major_version(home / "bin" / "java") >= OLDEST), None)


def _major_version(java: Path) -> int:
    """What `java -version` says, 0 when it cannot be run (macOS has a `java` that only asks for one)."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else 0
