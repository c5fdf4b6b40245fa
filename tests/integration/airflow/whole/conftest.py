"""A whole Airflow for all tests that need no other: starting one is half a minute of a core."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

from controller.devstack.airflow import AirflowStandalone
from controller.devstack.airflow_api import AirflowApi
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.postgres import PostgresServer
from controller.devstack.process import ChildProcess
from controller.services import deletion_sweeper, topic_admin
from tests.support.airflow_home import HAS_PARTITIONS, PROJECT
from tests.support.bench import TOPIC, Bench
from tests.support.browser import problems_of, tab, window
from tests.support.processes import family, still_running

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

USERS_DAGS = "tests/support/users_dags" if HAS_PARTITIONS else "tests/support/users_dags_before_3_2"
OTHER_DAGS = "tests/support/other_dags"
EXAMPLES = "cleave_provider/example_dags"
PEOPLE = ("ann", "bob")
"""Who may log in where a login is asked for; each is an admin."""
PATIENCE_SECONDS = 60.0
"""How long a page may take to show what a test looks for."""


@pytest.fixture(scope="package")
def cleave_url(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """The database that the shared Airflow's DAGs act on: a running Airflow does not change its connection."""
    name = f"cleave_airflow_{secrets.token_hex(4)}"
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


@pytest.fixture(scope="package")
def landing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the shared Airflow's DAGs look for samples."""
    return str(tmp_path_factory.mktemp("landing"))


@pytest.fixture(scope="package")
def airflow(
    postgres_server: PostgresServer, cleave_url: str, landing: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowStandalone]:
    """Its own DAGs and those of `USERS_DAGS`; whoever stops it starts it again.

    DAGs begin paused unless they say otherwise, so that each test starts what it looks at.
    """
    name = f"airflow_{secrets.token_hex(4)}"
    url = make_url(cleave_url).set(drivername="postgres")
    airflow = AirflowStandalone(
        tmp_path_factory.mktemp("airflow"),
        dags_folder=PROJECT / "dags",
        plugins_folder=PROJECT / "plugins",
        metadata_url=postgres_server.create_database(name),
        connections={
            "cleave": url.render_as_string(hide_password=False),
            "elsewhere": "postgres://somebody@the-database/thing",
        },
        env={
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(
                [_bundle(folder) for folder in ("dags", USERS_DAGS, OTHER_DAGS, EXAMPLES)]
            ),
            # No file changes here. Twenty anew each half minute are most of a core.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            "CLEAVE_AGGREGATION_SECONDS": "5",
            "CLEAVE_LANDING_URL": landing,
            "CLEAVE_MERGE_PASS_SECONDS": "5",
            "CLEAVE_SPLIT_PASS_SECONDS": "3600",
            "PYTHONPATH": str(PROJECT),
            "SPARK_MASTER": "none",
        },
    )
    with airflow:
        yield airflow
        everybody = family(airflow)
    assert still_running(everybody) == []
    postgres_server.drop_database(name)


@pytest.fixture(scope="package")
def tools(cleave_url: str) -> Iterator[Bench]:
    """One for all, since requests to one database need keys of their own."""
    bench = Bench(cleave_url)
    yield bench
    bench.close()


@pytest.fixture
def bench(tools: Bench) -> Iterator[Bench]:
    """With a topic that is this test's alone."""
    tools.topic_with(1)
    yield tools
    tools.finish(topic_admin.delete_topic(tools.store, TOPIC, tools.request()))
    deletion_sweeper.sweep(tools.store, tools.planes)


@pytest.fixture(scope="package")
def context() -> Iterator[BrowserContext]:
    """One window for all."""
    with window(PATIENCE_SECONDS) as opened:
        yield opened


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """See `tab`."""
    with tab(context) as opened:
        yield opened


@pytest.fixture(scope="package")
def front_door(airflow: AirflowStandalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a second API server of the shared Airflow: this one knows people by their logins."""
    room = tmp_path_factory.mktemp("front-door")
    passwords = room / "passwords.json"
    passwords.write_text(json.dumps({name: f"word of {name}" for name in PEOPLE}))
    asks = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:admin" for name in PEOPLE),
    }
    with _api_server(airflow, room, "", asks) as url:
        yield url


@pytest.fixture
def below_a_path(airflow: AirflowStandalone, tmp_path: Path) -> Iterator[str]:
    """Address of an API server of the shared Airflow whose base_url has a path."""
    with _api_server(airflow, tmp_path, "/data/flow", {}) as url:
        yield url


@contextmanager
def _api_server(airflow: AirflowStandalone, room: Path, path: str, asks: dict[str, str]) -> Iterator[str]:
    """One more of that Airflow, with settings of its own."""
    port = free_port()
    url = f"http://{LOOPBACK}:{port}{path}"
    own = {"AIRFLOW__API__BASE_URL": url, "AIRFLOW__API__PORT": str(port), **asks}
    command: list[str | Path] = [Path(sys.executable).with_name("airflow"), "api-server"]
    server = ChildProcess(
        command, log=room / "api-server.log", cwd=room, env={**airflow.environment(), **own}
    )
    server.start()
    server.wait_ready(AirflowApi(url).is_healthy, timeout_seconds=180)
    yield url
    server.stop()
    release_port(port)


@pytest.fixture
def logged_in(context: BrowserContext, front_door: str) -> Iterator[Callable[[str], Page]]:
    """A tab of a browser of one's own, in which that person has logged in."""
    with ExitStack() as open_ones:

        def log_in(name: str) -> Page:
            own = context.browser.new_context(viewport={"width": 1400, "height": 1000})  # type: ignore[union-attr]
            open_ones.callback(own.close)
            own.set_default_timeout(1000 * PATIENCE_SECONDS)
            page = own.new_page()
            problems.append(problems_of(page))
            page.goto(front_door)
            page.get_by_label("Username").fill(name)
            page.locator("input[type=password]").fill(f"word of {name}")
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(lambda url: "/auth/" not in url)
            return page

        problems: list[list[str]] = []
        yield log_in
    assert [one for some in problems for one in some] == []


def _bundle(folder: str) -> dict[str, object]:
    """A folder of the project as Airflow's configuration has it."""
    kind = "airflow.dag_processing.bundles.local.LocalDagBundle"
    return {"name": folder.replace("/", "-"), "classpath": kind, "kwargs": {"path": str(PROJECT / folder)}}
