"""The process that computes: receives a function and its arguments through a pipe, sends back the result or
the error, and waits for more.

The process ends with its parent, or after `IDLE_SECONDS` without work. It gives priority to the server that
started it: for the processor, and if memory runs out.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

IDLE_SECONDS = 60.0
IDLE_EXIT_CODE = 79
"""Exit code of a process that had no work for `IDLE_SECONDS`."""
_NICE = 10


def main() -> None:
    """Run the process: compute one request after another, and send each outcome through the pipe. The process exits
    with 0 when the parent closes the pipe, and with `IDLE_EXIT_CODE` when no request has arrived for `IDLE_SECONDS`.
    The command-line arguments are the file descriptor of the pipe, and the maximum bytes of memory for data.
    """
    pipe = Connection(int(sys.argv[1]))
    _limit_resources(int(sys.argv[2]))
    work: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, work), daemon=True).start()
    while True:
        try:
            request = work.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            os._exit(IDLE_EXIT_CODE)
        _send(pipe, *_compute(request))


def _limit_resources(max_memory_bytes: int) -> None:
    """Prepare this process to give way to the server: lower its priority, limit its memory for data to
    `max_memory_bytes`, write no core files, and ignore Ctrl-C. On Linux, also make it the first process that the
    system ends if memory runs out. The limits cannot be taken back.
    """
    import resource

    # Ctrl-C is for the server, and this process ends with the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # The system is not Linux.
        Path("/proc/self/oom_score_adj").write_text("1000")


def _receive(pipe: Connection, work: queue.SimpleQueue[bytes]) -> None:
    """Queue the requests, and end the process when the pipe is closed: no caller waits for a result then."""
    while True:
        try:
            work.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


def _compute(request: bytes) -> tuple[bool, Any]:
    """Return True and the result of the request (function, arguments and keywords, pickled), or False and the error."""
    try:
        function, arguments, keywords = pickle.loads(request)  # noqa: S301 - the parent sent it
        return True, function(*arguments, **keywords)
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        return False, error


def _send(pipe: Connection, is_done: bool, value: Any) -> None:
    """Send the outcome to the parent process: the result if `is_done`, otherwise the error. An outcome that cannot be pickled is sent as a
    RuntimeError with its text.
    """
    try:
        pickled = pickle.dumps((is_done, value))
        pickle.loads(pickled)  # noqa: S301 - an error that cannot be unpickled would end the parent's call without a reason
    except Exception:  # noqa: BLE001
        pickled = pickle.dumps((False, RuntimeError(repr(value))))
    pipe.send_bytes(pickled)


if __name__ == "__main__":
    main()
