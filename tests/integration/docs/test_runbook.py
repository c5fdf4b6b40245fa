"""Every query of the runbook runs as the inspector."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from controller.devstack.postgres import PostgresServer
from controller.postgres.address import DatabaseAddress

PAGES = sorted((Path(__file__).parents[3] / "docs" / "runbook").glob("*.md"))
QUERIES = [
    pytest.param(query, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, query in enumerate(re.findall(r"```sql\n(.*?)```", page.read_text(), flags=re.DOTALL))
]


@pytest.fixture(scope="module")
def inspector(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """Where to connect: a database without rows, since every query reads only."""
    name = "cleave_runbook"
    yield DatabaseAddress.of(postgres_server.create_database(name, template=migrated_template)).uri
    postgres_server.drop_database(name)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_runs_as_the_inspector(query: str, inspector: str) -> None:
    connection = psycopg2.connect(inspector, options="-c role=cleave_inspector")
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            assert cursor.description
    finally:
        connection.close()


def test_most_pages_have_one() -> None:
    assert len(QUERIES) >= len(PAGES)
