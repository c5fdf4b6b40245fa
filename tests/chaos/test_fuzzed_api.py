"""The REST API under 100,000 requests of its own description, streams and sequences of calls among them: no failure, and no slow answer.

`CLEAVE_FUZZ_REQUESTS` says how many others there are to be.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from sqlalchemy import text

from controller.devstack.ports import free_port, release_port
from controller.devstack.postgres import PostgresServer
from controller.devstack.serving import SECRET
from controller.store.postgres.engine import Store
from controller.web.paths import CONSUMER_PATH
from tests.support.bench import Bench
from tests.support.cleave_process import cleave_process
from tests.support.fuzzing import REAL, Answers, authorization, described
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(4 * 3600)]
REQUESTS = int(os.environ.get("CLEAVE_FUZZ_REQUESTS", "100000"))
IN_SEQUENCES = 0.25
STEPS = 25
"""Of a sequence."""
ROUND = 50
"""Requests of one operation in turn, so that an operation meets what the others have left."""
LIFE = {"incarnation": "f00d"}
NAME, USER = "cleave_fuzzed_at_length", "cleave_fuzzed_at_length_controller"


@pytest.fixture
def schema(postgres_server: PostgresServer, migrated_template: str, tmp_path: Path) -> Iterator[Any]:
    """What a worker says of itself: a process of its own, with the rights that it has where it is installed."""
    bench = Bench(postgres_server.create_database(NAME, template=migrated_template))
    bench.topic_with(segments=2)
    bench.execute(f"CREATE ROLE {USER} LOGIN PASSWORD 'pw' IN ROLE cleave_controller")
    port, log = free_port(), tmp_path / "worker.log"
    url = postgres_server.url(NAME, user=USER, password="pw")
    worker = cleave_process(
        "worker",
        log=log,
        database_url=url,
        api_secret=SECRET,
        serve_port=port,
        landing_url=tmp_path / "landing",
        consumer_grace_seconds=2.0,  # so that a stream in which nothing is said begins soon, too
    )
    worker.start()
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_served(address), message="the worker serves", timeout_seconds=60.0)
        yield described(address)
    finally:
        worker.stop()
        release_port(port)
        bench.close()
        postgres_server.drop_database(NAME)
        with Store(postgres_server.url("postgres")).transaction() as tx:
            tx.execute(text(f"DROP ROLE {USER}"))


def is_served(address: str) -> bool:
    try:
        return requests.get(f"{address}/openapi.json", timeout=30).status_code == 200
    except requests.ConnectionError:
        return False


def drawing(count: int) -> settings:
    """So many cases, none of them smaller ones of a case that failed."""
    return settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def is_kept(case: schemathesis.Case) -> bool:
    """Whether what the cases are about would still be there after it."""
    is_deletion = case.method.upper() == "DELETE" or case.path.endswith("/detach")
    return not (is_deletion and (case.path_parameters or {}).get("topic") == REAL["topic"])


def speak_of_what_is_there(case: schemathesis.Case, session: requests.Session) -> None:
    """Put the names of what is there into the request. A consumer has registered just before, so it is connected when
    it asks for its stream.
    """
    case.path_parameters = {name: REAL.get(name, value) for name, value in case.path_parameters.items()}
    if "consumer" not in case.path_parameters:
        return
    registered = case.operation.schema.config.base_url + CONSUMER_PATH.format(**case.path_parameters)
    session.post(registered, json=LIFE, headers=authorization(CONSUMER_PATH))
    if isinstance(case.body, dict) and "incarnation" in case.body:
        case.body = {**case.body, **LIFE}
    if "incarnation" in (case.query or {}):
        case.query = {**case.query, **LIFE}


def ask_each(schema: Any, session: requests.Session, answers: Answers) -> None:
    """Every operation, of anything and of what is there."""
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)

        @drawing(ROUND)
        @given(found.ok().as_strategy())
        def ask(case: schemathesis.Case) -> None:
            if is_kept(case):
                answers.ask(case, session)
            if case.path_parameters:
                speak_of_what_is_there(case, session)
                if is_kept(case):
                    answers.ask(case, session)

        ask()


def ask_sequences(schema: Any, session: requests.Session, answers: Answers, until: int) -> None:
    """Calls that follow from the answers of others, until there are that many answers."""

    class Sequence(schema.as_state_machine()):  # type: ignore[misc]
        def call(self, case: schemathesis.Case, **_given: Any) -> Any:
            if not is_kept(case):
                case.path_parameters["topic"] = "another"
            return Response.from_requests(answers.ask(case, session), verify=True)

        def validate_response(self, *_given: Any, **_more: Any) -> None:
            """`Answers` has."""

    while answers.count < until:
        before = answers.count
        Sequence.run(settings=settings(drawing(20), stateful_step_count=STEPS))
        assert answers.count > before


def test_whatever_is_asked_is_answered_well_and_soon(schema: Any, record_figure: Any) -> None:
    answers, session = Answers(), requests.Session()

    while answers.count < (1 - IN_SEQUENCES) * REQUESTS:
        ask_each(schema, session, answers)
    ask_sequences(schema, session, answers, REQUESTS)

    seconds, operation = answers.slowest
    record_figure(
        f"fuzz of the REST API: {answers.count} requests, {answers.streams} of them streams, "
        f"{dict(sorted(answers.statuses.items()))}; the slowest took {seconds:.2f} s: {operation}"
    )
    assert not answers.failures, "\n\n".join(f"{name}: {said}" for name, said in answers.failures.items())
    assert sum(count for status, count in answers.statuses.items() if status >= 500) == 0
    assert answers.streams > 0
