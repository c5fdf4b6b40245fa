"""The API asked from its own description: whatever is asked, a real worker never fails, and answers as it says it does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from sqlalchemy import text

from controller.devstack.serving import serving_worker, token_for, token_of
from controller.entrypoints.web.access import Role
from controller.entrypoints.web.api.paging import CURSORS
from controller.store.postgres.engine import Store
from tests.support.asking import bearer
from tests.support.bench import Bench
from tests.support.drawn import THOROUGH, cases

pytestmark = pytest.mark.timeout(900)
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
REAL = {"tenant": "acme", "namespace": "shop", "topic": "orders", "subscription": "billing", "segment_id": 0}
MOST_SEGMENTS = 8
GOOD_FOR_ONE = ('["orders-monday-1"]', json.dumps(CURSORS, separators=(",", ":")))
"""Examples of a key of a change and of a page: with them each other change and list would be refused before anything is looked at."""


FUZZED = settings(
    max_examples=cases(3, 200),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def description(
    postgres_server: Any, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """What a real worker says of itself, with the rights it has where it is installed. Topics of thousands of segments take their time, and are not what is looked for."""
    name, user = "cleave_fuzzed", "cleave_fuzzed_controller"
    bench = Bench(postgres_server.create_database(name, template=migrated_template))
    bench.topic_with(segments=2)
    bench.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE cleave_controller")
    url = postgres_server.url(name, user=user, password="pw")
    landing: Path = tmp_path_factory.mktemp("landing")
    with serving_worker(url, landing_url=str(landing)) as running:
        document = httpx.get(f"{running.address}/openapi.json", timeout=60.0).text
        document = document.replace('"maximum":65536', f'"maximum":{MOST_SEGMENTS}')
        for examples in GOOD_FOR_ONE:
            assert examples in document
            document = document.replace(examples, "[]")
        schema = schemathesis.openapi.from_dict(json.loads(document))
        schema.config.update(base_url=running.address)
        schema.config.phases.coverage.enabled = THOROUGH  # every bound of every parameter: 8 minutes
        yield schema
    bench.close()
    postgres_server.drop_database(name)
    with Store(postgres_server.url("postgres")).transaction() as tx:
        tx.execute(text(f"DROP ROLE {user}"))


STREAMS = r"/(watch|assignment)$"
"""They have no end."""
asked = schemathesis.pytest.from_fixture("description").exclude(path_regex=STREAMS)
"""What a schema leaves out by itself is asked all the same when it comes from a fixture: to leave out is this one's part."""


def headers(case: schemathesis.Case) -> dict[str, str]:
    """Of whoever may call it."""
    path = case.operation.path
    assert not re.search(STREAMS, path)
    if path == "/api/v1/load/samples":
        token = token_of(Role.BROKER)
    elif "/consumers/" in path or "/queue" in path or path.endswith("/key-counts"):
        token = token_for()
    else:
        token = token_of(Role.ADMIN)
    return bearer(token)


@asked.parametrize()
@FUZZED
def test_of_anything(case: schemathesis.Case) -> None:
    if case.method.upper() == "DELETE" and (case.path_parameters or {}).get("topic") == REAL["topic"]:
        return  # what the examples are about is to be there for the others
    case.call_and_validate(headers=headers(case), checks=CHECKS)


@asked.parametrize()
@FUZZED
def test_of_what_is_there(case: schemathesis.Case) -> None:
    if case.method.upper() == "DELETE":
        return
    case.path_parameters = {
        name: REAL.get(name, value) for name, value in (case.path_parameters or {}).items()
    }
    case.call_and_validate(headers=headers(case), checks=CHECKS)
