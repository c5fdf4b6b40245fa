"""Starts the JVM of a classic session and overhears what it prints: of one that ends, PySpark says only that it did.

What it prints goes on to standard error, where it went anyway; the last lines are kept besides.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import deque
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from controller.domain.errors import Retryable, Terminal

_KEPT_LINES: Final = 20
_MOST_CHARACTERS: Final = 300
_LAST_WORDS_SECONDS: Final = 5.0
_STANDARD_ERROR: Final = 2
_TOO_OLD: Final = "UnsupportedClassVersionError"
_OF_EVERY_START: Final = ("WARNING: Using incubator modules", "NOTE: Picked up", "Picked up ")


class Overheard:
    """What was printed into `pipe`, its last lines; all of it is passed on to standard error by a thread."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        read_from, self.pipe = os.pipe()
        self._thread = threading.Thread(
            target=self._pass_on, args=(read_from,), name="what-java-prints", daemon=True
        )
        self._thread.start()

    def line(self) -> str:
        """In one line of at most 300 characters, once nobody has the pipe open any more; waits 5 s for that at most."""
        self._thread.join(_LAST_WORDS_SECONDS)
        said = [line for line in self._lines if line and not line.startswith(_OF_EVERY_START)]
        return " / ".join(said)[:_MOST_CHARACTERS]

    def _pass_on(self, read_from: int) -> None:
        with open(read_from, "rb") as stream:
            for line in stream:
                self._lines.append(line.decode(errors="replace").strip())
                with contextlib.suppress(OSError):  # nobody reads ours
                    os.write(_STANDARD_ERROR, line)


def start_jvm(settings: SparkConf) -> None:
    """Start this process's JVM with these settings, unless it has one.

    Raises Terminal without a Java for Spark, Retryable with what it printed where there is one and it ended.
    """
    with SparkContext._lock:
        if SparkContext._gateway is not None:
            return
        said = Overheard()
        try:
            gateway = launch_gateway(settings, {"stdout": said.pipe, "stderr": said.pipe})
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            ended: BaseException = error
        else:
            SparkContext._ensure_initialized(gateway=gateway)
            return
        finally:
            os.close(said.pipe)
        raise _why(said.line()) from ended


def _why(said: str) -> Terminal | Retryable:
    """There is none that serves, or it ended, for want of memory for instance."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which(os.path.join(home, "bin", "java") if home else "java") is None or _TOO_OLD in said:
        return Terminal("Spark did not start: it needs Java 17 or newer; install one and set JAVA_HOME")
    words = said or "it printed nothing"
    return Retryable(
        f"Spark's Java ended at its start: {words}; see that there is memory for it, and its settings", 10.0
    )
