"""The process that computes: takes a function and its arguments from a pipe, sends back what it returns or raises, and waits for more.

The process ends with its parent, or after a minute without work. It gives way to the server that started it: for the processor, and
where memory runs out.
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
GAVE_UP_WAITING = 79
"""Exit code of a process that had no work for `IDLE_SECONDS`."""
_NICE = 10


def main() -> None:
    """Arguments: the number of the pipe's descriptor, and the most bytes of memory."""
    pipe = Connection(int(sys.argv[1]))
    _give_way(int(sys.argv[2]))
    work: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, work), daemon=True).start()
    while True:
        try:
            request = work.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            os._exit(GAVE_UP_WAITING)
        _send(pipe, *_computed(request))


def _give_way(most_memory_bytes: int) -> None:
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, with which this process ends
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (most_memory_bytes, most_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # no Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def _receive(pipe: Connection, work: queue.SimpleQueue[bytes]) -> None:
    """Pass on what comes, and end the process with the pipe: no caller waits for a result then."""
    while True:
        try:
            work.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


def _computed(request: bytes) -> tuple[bool, Any]:
    try:
        function, given, named = pickle.loads(request)  # noqa: S301 - the parent's
        return True, function(*given, **named)
    except BaseException as error:  # noqa: BLE001 - it is the parent's
        return False, error


def _send(pipe: Connection, is_done: bool, value: Any) -> None:
    try:
        written = pickle.dumps((is_done, value))
        pickle.loads(written)  # noqa: S301 - our own; an error that cannot be read would end the parent's call without a reason
    except Exception:  # noqa: BLE001
        written = pickle.dumps((False, RuntimeError(repr(value))))
    pipe.send_bytes(written)


if __name__ == "__main__":
    main()
