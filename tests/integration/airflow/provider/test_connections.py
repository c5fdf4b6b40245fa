"""The connection types: found by Airflow, shown as forms, tried, and read by Cleave's tasks."""

from __future__ import annotations

import json
import secrets
from importlib.util import find_spec

import pytest
from sqlalchemy import make_url

from controller.devstack.ports import free_port
from controller.domain.errors import NotFound, StoreUnavailable
from controller.postgres.address import DatabaseAddress
from tests.integration.airflow.conftest import FailingApiServer
from tests.integration.airflow.provider.conftest import RunOperator
from tests.support.airflow_home import HAS_PARTITIONS
from tests.support.bench import TOPIC, Bench
from tests.support.brokers import SharedBroker

pytestmark = pytest.mark.airflow
SHOWS_FORMS = HAS_PARTITIONS or find_spec("wtforms") is not None
"""Airflow 3.1 shows no provider's fields where wtforms is not installed."""
PARTS = ("hooks", "operators", "sensors", "triggers")


@pytest.mark.parametrize(
    ("conn_type", "fields"),
    [
        ("cleave", {"pulsar_admin_conn_id", "sslmode"}),
        (
            "pulsar_admin",
            {"ca_file", "cert_file", "key_file", "service_url", "token_file", "verify_hostname"},
        ),
    ],
)
def test_airflow_finds_the_type_and_its_form_in_the_installed_package(
    airflow_home: None, conn_type: str, fields: set[str]
) -> None:
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

    [form] = [one for one in HookMetaService.hook_meta_data() if one.connection_type == conn_type]

    assert form.hook_class_name is not None
    assert form.hook_class_name.startswith("cleave_provider.hooks.")
    if not SHOWS_FORMS:
        return
    assert form.standard_fields is not None
    assert form.standard_fields.host is not None
    assert form.standard_fields.host.placeholder is not None
    assert set(form.extra_fields or {}) == fields


def test_what_airflow_is_told_is_as_it_demands(airflow_home: None) -> None:
    import importlib
    from pathlib import Path

    import airflow
    from jsonschema import validate

    from cleave_provider.get_provider_info import get_provider_info

    told = get_provider_info()

    validate(told, json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text()))
    modules = [name for part in PARTS for one in told.get(part, []) for name in one["python-modules"]]
    assert [importlib.import_module(name).__name__ for name in modules] == modules
    for link in told["extra-links"]:
        module, _, name = link.rpartition(".")
        assert getattr(importlib.import_module(module), name)


def test_the_connection_is_tried_as_whoever_it_logs_in(bench: Bench, connection: str) -> None:
    from cleave_provider.hooks.cleave import CleaveHook

    works, said = CleaveHook().test_connection()

    assert works, said
    user = make_url(bench.url.replace("postgres://", "postgresql://")).username
    assert "the schema is up to date; user airflow_" in said
    assert user not in said.partition("user ")[2]
    assert "p@ss" not in said


@pytest.mark.parametrize(
    ("changed", "line"),
    [({"password": "wrong"}, "password"), ({"database": "nowhere"}, "nowhere")],
    ids=["password", "database"],
)
def test_a_connection_that_cannot_serve_says_why(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], line: str
) -> None:
    from cleave_provider.hooks.cleave import CleaveHook

    url = make_url(connection).set(**changed)
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", url.render_as_string(hide_password=False))

    works, said = CleaveHook("other").test_connection()

    assert not works
    assert line in said
    assert "\n" not in said


def test_a_login_without_the_role_is_told_what_to_grant(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cleave_provider.hooks.cleave import CleaveHook

    login = f"nobody_{secrets.token_hex(4)}"
    bench.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'p'")
    url = make_url(connection).set(username=login, password="p")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", url.render_as_string(hide_password=False))
    try:
        works, said = CleaveHook("other").test_connection()
    finally:
        bench.execute(f"DROP ROLE {login}")

    assert (works, "cleave_controller" in said) == (False, True), said


def test_extras_that_were_left_empty_in_the_form_are_not_read(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cleave_provider.hooks.cleave import CleaveHook

    monkeypatch.setenv(
        "AIRFLOW_CONN_CLEAVE", f"{connection}?sslmode=&pulsar_admin_conn_id=&pass_batch_topics=7"
    )

    assert CleaveHook().access()["extras"] == {"pass_batch_topics": "7"}


def test_the_pulsar_cluster_is_the_one_that_the_connection_names(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cleave_provider.hooks.cleave import CleaveHook

    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", f"{connection}?pulsar_admin_conn_id=our_brokers")
    monkeypatch.setenv("AIRFLOW_CONN_OUR_BROKERS", "pulsar-admin://:secret@one:8443/https")

    assert CleaveHook().access()["extras"] == {
        "pulsar_admin_url": "https://one:8443",
        "pulsar_token": "secret",
    }


def test_a_named_pulsar_cluster_must_be_there(
    bench: Bench,
    run_operator: RunOperator,
    connection: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", f"{connection}?pulsar_admin_conn_id=our_brokers")

    failed = run_operator(f"SplitSegmentOperator(task_id='act', topic={TOPIC!r}, segment_id=0)")

    assert (failed.state, failed.try_number) == ("failed", 1)
    assert "no connection 'our_brokers'" in capsys.readouterr().out


@pytest.mark.parametrize("raises", [False, True], ids=["answer", "exception"])
def test_a_connection_is_only_missing_if_the_api_server_says_so(
    failing_api_server: FailingApiServer, raises: bool
) -> None:
    from cleave_provider.airflow_compatibility import AirflowFailException
    from cleave_provider.hooks.cleave import CleaveHook

    failing_api_server.raises = raises

    with pytest.raises(StoreUnavailable, match=r"^connection 'cleave' .*API_SERVER_ERROR.*502"):
        CleaveHook().access()
    works, said = CleaveHook().test_connection()
    assert (works, "API_SERVER_ERROR" in said) == (False, True)

    failing_api_server.works = True
    with pytest.raises(AirflowFailException, match="there is no connection 'cleave'"):
        CleaveHook().access()


def test_pulsar_is_asked_who_it_is(
    airflow_home: None, pulsar_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cleave_provider.hooks.pulsar_admin import PulsarAdminHook

    as_json = json.dumps({"conn_type": "pulsar_admin", "host": pulsar_broker.admin_url})
    monkeypatch.setenv("AIRFLOW_CONN_PULSAR_ADMIN", as_json)

    works, said = PulsarAdminHook().test_connection()

    assert works, said
    assert said.startswith("Pulsar 4.")
    assert "standalone" in PulsarAdminHook().ask("get", "clusters")
    with pytest.raises(NotFound, match="GET namespaces/no/where"):
        PulsarAdminHook().ask("GET", "namespaces/no/where")


def test_a_broker_that_is_away_is_said_to_be(airflow_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from cleave_provider.hooks.pulsar_admin import PulsarAdminHook

    monkeypatch.setenv("AIRFLOW_CONN_PULSAR_ADMIN", "pulsar-admin://:token@127.0.0.1:9/http")

    works, said = PulsarAdminHook().test_connection()

    assert not works
    assert "127.0.0.1:9" in said


def test_a_connection_with_several_hosts_reaches_the_one_that_serves(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the field of the host; Airflow's own URI writes the commas and colons of that field percent-encoded."""
    from cleave_provider.hooks.cleave import CleaveHook

    url = make_url(connection)
    fields = {
        "conn_type": "cleave",
        "host": f"127.0.0.1:{free_port()},{url.host}:{url.port}",
        "login": url.username,
        "password": url.password,
        "schema": url.database,
        "extra": {"target_session_attrs": "read-write", "pass_batch_topics": 7},
    }
    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", json.dumps(fields))

    works, said = CleaveHook().test_connection()

    assert works, said
    assert DatabaseAddress.of(CleaveHook().url()).parameters["target_session_attrs"] == "read-write"
    assert "pass_batch_topics" not in CleaveHook().url()
