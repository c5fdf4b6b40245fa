"""A task that asks for an operation and dies around its commit: ``python -m tests.chaos.asker JSON``.

As an Airflow task does whose worker is killed: before the commit (nothing is written), or after it, when nobody was
told. The retry is the test's.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from sqlalchemy import event
from sqlalchemy.engine import Engine

from controller.store.journal.reshape_intents import WRITE
from tests.chaos.scenarios import BY_NAME
from tests.support.bench import Bench


def main(url: str, scenario: str, key: str, side: str) -> None:
    """Ask, and be killed on that side of the commit that wrote the operation."""
    bench = Bench(url)

    def die(*_arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if side == "before":
        wrote: list[bool] = []

        def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
            if "INSERT INTO cleave.operation\n" in statement:
                wrote.append(True)

        def die_unwritten(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
            if statement.startswith(f"EXECUTE {WRITE.name} "):  # which is a transaction by itself
                die()

        event.listen(Engine, "before_cursor_execute", die_unwritten)
        event.listen(Engine, "after_cursor_execute", note)
        event.listen(Engine, "commit", lambda _connection: die() if wrote else None)
    BY_NAME[scenario].intend(bench, key)
    die()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
