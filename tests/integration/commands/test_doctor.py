"""`cleave doctor`: each thing Cleave stands on, present and missing."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from sqlalchemy import make_url, text

from controller.store.journal import mirror_intents
from controller.store.postgres import migrations
from controller.store.topics import held_topics, unmanaged_logs
from controller.store.topics.unmanaged_logs import UnmanagedLog
from tests.support.bundle_brokers import staged_bench
from tests.support.command_line import CommandLine
from tests.support.doctor_checks import DATABASE_CHECKS
from tests.support.landing import land_rates
from tests.support.store_driver import request


def findings(cleave: CommandLine) -> dict[str, tuple[str, str]]:
    """Level and sentence by check, whatever the exit code."""
    return {
        row["check"]: (row["level"], row["finding"]) for row in json.loads(cleave("doctor", "--json").out)
    }


def demand(cleave: CommandLine, check: str, level: str, *parts: str) -> None:
    """Demand the level of a check, and that its sentence contains these parts."""
    found = findings(cleave)[check]
    assert (found[0], [part for part in parts if part not in found[1]]) == (level, []), found[1]


@pytest.fixture
def login(cleave: CommandLine, database: str) -> Iterator[str]:
    """URL of a login with no rights at all."""
    name = f"cleave_login_{secrets.token_hex(4)}"
    cleave.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret-word'")
    yield make_url(database).set(username=name, password="secret-word").render_as_string(hide_password=False)
    cleave.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_superuser_on_a_current_schema_gets_notes_only(cleave: CommandLine) -> None:
    answer = cleave("doctor")
    found = findings(cleave)

    assert (answer.code, answer.err) == (0, "")
    assert found["database"][0] == found["schema"][0] == "ok"
    assert found["role"] == ("note", found["role"][1])
    assert "is a superuser" in found["role"][1]
    assert "CLEAVE_LOADER_URL" in found["loader role"][1]
    assert found["workers"][0] == "note"
    assert "cleave collect" in found["landing area"][1]
    assert "CLEAVE_AIRFLOW_URL" in found["airflow"][1]


def test_a_login_in_its_role_is_what_is_wanted(
    cleave: CommandLine, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_url(login).username
    cleave.execute(f"GRANT cleave_controller, cleave_spark_loader TO {name}")
    monkeypatch.setenv("CLEAVE_DATABASE_URL", login)
    monkeypatch.setenv("CLEAVE_LOADER_URL", login)

    found = findings(cleave)

    assert found["role"] == ("ok", f"user {name} is in role cleave_controller")
    assert found["loader role"] == ("ok", f"user {name} is in role cleave_spark_loader")


def test_a_login_without_its_role_is_told_what_to_grant_and_its_password_is_not_shown(
    cleave: CommandLine, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", login)

    answer = cleave("doctor")
    assert answer.code == 1
    assert "secret-word" not in answer.out + answer.err
    demand(cleave, "role", "wrong", f"GRANT cleave_controller TO {make_url(login).username}")


def test_rights_of_everybody_are_reported_with_the_statement_that_revokes_them(cleave: CommandLine) -> None:
    """The migration of this server's template revoked the rest; rights on a database are not copied with it."""
    cleave.execute("GRANT EXECUTE ON FUNCTION pg_advisory_lock(bigint) TO PUBLIC")

    demand(
        cleave,
        "public rights",
        "note",
        "PUBLIC has in this database: advisory locks, no time-out for idle transactions, temporary tables",
        "every login may connect to",
        "REVOKE CONNECT ON DATABASE",
    )
    assert "pg_signal_backend" not in findings(cleave)["public rights"][1]


def test_applications_without_limits_are_named(cleave: CommandLine, login: str) -> None:
    name = make_url(login).username
    cleave.execute(f"GRANT cleave_client TO {name}")
    demand(cleave, "login limits", "note", f"ALTER ROLE {name} CONNECTION LIMIT 40")

    cleave.execute(f"ALTER ROLE {name} CONNECTION LIMIT 5")
    cleave.execute(f"ALTER ROLE {name} SET statement_timeout = '30s'")
    assert str(name) not in findings(cleave)["login limits"][1]


def test_without_a_java_of_the_machine_spark_does_not_compute_here(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    demand(cleave, "java", "note", "PostgreSQL aggregates the load")


@pytest.mark.parametrize("master", ["none", "sc://connect.example.org:15002/;token=secret-word"])
def test_where_spark_runs_elsewhere_no_java_is_needed(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, master: str
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SPARK_MASTER", master)

    level, sentence = findings(cleave)["java"]

    assert level == "ok"
    assert "secret-word" not in sentence


def test_where_spark_is_turned_off_nobody_is_told_to_install_it(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_MASTER", "none")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    assert findings(cleave)["spark"] == (
        "ok",
        "not needed here: SPARK_MASTER is none, so PostgreSQL aggregates the load",
    )


def test_a_schema_that_is_behind_is_wrong(
    cleave: CommandLine, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", empty_database)

    demand(cleave, "schema", "wrong", "cleave migrate")


def test_what_is_away_is_wrong_and_the_rest_is_still_looked_at(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nowhere")
    monkeypatch.setenv("CLEAVE_AIRFLOW_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CLEAVE_AIRFLOW_TOKEN", "token")

    answer, found = cleave("doctor"), findings(cleave)

    assert answer.code == 1
    wrong = {check for check, (level, _) in found.items() if level == "wrong"}
    assert wrong == {*DATABASE_CHECKS - {"loader role"}, "airflow", "airflow DAGs", "airflow connection"}
    assert "PostgreSQL is unreachable" in found["database"][1]


@pytest.mark.parametrize("options", [(), ("--fix",)])
def test_a_requested_namespace_that_cannot_be_checked_is_reported(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nowhere")

    answer = cleave("doctor", "--namespace", "acme/shop", "--json", *options)

    found = {row["check"]: (row["level"], row["finding"]) for row in json.loads(answer.out)}
    assert answer.code == 1
    assert found["pulsar acme/shop"] == (
        "wrong",
        "neither checked nor set; first correct what is wrong under database, schema",
    )


def test_held_topics_are_wrong_and_those_not_compared_yet_a_note(cleave: CommandLine, orders: str) -> None:
    name = f"topic://{orders}"
    assert findings(cleave)["topics held"][0] == "ok"

    cleave.execute("UPDATE cleave.topic SET verified_under = NULL, row_version = row_version + 1")
    assert cleave("doctor").code == 0
    demand(cleave, "topics held", "note", f"`cleave topics recover {name}`")

    with cleave.store.transaction() as tx:
        topic_id = tx.execute(text("SELECT topic_id FROM cleave.topic")).scalar_one()
        held_topics.hold(tx, topic_id, "two logs share segment id 3")
    assert cleave("doctor").code == 1
    held = f"first {name}: two logs share segment id 3; run `cleave topics recover {name} --dry-run`"
    demand(cleave, "topics held", "wrong", held)


def test_foreign_logs_are_counted_and_the_first_named(cleave: CommandLine, orders: str) -> None:
    assert orders
    assert findings(cleave)["unmanaged logs"] == ("ok", "none")

    with cleave.store.transaction() as tx:
        topic_id = tx.execute(text("SELECT topic_id FROM cleave.topic")).scalar_one()
        for segment_id in range(7, 11):
            log = UnmanagedLog(topic_id, f"log-{segment_id}", segment_id, "not of this journal", None, 2)
            unmanaged_logs.note(tx, "embedded", log)

    names = "log-7, log-8, log-9, ...; inspect.unmanaged_logs says why"
    demand(cleave, "unmanaged logs", "note", "4 log(s) belong to no segment", names)


def test_gates_that_could_be_open_or_do_not_hold_are_told(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")
    cleave.execute("UPDATE cleave.subscription SET consumers = 'stock'")
    assert findings(cleave)["gates"] == ("ok", "none is shut")

    cleave.execute(
        "INSERT INTO cleave.gate (topic_id, subscription, segment_id, state, ready_at, last_error)"
        " SELECT topic_id, 'billing', 0, 'ready', clock_timestamp() - interval '1 hour', 'the broker is away' FROM cleave.topic"
    )
    overdue = "1 gate(s) could be open and are not, for 60 min"
    demand(cleave, "gates", "wrong", overdue, "the broker is away")

    cleave.execute(
        "UPDATE cleave.gate SET state = 'closed', ready_at = NULL, breached_at = clock_timestamp()"
    )
    demand(cleave, "gates", "wrong", "set the crypto failure action of its consumers to FAIL")


def test_another_number_of_shards_is_told(cleave: CommandLine) -> None:
    lease = "INSERT INTO cleave.lease (name, holder, expires_at) VALUES ('shard-count', '32', 'infinity')"
    cleave.execute(lease)

    demand(cleave, "workers", "note", "into 32 shards, and CLEAVE_WORKER_SHARDS is 16 here")


def test_a_worker_older_than_the_schema_is_told(cleave: CommandLine) -> None:
    """One records an older version; the other is of a program that records none."""
    newest = migrations.newest_known()
    lease = "INSERT INTO cleave.lease (name, holder, expires_at, schema_version) VALUES (:name, :holder, :until, :knows)"
    for holder, knows in (
        ("current", newest),
        ("old", "0.0.9"),
        ("ancient", None),
    ):
        cleave.execute(lease, name=f"worker/{holder}", holder=holder, until="infinity", knows=knows)

    old_workers = f"at {newest}: ancient (knows no version), old (knows 0.0.9)"
    demand(cleave, "worker schemas", "note", old_workers)


def test_an_operation_that_is_stuck_is_told(cleave: CommandLine) -> None:
    assert findings(cleave)["operations"] == ("ok", "none is stuck")
    cleave("topics", "create", "topic://acme/shop/orders", "--no-wait")
    cleave.execute("UPDATE cleave.operation SET deadline = clock_timestamp() - interval '1 second'")

    demand(cleave, "operations", "wrong", "create 1 of topic://acme/shop/orders: past its deadline")


@pytest.mark.parametrize(
    ("ago_seconds", "level", "word"),
    [(5, "ok", "the last one"), (1500, "wrong", "25 min old"), (7200, "note", "cleave collect")],
)
def test_samples_that_stopped_are_noticed_by_the_age_of_the_last(
    cleave: CommandLine, tmp_path: Path, ago_seconds: int, level: str, word: str
) -> None:
    land_rates(str(tmp_path / "landing"), 1, {0: 10.0}, ago_seconds=(ago_seconds + 10, ago_seconds))

    demand(cleave, "landing area", level, word)


@pytest.mark.parametrize(
    ("ago_seconds", "level", "word"), [(5, "note", "are not samples"), (1500, "wrong", "25 min old")]
)
def test_a_file_with_another_name_does_not_hide_that_samples_stopped(
    cleave: CommandLine, tmp_path: Path, ago_seconds: int, level: str, word: str
) -> None:
    landing = tmp_path / "landing"
    land_rates(str(landing), 1, {0: 10.0}, ago_seconds=(ago_seconds + 10, ago_seconds))
    for sample in list(landing.glob("*/*.parquet")):
        sample.with_name("copy.parquet").write_bytes(sample.read_bytes())

    demand(cleave, "landing area", level, word)


def test_a_topic_whose_cluster_is_not_configured_is_wrong(cleave: CommandLine) -> None:
    assert findings(cleave)["pulsar"][0] == "note"
    with cleave.store.transaction() as tx:
        mirror_intents.intend_attach(
            tx, "topic://acme/shop/theirs", data_plane="pulsar_scalable", request=request()
        )

    assert findings(cleave)["pulsar"] == (
        "wrong",
        "topics of acme/shop are on data plane 'pulsar_scalable' and CLEAVE_PULSAR_ADMIN_URL is not set here",
    )


@pytest.mark.parametrize(
    ("ago_seconds", "level", "word"),
    [(None, "note", "never"), (20, "ok", " s old"), (1500, "wrong", "25 min old")],
)
def test_an_aggregation_that_stopped_is_noticed_by_the_age_of_its_last_run(
    cleave: CommandLine, ago_seconds: int | None, level: str, word: str
) -> None:
    if ago_seconds is not None:
        cleave.execute(
            """INSERT INTO cleave.load_run (run_id, window_end, engine, samples, segments, written, outrun)
               VALUES ('r', now() - make_interval(secs => :ago), 'twin', 1, 1, 1, 0)""",
            ago=ago_seconds,
        )

    demand(cleave, "load runs", level, word)


def test_a_reader_may_ask_and_is_told_what_its_login_is_enough_for(
    cleave: CommandLine, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleave.execute(f"GRANT cleave_inspector TO {make_url(login).username}")
    monkeypatch.setenv("CLEAVE_DATABASE_URL", login)

    assert cleave("doctor").code == 0
    assert findings(cleave)["schema"] == ("ok", "up to date")
    demand(cleave, "role", "note", "cleave_inspector: enough for commands that only read")


def test_a_login_that_may_do_more_than_its_work_takes_is_told_so(
    cleave: CommandLine, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleave.execute(f"GRANT cleave_controller, cleave_owner TO {make_url(login).username}")
    monkeypatch.setenv("CLEAVE_DATABASE_URL", login)

    # The last one is enough for people who only read.
    demand(cleave, "role", "note", "cleave_owner", "cleave_controller only", "cleave_inspector")


def test_a_login_without_any_right_is_told_which_it_lacks_and_not_that_the_schema_is_old(
    cleave: CommandLine, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", login)

    user = make_url(login).username
    refused = f"user {user} may not read the list of applied migrations"
    demand(cleave, "schema", "wrong", refused, f"GRANT cleave_inspector TO {user}")


def test_a_bucket_that_nobody_reads_for_too_long_is_told_of(cleave: CommandLine) -> None:
    assert findings(cleave)["entry buckets"] == ("ok", "none waits for longer than 20 s")
    cleave.ok("topics", "create", "acme/shop/orders")
    cleave.ok("subscriptions", "create", "acme/shop/orders", "billing")
    cleave.execute("""
        INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation,
                                         release_asked_at, successor)
        VALUES (1, 'billing', 0, 0, 16383, 'hanging', 1, clock_timestamp() - interval '2 minutes', 'waiting')
    """)

    bucket = "bucket 0000-3fff of segment 0 of topic://acme/shop/orders for billing"
    demand(cleave, "entry buckets", "note", bucket, "being handed over, held by hanging")


def test_collectors_of_the_same_brokers_and_clocks_that_are_off_are_reported(cleave: CommandLine) -> None:
    assert findings(cleave)["collectors"] == ("ok", "none is up")
    insert = (
        "INSERT INTO cleave.load_reader (name, reader, data_planes, clock_ahead_ms, reader_ahead_ms) VALUES "
    )
    cleave.execute(f"{insert} ('one', 'one@1', '{{embedded}}', 120, 0)")
    assert findings(cleave)["collectors"] == ("ok", "1 up: one")

    cleave.execute(f"{insert} ('two', 'two@1', '{{embedded}}', -15000, 0)")
    clock = "the clock of two is 15 s behind the database's"
    demand(cleave, "collectors", "note", clock, "one, two read the same brokers")

    cleave.execute("UPDATE cleave.load_reader SET seen_at = seen_at - interval '1 hour' WHERE name = 'two'")
    assert findings(cleave)["collectors"] == ("ok", "1 up: one")


def test_files_that_were_moved_aside_are_reported(cleave: CommandLine, tmp_path: Path) -> None:
    assert findings(cleave)["quarantine"] == ("ok", "no file is quarantined")
    for area, name in (("landing", "older"), ("landing-bundles/topics", "foreign")):
        root, _, kind = area.partition("/")
        path = tmp_path / root / "_quarantine" / kind / "day=2026-11-26" / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"not Parquet")

    demand(
        cleave,
        "quarantine",
        "note",
        f"1 at {tmp_path / 'landing'}, the newest _quarantine/day=2026-11-26/older.parquet",
        "-bundles, the newest _quarantine/topics/day=2026-11-26/foreign.parquet",
    )


def test_isolation_policies_without_a_broker_are_reported(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged_bench() as bench:
        cluster = bench.cluster
        monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", f"http://{cluster.brokers[0]}")
        monkeypatch.setenv("CLEAVE_PULSAR_CLUSTER", "staged")
        assert findings(cleave)["isolation policies"] == ("ok", "none")

        good = {"namespaces": ["acme/.*"], "primary": [r"127\.0\.0\.1"], "secondary": []}
        lost = {"namespaces": ["shop/.*"], "primary": [r"127\.0\.0\.1:8080"], "secondary": ["gone"]}
        parameters = {"policy_type": "min_available", "parameters": {"min_limit": "1"}}
        policies = {
            name: {**one, "auto_failover_policy": parameters}
            for name, one in (("good", good), ("lost", lost))
        }
        cluster.isolation = {"good": policies["good"]}
        assert findings(cleave)["isolation policies"] == ("ok", "1, each with an active broker")

        cluster.isolation = policies
        demand(cleave, "isolation policies", "note", r"lost (primary 127\.0\.0\.1:8080)")
        assert "good" not in findings(cleave)["isolation policies"][1]


@pytest.mark.parametrize(
    "login",
    [
        {"CLEAVE_AIRFLOW_TOKEN": "given"},
        {"CLEAVE_AIRFLOW_USERNAME": "ann", "CLEAVE_AIRFLOW_PASSWORD": "secret"},
    ],
    ids=["token", "user"],
)
def test_airflow_is_checked_with_a_token_and_with_a_user(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch, login: dict[str, str]
) -> None:
    with airflow() as url:
        monkeypatch.setenv("CLEAVE_AIRFLOW_URL", url)
        assert findings(cleave)["airflow"] == ("ok", f"healthy at {url}")
        demand(cleave, "airflow DAGs", "note", "CLEAVE_AIRFLOW_USERNAME with CLEAVE_AIRFLOW_PASSWORD")

        for name, value in login.items():
            monkeypatch.setenv(name, value)
        found = findings(cleave)

    assert found["airflow"] == ("ok", f"healthy at {url}")
    assert found["airflow DAGs"] == (
        "note",
        "paused: cleave_merge_pass; unpause with `airflow dags unpause NAME`",
    )
    assert found["airflow connection"] == ("ok", "connection `cleave` is stored")


@pytest.mark.parametrize(
    "login",
    [
        {"CLEAVE_AIRFLOW_TOKEN": "stale"},
        {"CLEAVE_AIRFLOW_USERNAME": "ann", "CLEAVE_AIRFLOW_PASSWORD": "wrong-word"},
    ],
    ids=["token", "user"],
)
def test_a_login_that_airflow_refuses_is_wrong_and_not_shown(
    cleave: CommandLine, monkeypatch: pytest.MonkeyPatch, login: dict[str, str]
) -> None:
    with airflow() as url:
        for name, value in (login | {"CLEAVE_AIRFLOW_URL": url}).items():
            monkeypatch.setenv(name, value)
        found = findings(cleave)

    level, sentence = found["airflow DAGs"]
    assert level == "wrong"
    assert "answered 401" in sentence
    assert not any(word in sentence for word in ("stale", "wrong-word"))


_DAGS = ("cleave_load_aggregation", "cleave_split_pass", "cleave_merge_pass", "cleave_maintenance")
_DOCUMENTS = {
    "/api/v2/monitor/health": {"metadatabase": {"status": "healthy"}, "triggerer": {"status": None}},
    "/api/v2/dags": {"dags": [{"dag_id": one, "is_paused": one == "cleave_merge_pass"} for one in _DAGS]},
}
_CONNECTIONS = [*(f"bank_{number}" for number in range(150)), "cleave", "cleave_loader"]


def _connections(query: str) -> dict[str, object]:
    """The first 100 connections whose names contain the pattern: Airflow's `maximum_page_limit` is 100."""
    asked = parse_qs(query)
    [pattern], [limit] = asked.get("connection_id_pattern", [""]), asked["limit"]
    found = [{"connection_id": name} for name in _CONNECTIONS if pattern in name]
    return {"connections": found[: min(int(limit), 100)]}


@contextmanager
def airflow() -> Iterator[str]:
    """Address of a server that answers as Airflow does: health to everybody, the rest to whoever has a token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            token = self.headers.get("Authorization")
            if path == "/api/v2/monitor/health" or token == "Bearer given":
                is_list = path == "/api/v2/connections"
                self._answer(200, _connections(query) if is_list else _DOCUMENTS[path])
            else:
                self._answer(401, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            is_right = self.path == "/auth/token" and body == {"username": "ann", "password": "secret"}
            self._answer(201 if is_right else 401, {"access_token": "given"} if is_right else {})

        def _answer(self, status: int, document: object) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
