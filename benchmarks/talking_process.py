"""A child process that receives requests in lines of JSON and answers each with one: clients of a measured system.

The parent's end is `TalkingProcess`, the child's `answer_requests`. It is a process, because a JVM starts once in each, and so that the
clients do not slow down the measuring process; both read the same monotonic clock. A child ends with its parent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from controller.settings import PROJECT_ROOT

END_SECONDS = 5.0

Handler = Callable[..., Mapping[str, Any]]


class TalkingProcess:
    """The child `python -m MODULE ARGUMENTS...`; its log goes to the file `log`."""

    def __init__(
        self, module: str, arguments: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._name, self._log = module, log
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env=env,
                text=True,
                cwd=PROJECT_ROOT,
            )

    def __enter__(self) -> Self:
        self.hear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._child.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()

    def ask(self, do: str, **facts: Any) -> Any:
        """Send a request and return its answer."""
        self.tell(do, **facts)
        return self.hear()

    def tell(self, do: str, **facts: Any) -> None:
        """Send a request; the caller reads the answer later with `hear`."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"do": do, **facts}) + "\n")
        self._child.stdin.flush()

    def hear(self) -> Any:
        """Return the answer to the oldest request without a read answer. Raises RuntimeError with the error of the child."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        answer = json.loads(line) if line else {"error": f"it ended with {self._child.wait()}"}
        if "error" in answer:
            last_words = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self._name}: {answer['error']}\n{last_words}")
        return answer


def answer_requests(open_handlers: Callable[[], Mapping[str, Handler]]) -> None:
    """Run the child: open the handlers, then answer one request after the other until the parent closes the pipe. An error becomes the
    answer.

    Does not return: it ends the process by `os._exit`, because the threads of a Java client would keep it alive.
    """
    words = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # client libraries log to the first stream they find
    handlers = open_handlers()
    words.write("{}\n")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = handlers[request.pop("do")](**request)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        words.write(json.dumps(answer) + "\n")
    os._exit(0)
