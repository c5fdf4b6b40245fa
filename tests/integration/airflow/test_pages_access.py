"""The plugin's app stands behind Airflow's own login, since Airflow asks nobody who calls a plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.app_client import AppClient
from tests.support.bench import Bench

pytestmark = pytest.mark.airflow


@pytest.fixture
def plugin(airflow_home: None) -> Any:
    """The module that Airflow imports, with an auth manager as the API server has it."""
    import cleave_pages
    from airflow.api_fastapi.app import init_auth_manager

    init_auth_manager()
    return cleave_pages


def test_nobody_sees_a_page_without_a_login_and_who_has_one_does(
    plugin: Any, bench: Bench, controller_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user

    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", controller_url)
    app = plugin._pages()
    client = AppClient(app)
    for method, path in (
        ("GET", "/"),
        ("GET", "/topic?name=x"),
        ("GET", "/static/pages.js"),
        ("POST", "/preview"),
    ):
        assert client.request(method, path, json={}).status_code == 401

    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="vera", role="viewer")
    try:
        assert "There is no topic yet" in client.get("/").text
    finally:
        app.dependency_overrides.clear()


def test_without_the_connection_a_page_says_what_is_missing(
    plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user

    monkeypatch.delenv("AIRFLOW_CONN_CLEAVE", raising=False)
    app = plugin._pages()
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="vera", role="viewer")
    try:
        page = AppClient(app).get("/")
    finally:
        app.dependency_overrides.clear()

    assert page.status_code == 503
    assert "cannot read the address of Cleave from Airflow" in page.text
    assert "cleave" in page.text


def test_importing_the_plugin_builds_nothing(plugin: Any) -> None:
    """It is imported in every process of every task."""
    told = """if True:
        import airflow.plugins_manager, sys
        before = set(sys.modules)
        import cleave_pages
        print(sorted(set(sys.modules) - before))
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(plugin.__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True, env=environment
    )

    assert done.stdout.splitlines()[-1] == "['cleave_pages']"
