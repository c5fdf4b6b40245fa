"""Starts the JVM of a classic session and records its output, because PySpark reports only that the JVM ended.

The output is still forwarded to standard error; the last lines are kept in addition.
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
_OUTPUT_SECONDS: Final = 5.0
_STANDARD_ERROR: Final = 2
_TOO_OLD: Final = "UnsupportedClassVersionError"
_ROUTINE_LINES: Final = ("WARNING: Using incubator modules", "NOTE: Picked up", "Picked up ")


class JavaOutput:
    """A pipe for the output of Java. The constructor starts a thread that forwards all lines to standard error, and keeps
    the last 20. Java writes to the descriptor `pipe`, of which the caller closes its own copy.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        read_from, self.pipe = os.pipe()
        self._thread = threading.Thread(
            target=self._forward, args=(read_from,), name="java-output", daemon=True
        )
        self._thread.start()

    def line(self) -> str:
        """Return the last 20 lines, without empty and routine lines, joined to one line; empty without output. Waits up to 5 s until all
        writers have closed the pipe.
        """
        self._thread.join(_OUTPUT_SECONDS)
        lines = [*self._lines]  # a child of Java may still write to the pipe
        return " / ".join(line for line in lines if line and not line.startswith(_ROUTINE_LINES))

    def _forward(self, read_from: int) -> None:
        """Forward lines to standard error until all writers have closed the pipe, and keep the last lines. `read_from`: descriptor of the
        pipe's other end, which is closed afterwards.
        """
        with open(read_from, "rb") as stream:
            for line in stream:
                self._lines.append(line.decode(errors="replace").strip())
                with contextlib.suppress(OSError):  # standard error may be closed
                    os.write(_STANDARD_ERROR, line)


def start_jvm(settings: SparkConf) -> None:
    """Start this process's JVM with these settings. Does nothing, and ignores the settings, if the process has a JVM
    already. The JVM's output goes to standard error.

    Raises Terminal if there is no Java or Java is too old; Retryable, with Java's last lines, if Java started and
    ended; and PySpark's other errors unchanged. After an error the call may be repeated. The function holds PySpark's
    lock, so concurrent calls wait.
    """
    with SparkContext._lock:
        if SparkContext._gateway is not None:
            return
        output = JavaOutput()
        try:
            gateway = launch_gateway(settings, {"stdout": output.pipe, "stderr": output.pipe})
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            ended: BaseException = error
        else:
            SparkContext._ensure_initialized(gateway=gateway)
            return
        finally:
            os.close(output.pipe)
        raise _start_error(output.line()) from ended


def _start_error(output: str) -> Terminal | Retryable:
    """Return the error of a failed start: Terminal if no Java is found (`JAVA_HOME`, otherwise the path) or `output` says that Java is too
    old; otherwise Retryable (after 10 s), with the first 300 characters of `output`: Java ended, for example for lack of memory.
    `output`: Java's last lines, not shortened.
    """
    home = os.environ.get("JAVA_HOME")
    if shutil.which(os.path.join(home, "bin", "java") if home else "java") is None or _TOO_OLD in output:
        return Terminal("Spark did not start: it needs Java 17 or newer; install Java and set JAVA_HOME")
    detail = output[:_MOST_CHARACTERS] or "no output"
    return Retryable(
        f"Spark's Java ended at its start: {detail}; check the free memory and Spark's settings", 10.0
    )
