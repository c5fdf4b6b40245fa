"""Cleave's calls in a real Airflow: by Airflow's own tokens, with the rights that Airflow gives, and audited by its users' names."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import requests

from controller.devstack.airflow import AirflowStandalone
from controller.devstack.process import run_checked
from tests.support.bench import TOPIC, Bench

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]
PLACE = TOPIC.removeprefix("topic://")
_SIGN = """
import sys
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
manager = create_auth_manager()
manager.init()
for role in sys.argv[1:]:
    print("TOKEN", role, manager.generate_jwt(SimpleAuthManagerUser(username=f"ann-{role}", role=role)))
"""


@pytest.fixture(scope="module")
def tokens(airflow: AirflowStandalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As Airflow itself signs them, for a user of each of its simple roles."""
    said = run_checked(
        [sys.executable, "-c", _SIGN, "viewer", "op", "admin"],
        env=airflow.environment(),
        cwd=tmp_path_factory.mktemp("signing"),
    )
    signed = (line.split() for line in said.splitlines() if line.startswith("TOKEN "))
    return {role: token for _, role, token in signed}


def ask(
    airflow: AirflowStandalone, method: str, path: str, token: str | None, **options: Any
) -> requests.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return requests.request(
        method, f"{airflow.url}/cleave-rest{path}", headers=headers, timeout=60, **options
    )


def test_a_topic_is_seen_split_and_written_down(
    airflow: AirflowStandalone, bench: Bench, tokens: dict[str, str]
) -> None:
    segment = bench.layout.active[0].segment_id
    path, said = f"/api/v1/topics/{PLACE}/split", {"segment_id": segment, "reason": "by hand"}

    rehearsed = ask(airflow, "POST", path, tokens["op"], params={"dry_run": "true"}, json=said)
    assert rehearsed.status_code == 200, rehearsed.text
    assert len(bench.layout.active) == 1
    done = ask(airflow, "POST", path, tokens["op"], params={"wait_seconds": 20}, json=said)
    assert done.status_code in (200, 202), done.text
    bench.wait_until(lambda: len(bench.layout.active) == 2, message="it is split")

    listed = ask(airflow, "GET", "/api/v1/topics", tokens["viewer"])
    assert [one["topic"] for one in listed.json()["items"]] == [TOPIC]
    [row] = bench.rows("SELECT subject, role, status FROM cleave.audit ORDER BY audit_id DESC LIMIT 1")
    assert row == ("ann-op", "admin", done.status_code), (
        "may trigger each of Cleave's DAGs, so may do as much here"
    )


def test_who_may_only_look_changes_nothing(
    airflow: AirflowStandalone, bench: Bench, tokens: dict[str, str]
) -> None:
    segment = bench.layout.active[0].segment_id
    refused = ask(
        airflow, "POST", f"/api/v1/topics/{PLACE}/split", tokens["viewer"], json={"segment_id": segment}
    )
    assert refused.status_code == 403
    assert "role reader" in refused.json()["reason"]
    assert len(bench.layout.active) == 1


def test_a_token_that_airflow_does_not_know_is_refused(airflow: AirflowStandalone) -> None:
    """Without any, this Airflow takes everybody for its admin; an Airflow with a login is in `test_rest_access`."""
    assert ask(airflow, "GET", "/api/v1/topics", "no.such.token").status_code == 401


def test_pulsars_paths_are_there_and_consumers_are_not(
    airflow: AirflowStandalone, bench: Bench, tokens: dict[str, str]
) -> None:
    tenant, namespace, _ = PLACE.split("/")
    found = ask(airflow, "GET", f"/admin/v2/scalable/{tenant}/{namespace}", tokens["viewer"])
    assert found.json() == [TOPIC]
    assert bench.topic_id
    paths = ask(airflow, "GET", "/openapi.json", tokens["viewer"]).json()["paths"]
    assert not [path for path in paths if "sessions" in path or "watch" in path]
