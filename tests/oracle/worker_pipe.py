"""A worker with Pulsar's classes, asked all at once: one line of JSON a question, one line an answer, in order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def ask_all(worker: str, jars: Path, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Starts the worker of that file name, asks, and ends it; one answer a request."""
    script = Path(__file__).with_name(worker)
    with (
        subprocess.Popen(
            [sys.executable, str(script), str(jars)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
        ThreadPoolExecutor(1) as writer,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        stdin = process.stdin

        def ask() -> None:
            with stdin:
                for one in requests:
                    stdin.write(json.dumps(one) + "\n")

        asked = writer.submit(ask)
        answers = [json.loads(line) for line in process.stdout]
        asked.result()
    assert process.returncode == 0
    assert len(answers) == len(requests)
    return answers
