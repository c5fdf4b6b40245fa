"""The API asked from its own description: whatever is asked, a real worker never fails, and answers as it says it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from sqlalchemy import text

from controller.devstack.serving import serving_worker
from controller.services.computing.computers import LONGEST_SECONDS
from controller.store.postgres.engine import Store
from tests.support.bench import Bench
from tests.support.drawn import THOROUGH, cases
from tests.support.fuzzing import CHECKS, REAL, STREAMS, authorization, described

pytestmark = pytest.mark.timeout(900)
FUZZED = settings(
    max_examples=cases(3, 200),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def description(
    postgres_server: Any, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """What a real worker says of itself, with the rights it has where it is installed."""
    name, user = "cleave_fuzzed", "cleave_fuzzed_controller"
    bench = Bench(postgres_server.create_database(name, template=migrated_template))
    bench.topic_with(segments=2)
    bench.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE cleave_controller")
    url = postgres_server.url(name, user=user, password="pw")
    landing: Path = tmp_path_factory.mktemp("landing")
    with serving_worker(url, landing_url=str(landing)) as running:
        schema = described(running.address)
        schema.config.phases.coverage.enabled = THOROUGH  # every bound of every parameter: 8 minutes
        yield schema
    bench.close()
    postgres_server.drop_database(name)
    with Store(postgres_server.url("postgres")).transaction() as tx:
        tx.execute(text(f"DROP ROLE {user}"))


asked = schemathesis.pytest.from_fixture("description").exclude(path_regex=STREAMS)
"""What a schema leaves out by itself is asked all the same when it comes from a fixture: to leave out is this one's part."""


def validate(case: schemathesis.Case) -> None:
    """Make the call. It may take as long as a computation may, such as the backtest of a candidate."""
    case.call_and_validate(headers=authorization(case.operation.path), checks=CHECKS, timeout=LONGEST_SECONDS)


@asked.parametrize()
@FUZZED
def test_of_anything(case: schemathesis.Case) -> None:
    if case.method.upper() == "DELETE" and (case.path_parameters or {}).get("topic") == REAL["topic"]:
        return  # what the examples are about is to be there for the others
    validate(case)


@asked.parametrize()
@FUZZED
def test_of_what_is_there(case: schemathesis.Case) -> None:
    if case.method.upper() == "DELETE":
        return
    case.path_parameters = {
        name: REAL.get(name, value) for name, value in (case.path_parameters or {}).items()
    }
    validate(case)
