"""Each form of a database URL reaches the same server, whichever part of the program connects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from sqlalchemy import text

from controller.dataplane.embedded import EmbeddedDataPlane
from controller.dataplane.postgres_calls import PostgresCalls
from controller.devstack.ports import free_port
from controller.domain.errors import InvalidInput, TopicNotFound
from controller.postgres.address import DatabaseAddress
from controller.postgres.listener import Listener
from controller.postgres_source import PostgresSource
from controller.settings import load_settings
from controller.store.postgres import migrations
from controller.store.postgres.engine import Store
from controller.tasks.application_of_connection import cleave_at, settings_at

LOG = "segment://t/n/x/0000-ffff-0"
WRITABLE = "target_session_attrs=read-write"


def by_store(url: str) -> None:
    store = Store(url)
    with store.transaction() as tx:
        tx.execute(text("SELECT count(*) FROM cleave.topic"))
    store.dispose()


def by_listener(url: str) -> None:
    with Listener(url, ["news"]) as listener:
        assert [one.is_resync for one in listener.wait(10.0)] == [True]


def by_calls(url: str) -> None:
    with closing(PostgresCalls(url, call_timeout_seconds=10.0)) as calls, calls.statement("look") as cursor:
        cursor.execute("SELECT count(*) FROM embedded.log")


def by_plane(url: str) -> None:
    with closing(EmbeddedDataPlane(url)) as plane:
        plane.segment_state(LOG)


def by_source(url: str) -> None:
    with closing(PostgresSource(url)) as source, pytest.raises(TopicNotFound):
        source.topic("topic://t/n/none")


def by_migrations(url: str) -> None:
    assert not migrations.plan(url).scripts


def by_settings(url: str) -> None:
    settings = load_settings(database_url=url)
    by_store(settings.embedded_dsn)
    assert "secret" not in settings.database_label


def by_tasks(url: str) -> None:
    with cleave_at(url, {"connect_timeout": 10}) as app, app.store.transaction() as tx:
        tx.execute(text("SELECT 1"))
    by_store(settings_at(url, {}).database_url.get_secret_value())


CONSUMERS = [
    by_store,
    by_listener,
    by_calls,
    by_plane,
    by_source,
    by_migrations,
    by_settings,
    by_tasks,
]
FORMS = {
    "one host": "postgresql://{login}@{host}:{port}/{name}",
    "driver named": "postgresql+psycopg2://{login}@{host}:{port}/{name}",
    "several hosts": "postgresql://{login}@127.0.0.1:{dead},{host}:{port}/{name}?" + WRITABLE,
    "short scheme": "postgres://{login}@{host}:{port},127.0.0.1:{dead}/{name}?" + WRITABLE,
    "hosts as parameters": "postgresql://{login}@/{name}?host=127.0.0.1,{host}&port={dead},{port}&"
    + WRITABLE,
    "an address in brackets": "postgresql://{login}@[::1]:{dead},{host}:{port}/{name}?" + WRITABLE,
    "options": "postgresql://{login}@{host}:{port}/{name}?options=-c%20work_mem%3D8MB&application_name=x",
}


def written(form: str, database: str) -> str:
    """The form with the address of the database."""
    parts = DatabaseAddress.of(database)
    [(host, port)] = parts.servers
    login = parts.uri.removeprefix("postgresql://").partition("@")[0]
    return form.format(login=login, host=host, port=port, name=parts.parameters["dbname"], dead=free_port())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_it_is_reached(consumer: Callable[[str], None], form: str, database: str) -> None:
    consumer(written(form, database))


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_the_form_of_sqlalchemy_for_several_hosts_is_refused(
    consumer: Callable[[str], None], database: str
) -> None:
    url = written("postgresql+psycopg2://{login}@/{name}?host=127.0.0.1:{dead}&host={host}:{port}", database)

    with pytest.raises(InvalidInput, match="host1:5432,host2:5432"):
        consumer(url)
