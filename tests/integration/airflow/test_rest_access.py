"""Cleave's calls in Airflow stand behind its login and its rights, since Airflow asks nobody who calls a plugin."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from controller.services import segment_admin
from tests.support.app_client import AppClient
from tests.support.bench import TOPIC, Bench

pytestmark = pytest.mark.airflow
PLACE = TOPIC.removeprefix("topic://")


@pytest.fixture
def token(airflow_home: None) -> Callable[[str], str]:
    """A token of the user of a role, as Airflow signs it."""
    from airflow.api_fastapi.app import get_auth_manager, init_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    init_auth_manager()
    return lambda role: get_auth_manager().generate_jwt(
        SimpleAuthManagerUser(username=f"ann-{role}", role=role)
    )


@pytest.fixture
def client(
    airflow_home: None, bench: Bench, controller_url: str, monkeypatch: pytest.MonkeyPatch
) -> AppClient:
    import cleave_rest

    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", controller_url)
    bench.topic_with(2)
    return AppClient(cleave_rest.calls)


def holding(token: str) -> dict[str, dict[str, str]]:
    return {"headers": {"Authorization": f"Bearer {token}"}}


def test_nobody_gets_in_without_a_login(client: AppClient, bench: Bench) -> None:
    for method, path in (
        ("GET", "/api/v1/topics"),
        ("GET", f"/admin/v2/scalable/{PLACE}"),
        ("POST", f"/api/v1/topics/{PLACE}/split"),
        ("DELETE", f"/admin/v2/scalable/{PLACE}"),
    ):
        answer = client.request(method, path, json={})
        assert (answer.status_code, answer.json()["kind"]) == (401, "AccessDenied"), path
    assert client.get("/api/v1/topics", **holding("no.such.token")).status_code == 401
    assert len(bench.layout.active) == 2


def test_a_browsers_cookie_is_good_for_looking_only(
    client: AppClient, token: Callable[[str], str], bench: Bench
) -> None:
    """Another site may have a browser send its cookie along; a header it may not."""
    cookie = {"headers": {"Cookie": f"_token={token('admin')}"}}
    assert client.get("/api/v1/topics", **cookie).json()["items"][0]["topic"] == TOPIC
    split = {"segment_id": 0}
    assert client.post(f"/api/v1/topics/{PLACE}/split", json=split, **cookie).status_code == 401
    assert len(bench.layout.active) == 2


def test_a_layout_is_shown_as_it_is_and_as_it_was(
    client: AppClient, token: Callable[[str], str], bench: Bench
) -> None:
    bench.reshape(segment_admin.splitting(0))
    path, who = f"/api/v1/topics/{PLACE}/layout", holding(token("viewer"))

    now, before = client.get(path, **who).json(), client.get(f"{path}?at=0", **who).json()

    assert [one["segment_id"] for one in now["segments"]] == [2, 3, 1]
    assert (before["epoch"], [one["segment_id"] for one in before["segments"]]) == (0, [0, 1])
    assert client.get(f"{path}?at=99", **who).status_code == 404


@pytest.mark.parametrize(
    ("role", "looks", "operates", "deletes"),
    [
        ("viewer", True, False, False),
        ("user", True, True, True),
        ("op", True, True, True),
        ("admin", True, True, True),
    ],
)
def test_a_role_may_over_http_what_it_may_have_a_dag_do(
    client: AppClient,
    token: Callable[[str], str],
    bench: Bench,
    role: str,
    looks: bool,
    operates: bool,
    deletes: bool,
) -> None:
    """Whoever may trigger `cleave_delete_topic` may delete a topic here, too."""
    who = holding(token(role))
    assert (client.get("/api/v1/topics", **who).status_code == 200) is looks
    split = client.post(f"/api/v1/topics/{PLACE}/split?dry_run=true", json={"segment_id": 0}, **who)
    assert split.status_code == (200 if operates else 403), split.text
    deleted = client.request("DELETE", f"/api/v1/topics/{PLACE}?dry_run=true", **who)
    assert deleted.status_code == (200 if deletes else 403), deleted.text
    assert len(bench.layout.active) == 2


def test_rights_of_one_dag_are_not_those_of_another(
    client: AppClient, token: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An auth manager that knows DAGs apart, as FAB's or Keycloak's do."""
    from airflow.api_fastapi.app import get_auth_manager

    manager = get_auth_manager()

    granted = {"cleave_approve", "cleave_manual_split", "cleave_manual_merge", "cleave_manual_rebucket"}
    granted |= {"policy_backtest", "policy_promote", "policy_propose"}

    def may(*, details: Any, **_: Any) -> bool:
        return str(details.id) in granted

    monkeypatch.setattr(manager, "is_authorized_dag", may)
    who = holding(token("viewer"))
    policy = f"/api/v1/policies/topics/{PLACE}?dry_run=true"
    of_cluster = "/api/v1/policies/cluster?dry_run=true"
    assert client.post(policy, json={"parameters": {"max_segments": 7}}, **who).status_code == 403, (
        "that is cleave_policy's"
    )
    granted.add("cleave_policy")
    assert client.post(policy, json={"parameters": {"max_segments": 7}}, **who).status_code == 200
    assert client.post(of_cluster, json={"parameters": {"max_segments": 7}}, **who).status_code == 403
    split = client.post(f"/api/v1/topics/{PLACE}/split?dry_run=true", json={"segment_id": 0}, **who)
    assert split.status_code == 200, split.text
    deleted = client.request("DELETE", f"/admin/v2/scalable/{PLACE}", **who)
    assert (deleted.status_code, "role operator" in deleted.json()["reason"]) == (403, True)

    monkeypatch.setattr(
        manager, "is_authorized_dag", lambda *, details, **_: details.id != "cleave_cluster_policy"
    )
    assert client.post(of_cluster, json={"parameters": {"max_segments": 7}}, **who).status_code == 403
    monkeypatch.setattr(manager, "is_authorized_dag", lambda **_: True)
    assert client.post(of_cluster, json={"parameters": {"max_segments": 7}}, **who).status_code == 200

    monkeypatch.setattr(manager, "is_authorized_dag", lambda **_: False)
    monkeypatch.setattr(manager, "is_authorized_view", lambda **_: False)
    answer = client.get("/api/v1/topics", **who)
    assert (answer.status_code, answer.json()["kind"]) == (403, "AccessForbidden")


def test_the_policy_of_the_cluster_has_a_dag_of_administrators(
    bench: Bench, run_dag: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The form of operators would otherwise set what an operator may not set over HTTP."""
    stored = "SELECT policy->>'max_segments' FROM cleave.cluster_policy"
    before = bench.scalar(stored)
    refused = run_dag("cleave_policy", level="cluster", parameters={"max_segments": 77})
    assert (refused.state, bench.scalar(stored)) == ("failed", before)
    assert "use the DAG cleave_cluster_policy" in capsys.readouterr().out

    done = run_dag("cleave_cluster_policy", parameters={"max_segments": 77})
    assert (done.state, bench.scalar(stored)) == ("success", "77")


def test_an_airflow_that_does_not_know_where_cleave_is_says_so(
    client: AppClient, token: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = os.environ["AIRFLOW_CONN_CLEAVE"]
    monkeypatch.setenv("AIRFLOW_CONN_BROKERS", "pulsar-admin://")
    for wrong, named in ((None, "'cleave'"), (f"{known}?pulsar_admin_conn_id=brokers", "'brokers'")):
        monkeypatch.delenv("AIRFLOW_CONN_CLEAVE") if wrong is None else monkeypatch.setenv(
            "AIRFLOW_CONN_CLEAVE", wrong
        )
        answer = client.get("/api/v1/topics", **holding(token("viewer")))
        assert (answer.status_code, named in answer.json()["reason"]) == (503, True), answer.text
    assert client.get("/api/v1/topics").status_code == 401
