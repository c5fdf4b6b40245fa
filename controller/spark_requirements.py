"""Checks that Spark can compute on this machine: the complete PySpark, and a Java that is new enough for Spark 4.

The module reads the environment and runs `java -version`; it changes nothing. `devstack/java` has the Java of the local stack.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

OLDEST_JAVA: Final = 17
"""Oldest major version of Java that Spark 4 supports."""
NO_SPARK: Final = "none"
"""Value of the Spark master that means: do not use Spark."""


def can_run_spark(master: str) -> bool:
    """Return True if the complete PySpark is installed and a suitable Java exists. False if `master` is `NO_SPARK`.

    A Spark Connect server (`sc://`) has its own Java. Every other master needs Java `OLDEST_JAVA` or later on this machine, and the function
    runs `java -version`.
    """
    if master == NO_SPARK or not has_pyspark():
        return False
    return master.startswith("sc://") or system_java_home() is not None


def has_pyspark() -> bool:
    """Return True if the complete PySpark is installed. False for `pyspark-client`, which has no `SparkContext`: `spark_jobs.session`
    imports that class even for a Connect server. Imports nothing.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None:
        return False
    folders = [*(found.submodule_search_locations or ())]
    return importlib.machinery.PathFinder.find_spec("core", folders) is not None


def system_java_home() -> Path | None:
    """Return JAVA_HOME, or else the home of `java` on PATH: the first of the two that is at least Java `OLDEST_JAVA`. None if neither is.
    Runs `java -version` of each, for up to 30 s.
    """
    named = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    homes = [Path(named)] if named else []
    homes += [Path(on_path).resolve().parent.parent] if on_path else []
    return next((home for home in homes if _major_version(home / "bin" / "java") >= OLDEST_JAVA), None)


def _major_version(java: Path) -> int:
    """Return the major version that `java -version` prints; 1 for Java 8 and older. 0 if the command cannot run, fails, takes more than
    30 s or prints no version (the `java` of macOS only offers to install Java).
    """
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    version = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(version.group(1)) if version else 0
