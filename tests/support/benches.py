"""Benches of one test, each with a database of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TypeVar

from controller.devstack.postgres import PostgresServer
from tests.support.bench import Bench

BenchT = TypeVar("BenchT", bound=Bench)


def benches(
    server: PostgresServer,
    template: str,
    build: Callable[[str], BenchT],
    end: Callable[[BenchT], None] = lambda _bench: None,
) -> Iterator[Callable[[], BenchT]]:
    """Yield a function that builds a bench on the URL of a new database. At the end, call `end` with each bench, close it, and drop its
    database.
    """
    made: list[tuple[str, BenchT]] = []

    def make() -> BenchT:
        name = f"cleave_bench_{secrets.token_hex(4)}"
        made.append((name, build(server.create_database(name, template=template))))
        return made[-1][1]

    yield make
    for name, bench in made:
        end(bench)
        bench.close()
        server.drop_database(name)
