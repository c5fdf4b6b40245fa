"""The pool of background threads when the process cannot start another thread."""

from __future__ import annotations

import threading

import pytest

from controller.client.reader_threads import _Threads


def test_a_pool_whose_thread_did_not_start_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = _Threads("reader")
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.run(lambda: None)

    threads.close()
