"""Every function that role cleave_client may call, called with hostile arguments by a login of that role.

Each call is refused with its SQLSTATE and reason, or does nothing, and an honest application on the same log goes on.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg2
import pytest

from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient
from controller.dataplane.log_client import Metadata, OutgoingMessage, Ownership
from controller.devstack.postgres import PostgresServer
from controller.domain.errors import FencedOut, InvalidInput, Terminal
from controller.domain.hash_range import FULL_RANGE, HashRange
from controller.domain.log_origin import LogOrigin
from controller.postgres.address import DatabaseAddress
from controller.services.lock_limiter import LockLimiter
from tests.integration.dataplane.test_embedded import query
from tests.support.planes import Planes, payloads
from tests.support.store_driver import StoreDriver
from tests.support.waiting import wait_until

MOST = 2**63 - 1
BAD_VALUE, DENIED, LIMIT, OUT_OF_RANGE = "22023", "42501", "53400", "22003"
LOW, HIGH = FULL_RANGE.halves()


@dataclass(frozen=True)
class Tenants:
    """Two applications on one log of the controller's: an honest one, and a login that calls functions by hand."""

    honest: Planes
    log: str
    database: str
    hostile_url: str

    @property
    def names(self) -> dict[str, object]:
        """What hostile statements may name: the log, its id, and the generation and mark of the honest readers."""
        ((log_id,),) = query(self.database, "SELECT log_id FROM embedded.log WHERE name = %s", self.log)
        return {"log": self.log, "id": log_id}

    def call(self, statement: str, **more: object) -> Any:
        """Return the rows of a statement of the hostile login."""
        with (
            closing(psycopg2.connect(self.hostile_url)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement, {**self.names, **more})
            return cursor.fetchall()

    def goes_on(self) -> None:
        """Demand that the honest application stores a message, reads all there is and acknowledges it."""
        self.honest.send(self.log, b"honest", key=b"k")
        assert self.honest.drain(self.log, "s")[-1] == b"honest"
        assert self.honest.plane.backlog(self.log, "s") == 0
        queue = self.honest.queue(self.log, "q")
        got = queue.read(100)
        assert payloads(got)[-1] == b"honest"
        assert list(queue.acknowledge([one.position for one in got])) == []
        queue.close()
        self.honest.plane.sample([self.log])


@pytest.fixture
def tenants(postgres_server: PostgresServer, database: str) -> Iterator[Tenants]:
    users = [f"{name}_{secrets.token_hex(4)}" for name in ("honest", "hostile")]
    for user in users:
        query(database, f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE cleave_client")
    honest, hostile = (
        postgres_server.url(database.rpartition("/")[2], user=user, password="pw") for user in users
    )
    planes = Planes(EmbeddedDataPlane(database), EmbeddedLogClient(honest))
    log = planes.log("s", "q")
    planes.send(log, b"123")
    yield Tenants(planes, log, database, DatabaseAddress.of(hostile).uri)
    planes.close()
    for user in users:
        query(database, f"DROP ROLE {user}")


APPEND = "SELECT embedded.append(%(log)s, {}, {}, {}, {}, {}, {})"
TAKE = "SELECT embedded.take(%(log)s, 's', {}, {}, {}, {})"
OPEN = "SELECT embedded.queue_open(%(log)s, 'q', {}, {}, {})"
QUEUE_TAKE = "SELECT embedded.queue_take(%(id)s, 'q', 'none', {}, {}, {}, {}, {})"
ACKNOWLEDGE = "SELECT embedded.queue_acknowledge(%(id)s, 'q', 'none', {}, {})"
GIVE_BACK = "SELECT embedded.queue_give_back(%(id)s, 'q', 'none', {}, {}, {}, {})"
KEEP = "SELECT embedded.queue_keep({}, {})"
READ = "SELECT embedded.read(%(id)s, 's', 0, {}, {}, {}, {}, 0)"
READ_AT = "SELECT embedded.read_at(%(id)s, {}, {}, {})"
NONE, ONE, HASH = "'{NULL}'", "'{abc}'", "'{0}'"
MANY = "array_fill({}, ARRAY[{}])"

HOSTILE: list[tuple[str, str, str]] = [
    # append: sizes, numbers, names and arrays
    (
        APPEND.format("'p'", 1, MOST, NONE, ONE, HASH),
        BAD_VALUE,
        "batch_bytes is 9223372036854775807, and keys",
    ),
    (APPEND.format("'p'", 1, -5, NONE, ONE, HASH), BAD_VALUE, "batch_bytes is -5"),
    (APPEND.format("'p'", 1, 2, NONE, ONE, HASH), BAD_VALUE, "payloads have 3 bytes"),
    (APPEND.format("'p'", 1, 3, "'{k}'", ONE, HASH), BAD_VALUE, "payloads have 4 bytes"),
    (APPEND.format("'p'", 1, "NULL", NONE, ONE, HASH), BAD_VALUE, "batch_bytes is <NULL>"),
    (
        APPEND.format("'p'", 1, 16_777_217, NONE, "ARRAY[convert_to(repeat('x', 16777217), 'UTF8')]", HASH),
        BAD_VALUE,
        "at most 16777216",
    ),
    (APPEND.format("'p'", -1, 3, NONE, ONE, HASH), BAD_VALUE, "sequence -1"),
    (APPEND.format("'p'", "NULL", 3, NONE, ONE, HASH), BAD_VALUE, "sequence <NULL>"),
    (APPEND.format("''", 1, 3, NONE, ONE, HASH), BAD_VALUE, "producer of 0 bytes"),
    (APPEND.format("NULL", 1, 3, NONE, ONE, HASH), BAD_VALUE, "producer of <NULL> bytes"),
    (APPEND.format("repeat('x', 1001)", 1, 3, NONE, ONE, HASH), BAD_VALUE, "producer of 1001 bytes"),
    (APPEND.format("'p'", 1, 0, "'{}'", "'{}'", "'{}'"), BAD_VALUE, "a batch of 0 payloads"),
    (APPEND.format("'p'", 1, 3, "NULL", ONE, HASH), BAD_VALUE, "<NULL> keys"),
    (APPEND.format("'p'", 1, 3, "'{NULL,NULL}'", ONE, HASH), BAD_VALUE, "1 payloads, 2 keys"),
    (APPEND.format("'p'", 1, 3, NONE, ONE, "'{0,1}'"), BAD_VALUE, "2 bucket hashes"),
    (APPEND.format("'p'", 1, 3, NONE, ONE, NONE), BAD_VALUE, "no NULL among the hashes"),
    (APPEND.format("'p'", 1, 3, "'{{NULL}}'", "'{{abc}}'", HASH), BAD_VALUE, "a batch of 1 payloads"),
    (APPEND.format("'p'", 1, 3, NONE, ONE, "'{65536}'"), "23514", "message_bucket_hash_on_ring"),
    (APPEND.format("'p'", 1, 3, NONE, ONE, "'{-1}'"), "23514", "message_bucket_hash_on_ring"),
    (APPEND.format("'p'", 1, 0, NONE, NONE, HASH), "23502", "null value in column"),
    # of append the metadata
    (APPEND.format("'p'", 1, 3, NONE, ONE, f"{HASH}, '{{}}'"), BAD_VALUE, "metadata of 0 messages"),
    (APPEND.format("'p'", 1, 3, NONE, ONE, f"{HASH}, '{{NULL,NULL}}'"), BAD_VALUE, "metadata of 2 messages"),
    (APPEND.format("'p'", 1, 3, NONE, ONE, f"{HASH}, '{{{{NULL}}}}'"), BAD_VALUE, "metadata of 1 messages"),
    (APPEND.format("'p'", 1, 3, NONE, ONE, f"{HASH}, '{{1}}'"), "23514", "message_metadata_is_object"),
    (
        APPEND.format("'p'", 1, 3, NONE, ONE, f"{HASH}, ARRAY[to_jsonb(repeat('x', 16777217))]"),
        BAD_VALUE,
        "at most 16777216 bytes",
    ),
    (
        APPEND.format(
            "'p'",
            1,
            0,
            MANY.format("NULL::bytea", 100_001),
            MANY.format("''::bytea", 100_001),
            MANY.format("0", 100_001),
        ),
        BAD_VALUE,
        "1 to 100000 of each",
    ),
    # take: ranges, names and lists
    (TAKE.format("'x'", "'{}'", -1, 5), BAD_VALUE, "bucket hashes -1 to 5"),
    (TAKE.format("'x'", "'{}'", 5, 4), BAD_VALUE, "bucket hashes 5 to 4"),
    (TAKE.format("'x'", "'{}'", 0, 2**31 - 1), BAD_VALUE, "within 0 and 65535"),
    (TAKE.format("'x'", "'{}'", "NULL", 5), BAD_VALUE, "bucket hashes <NULL> to 5"),
    (TAKE.format("repeat('x', 1001)", "'{}'", 0, 65535), BAD_VALUE, "an owner of 1001 bytes"),
    (TAKE.format("''", "'{}'", 0, 65535), BAD_VALUE, "an owner of 0 bytes"),
    (TAKE.format("'x'", "NULL", 0, 65535), BAD_VALUE, "<NULL> live owners"),
    (TAKE.format("'x'", MANY.format("'y'::text", 100_001), 0, 65535), BAD_VALUE, "100001 live owners"),
    ("SELECT embedded.take(%(log)s, 's', 'x', '{}', 0, 65535, 5)", BAD_VALUE, "an origin and a generation"),
    # reads
    (READ.format(-1, 1, 1, 1), BAD_VALUE, "from -1 on"),
    (READ.format(0, 0, 1, 1), BAD_VALUE, "a read of 0 messages"),
    (
        "SELECT embedded.read(%(id)s, 's', 5, 0, 2147483647, 9223372036854775807, 9223372036854775807, -1)",
        "none",
        "",
    ),
    (READ.format(MOST, 1, 1, 1), "none", ""),
    (READ_AT.format(-1, 1, 1), BAD_VALUE, "from -1 on"),
    (READ_AT.format(0, -1, 1), BAD_VALUE, "a read of -1 messages"),
    (READ_AT.format(MOST, 2**31 - 1, MOST), "none", ""),
    ("SELECT embedded.open_at(%(log)s, 9223372036854775807, 0)", OUT_OF_RANGE, "bigint out of range"),
    ("SELECT embedded.bounds(%(log)s, 'infinity')", "row", ""),
    ("SELECT embedded.look(%(id)s, 's', 9223372036854775807)", "none", ""),
    ("SELECT embedded.owners(%(id)s, 's', -2147483648, 2147483647)", "row", ""),
    ("SELECT embedded.missed(%(id)s, 's', 0, 65535, 9223372036854775807, 0)", "row", ""),
    # calls of a reader that the login is not
    (
        "SELECT 1 WHERE embedded.acknowledge(%(id)s, 's', 5, 1, 9223372036854775807, 9223372036854775807)",
        "none",
        "",
    ),
    ("SELECT embedded.release(%(id)s, 's', 5)", "row", ""),
    # queues
    (OPEN.format("'m'", "'x'", "'infinity'"), BAD_VALUE, "a life of Infinity s"),
    (OPEN.format("'m'", "'x'", "'NaN'"), BAD_VALUE, "a life of NaN s"),
    (OPEN.format("'m'", "'x'", 3601), BAD_VALUE, "at most 3600"),
    (OPEN.format("'m'", "'x'", 0), BAD_VALUE, "a life of 0 s"),
    (OPEN.format("repeat('m', 65)", "'x'", 1), BAD_VALUE, "a mark of 65 bytes"),
    (OPEN.format("'m'", "repeat('x', 1001)", 1), BAD_VALUE, "an owner of 1001 bytes"),
    (QUEUE_TAKE.format(0, 1, 1, 1, 1), BAD_VALUE, "batch 0"),
    (QUEUE_TAKE.format(1, -1, 1, 1, 1), BAD_VALUE, "of -1 messages"),
    (QUEUE_TAKE.format(1, 1, 1, 1, 1e300), BAD_VALUE, "a life of 1e\\+300 s"),
    (QUEUE_TAKE.format(1, 2**31 - 1, MOST, 2**31 - 1, 1), "none", ""),
    (
        ACKNOWLEDGE.format(MANY.format("1::bigint", 10_001), MANY.format("1::bigint", 10_001)),
        BAD_VALUE,
        "10001 offsets",
    ),
    (ACKNOWLEDGE.format("'{1}'", "'{}'"), BAD_VALUE, "1 offsets with 0 batches"),
    (ACKNOWLEDGE.format("NULL", "NULL"), BAD_VALUE, "<NULL> offsets"),
    (GIVE_BACK.format("'{1}'", "'{1}'", "'infinity'", "false"), BAD_VALUE, "a delay of Infinity s"),
    (GIVE_BACK.format("'{1}'", "'{1}'", 1e9, "false"), BAD_VALUE, "give 0 to 604800"),
    (GIVE_BACK.format("'{1}'", "'{1}'", -1, "false"), BAD_VALUE, "a delay of -1 s"),
    (GIVE_BACK.format("'{1}'", "'{1}'", "NULL", "false"), BAD_VALUE, "a delay of <NULL> s"),
    (GIVE_BACK.format("'{1}'", "'{1,2}'", 0, "false"), BAD_VALUE, "1 offsets with 2 batches"),
    (KEEP.format("'{m}'", "'infinity'"), BAD_VALUE, "a life of Infinity s"),
    (KEEP.format(MANY.format("'m'::text", 100_001), 1), BAD_VALUE, "100001 readers"),
    (KEEP.format("'{m}'", 1), "none", ""),
    ("SELECT embedded.queue_close(%(id)s, 'q', 'none')", "row", ""),
    ("SELECT embedded.queue_is_drained(-1, 'q')", "row", ""),
]


@pytest.mark.parametrize(
    ("statement", "code", "reason"), HOSTILE, ids=[f"{i}-{case[0][16:40]}" for i, case in enumerate(HOSTILE)]
)
def test_a_hostile_argument_is_refused_and_others_go_on(
    tenants: Tenants, statement: str, code: str, reason: str
) -> None:
    if code in ("none", "row"):
        assert len(tenants.call(statement)) == (code == "row")
    else:
        with pytest.raises(psycopg2.Error, match=reason) as refused:
            tenants.call(statement)
        assert refused.value.pgcode == code

    tenants.goes_on()


def test_every_function_that_an_application_may_call_is_in_the_table(database: str) -> None:
    names = query(
        database,
        "SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'embedded'::regnamespace"
        "   AND has_function_privilege('cleave_client', oid, 'EXECUTE')",
    )

    assert {name for (name,) in names} == {
        case[0].partition("embedded.")[2].partition("(")[0] for case in HOSTILE
    }


def test_a_producers_name_is_of_the_login_that_used_it_first(tenants: Tenants) -> None:
    """A number under the name of another would have that producer's batches taken for repeats and dropped."""
    with pytest.raises(
        psycopg2.errors.InsufficientPrivilege, match=r"'tests' of log .* belongs to another login"
    ):
        tenants.call(
            "SELECT embedded.append(%(log)s, 'tests', 9223372036854775807, 1, '{NULL}', '{x}', '{0}')"
        )
    tenants.goes_on()
    assert tenants.call(
        "SELECT outcome FROM embedded.append(%(log)s, 'mine', 1, 1, '{NULL}', '{x}', '{0}')"
    ) == [("granted",)]
    with pytest.raises(Terminal, match="belongs to another login"):
        tenants.honest.send(tenants.log, b"x", producer="mine")


def test_a_producer_from_before_logins_were_kept_is_of_the_login_that_sends_next(tenants: Tenants) -> None:
    query(tenants.database, "UPDATE embedded.producer SET login = NULL")
    tenants.goes_on()

    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        tenants.call("SELECT embedded.append(%(log)s, 'tests', 9, 1, '{NULL}', '{x}', '{0}')")


def test_an_ownership_that_was_never_given_makes_nobody_stale(tenants: Tenants, database: str) -> None:
    """Where the journal is in another database, an origin may not lie in the future; here the journal knows."""
    take = "SELECT outcome FROM embedded.take(%(log)s, 's', 'x', '{}', 0, 65535, %(origin)s, %(generation)s)"
    assert tenants.call(take, origin=MOST, generation=MOST) == [("stale",)]
    tenants.honest.reader(tenants.log, "s", ownership=Ownership(1, 1)).close()

    driver = StoreDriver(database)
    topic = driver.create()
    driver.subscribe(topic.topic_id, "s")
    driver.store.dispose()
    ((log,),) = query(
        database, "SELECT backing_topic FROM cleave.segment WHERE topic_id = %s", topic.topic_id
    )
    query(database, "UPDATE cleave.subscription SET origin = 50, generation = 7")
    tenants.honest.plane.create_segment(log, ["s"])
    for origin, generation in ((50, 8), (51, 0)):
        assert tenants.call(take, log=log, origin=origin, generation=generation) == [("stale",)]
        with pytest.raises(FencedOut):
            tenants.honest.reader(log, "s", ownership=Ownership(origin, generation))
    tenants.honest.reader(log, "s", ownership=Ownership(50, 7))


def test_a_cursor_is_divided_at_the_entry_buckets_of_its_log_only(tenants: Tenants) -> None:
    planes = tenants.honest
    log = planes.plane.backing_topic(planes.topic(), "0000-ffff-1")
    planes.plane.create_segment(log, ["s"], LogOrigin("t", 1, (), (32768,)))
    for low, high in ((1, 65535), (0, 1), (32767, 65535), (0, 32768)):
        with pytest.raises(psycopg2.errors.InvalidParameterValue, match="are not whole entry buckets"):
            tenants.call(
                "SELECT embedded.take(%(log)s, 's', 'x', '{}', %(low)s, %(high)s)",
                log=log,
                low=low,
                high=high,
            )

    for bucket in (LOW, HIGH, FULL_RANGE):
        planes.reader(log, "s", bucket=bucket)
    with pytest.raises(InvalidInput, match="whole entry buckets"):
        planes.reader(log, "s", bucket=HashRange(0, 9))


def test_a_cursor_of_a_log_without_known_buckets_is_divided_a_thousand_times_at_most(
    tenants: Tenants,
) -> None:
    everywhere = "SELECT count(embedded.take(%(log)s, 's', 'x' || n, '{}', n * 8, n * 8 + 7)) FROM generate_series(0, %(most)s) AS n"
    tenants.call(everywhere, most=1022)
    with pytest.raises(psycopg2.errors.ConfigurationLimitExceeded, match="more than 1024 parts"):
        tenants.call(everywhere, most=1100)

    tenants.goes_on()
    assert query(tenants.database, "SELECT count(*) FROM embedded.cursor WHERE subscription = 's'") == [(1,)]


def test_an_acknowledgement_reports_no_more_than_the_log_has_taken(tenants: Tenants) -> None:
    """Out-rates are sums of these counters, and an overflow of one of them would fail the samples of all logs."""
    cheat = (
        "SELECT embedded.acknowledge(%(id)s, 's', t.generation, 1, 9223372036854775807, 9223372036854775807)"
        "  FROM embedded.take(%(log)s, 's', 'x', '{}', %(low)s, %(high)s) AS t"
    )
    for _ in range(3):
        for low, high in ((0, 65535), (0, 32767), (32768, 65535)):
            tenants.call(cheat, low=low, high=high)

    counters = tenants.honest.plane.sample([tenants.log])[tenants.log]
    assert (counters.msg_in, counters.byte_in, counters.msg_out, counters.byte_out) == (1, 3, 1, 3)
    tenants.goes_on()
    counters = tenants.honest.plane.sample([tenants.log])[tenants.log]
    assert (counters.msg_out, counters.byte_out) == (1 + 1 + 2, 3 + 7 + 10), "one for s, two for the queue"


def test_what_is_read_again_after_a_seek_is_reported_again(tenants: Tenants) -> None:
    for expected in (1, 2):
        assert tenants.honest.drain(tenants.log, "s") == [b"123"]
        assert tenants.honest.plane.sample([tenants.log])[tenants.log].msg_out == expected
        tenants.honest.plane.seek(tenants.log, "s", 0)


WITH_METADATA = "1, '{{NULL}}', '{{x}}', '{{0}}', ARRAY[jsonb_build_object({})]"
LONG = {
    "a key": """15000000, ARRAY[convert_to(repeat('k', 15000000), 'UTF8')], '{""}', '{0}'""",
    "compressible metadata": WITH_METADATA.format(
        "'properties', jsonb_build_object('a', repeat('x', 15000000))"
    ),
    "metadata of short numbers": WITH_METADATA.format(
        "'n', (SELECT jsonb_agg(1e4000::numeric) FROM generate_series(1, 3750))"
    ),
}
"""The rest of the arguments of an append: 15 MB of one message besides its payload, some of them stored in a few bytes."""


@pytest.mark.parametrize("long", LONG)
def test_keys_and_metadata_count_as_sent_where_a_read_is_bounded(tenants: Tenants, long: str) -> None:
    """Otherwise ten thousand of these messages would be one answer to any reader of the log."""
    for number in range(3):
        tenants.call(f"SELECT embedded.append(%(log)s, 'long', %(n)s, {LONG[long]})", n=number)

    queue = tenants.honest.queue(tenants.log, "q")
    for reader in (
        tenants.honest.reader(tenants.log, "s"),
        tenants.honest.reader_at(tenants.log, None),
        queue,
    ):
        assert [len(reader.read(10)) for _ in range(4)] == [1, 1, 1, 1]
    queue.close()
    again = tenants.honest.queue(tenants.log, "q")
    assert [len(again.read(10)) for _ in range(4)] == [1, 1, 1, 1]


def test_a_reader_of_a_queue_is_of_the_login_that_opened_it(tenants: Tenants) -> None:
    queue = tenants.honest.queue(tenants.log, "q")
    assert len(queue.read(1)) == 1
    ((mark,),) = query(tenants.database, "SELECT mark FROM embedded.queue_reader")

    assert tenants.call("SELECT embedded.queue_keep(ARRAY[%(mark)s], 1)", mark=mark) == []
    assert tenants.call("SELECT embedded.queue_take(%(id)s, 'q', %(mark)s, 9, 1, 1, 1, 1)", mark=mark) == []
    tenants.call("SELECT embedded.queue_close(%(id)s, 'q', %(mark)s)", mark=mark)

    tenants.honest.send(tenants.log, b"2")
    assert payloads(queue.read(1)) == [b"2"]


def test_a_login_has_ten_thousand_readers_of_a_queue_at_most(tenants: Tenants) -> None:
    opened = "SELECT embedded.queue_open(%(log)s, 'q', 'm' || %(n)s, 'x', 60)"
    tenants.call(opened, n=0)
    query(
        tenants.database,
        "INSERT INTO embedded.queue_reader SELECT mark || n, log_id, subscription, first_hash, owner, 0, alive_until, login"
        "  FROM embedded.queue_reader, generate_series(1, 9999) AS n",
    )
    with pytest.raises(psycopg2.errors.ConfigurationLimitExceeded, match="has 10000 readers of 'q'"):
        tenants.call(opened, n=10_000)

    tenants.goes_on()
    query(tenants.database, "UPDATE embedded.queue_reader SET alive_until = '-infinity'")
    tenants.call(opened, n=10_001)


def test_producers_that_send_no_more_are_forgotten_with_their_messages(tenants: Tenants) -> None:
    planes = tenants.honest
    planes.send(tenants.log, b"old", producer="old")
    planes.plane.skip_all(tenants.log, "s")
    planes.plane.skip_all(tenants.log, "q")
    query(
        tenants.database,
        "UPDATE embedded.producer SET used_at = now() - interval '25 hours' WHERE name = 'old'",
    )

    assert isinstance(planes.plane, EmbeddedDataPlane)
    planes.plane.trim(0)

    assert query(tenants.database, "SELECT name FROM embedded.producer") == [("tests",)]


HOLDING = {
    "append": "SELECT embedded.append(%(log)s, 'p', 1, 1, '{NULL}', '{x}', '{0}')",
    "take": "SELECT embedded.take(%(log)s, 's', 'x', '{}', 0, 65535)",
    "queue": "SELECT embedded.queue_open(%(log)s, 'q', 'm', 'x', 60)",
}


@pytest.mark.parametrize("act", HOLDING)
def test_a_transaction_that_stays_open_keeps_no_log_from_being_sealed(tenants: Tenants, act: str) -> None:
    """Its login may set any time-out; the fence ends the session."""
    plane = EmbeddedDataPlane(tenants.database, call_timeout_seconds=1.0)
    names = tenants.names
    with closing(plane), closing(psycopg2.connect(tenants.hostile_url)) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET idle_in_transaction_session_timeout = 0; SET statement_timeout = 0; BEGIN")
            cursor.execute(HOLDING[act], names)
        wait_until(lambda: plane.terminate_segments([tenants.log]) != {}, message="the log is sealed")
        wait_until(
            lambda: plane.end_long_transactions() or _has_ended(connection), message="the session is ended"
        )

    assert tenants.honest.plane.segment_state(tenants.log).name == "TERMINATED"


def _has_ended(connection: Any) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except psycopg2.Error:
        return True
    return False


def test_a_worker_ends_a_transaction_that_keeps_producers_waiting(tenants: Tenants) -> None:
    plane = EmbeddedDataPlane(tenants.database, call_timeout_seconds=1.0)
    patient = EmbeddedLogClient(tenants.honest.logs._url, call_timeout_seconds=60.0)  # type: ignore[attr-defined]
    limiter = LockLimiter({"embedded": plane}, interval_seconds=0.05)
    with closing(plane), closing(patient), closing(psycopg2.connect(tenants.hostile_url)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(HOLDING["append"], tenants.names)
        thread = threading.Thread(target=limiter.run)
        thread.start()
        try:
            assert (
                patient.append(tenants.log, [OutgoingMessage(b"honest")], producer="patient", sequence=1) == 1
            )
        finally:
            limiter.stop()
            thread.join()
        assert _has_ended(connection)

    assert tenants.honest.drain(tenants.log, "s") == [b"123", b"honest"]


def test_sessions_of_cleave_and_short_transactions_are_left_alone(
    tenants: Tenants, postgres_server: PostgresServer
) -> None:
    user = f"app_{secrets.token_hex(4)}"
    query(
        tenants.database, f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE cleave_controller, cleave_client"
    )
    url = DatabaseAddress.of(
        postgres_server.url(tenants.database.rpartition("/")[2], user=user, password="pw")
    ).uri
    plane = EmbeddedDataPlane(tenants.database)
    with (
        closing(plane),
        closing(psycopg2.connect(url)) as ours,
        closing(psycopg2.connect(tenants.hostile_url)) as short,
    ):
        for connection in (ours, short):
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT embedded.take(%(log)s, %(s)s, 'x', '{}', 0, 65535)",
                    {"log": tenants.log, "s": "s" if connection is ours else "q"},
                )
        assert plane.end_long_transactions() == 0
        query(tenants.database, "SELECT embedded.end_long_transactions(0)")
        assert (_has_ended(ours), _has_ended(short)) == (False, True)
    query(tenants.database, f"DROP ROLE {user}")


def test_metadata_that_is_none_does_no_reader_harm(tenants: Tenants) -> None:
    odd = """{"properties": {"a": 1, "b": "kept"}, "event_time_ms": "noon", "is_binary_key": 1}"""
    tenants.call(
        "SELECT embedded.append(%(log)s, 'p', 1, 3, '{NULL}', '{abc}', '{0}', ARRAY[%(odd)s]::jsonb[])",
        odd=odd,
    )

    *_, message = tenants.honest.read(tenants.honest.reader(tenants.log, "s"), 2)
    assert message.metadata == Metadata((("b", "kept"),), None, False)


@pytest.mark.parametrize(
    "metadata",
    [
        """('{"n": 1' || repeat('0', 5000) || '}')""",
        """('{"n": ' || repeat('[', 3000) || repeat(']', 3000) || '}')""",
    ],
    ids=["a long number", "a deep list"],
)
def test_metadata_that_python_cannot_decode_stops_no_reader(tenants: Tenants, metadata: str) -> None:
    tenants.call(
        f"SELECT embedded.append(%(log)s, 'p', 1, 3, '{{NULL}}', '{{abc}}', '{{0}}', ARRAY[{metadata}]::jsonb[])"
    )

    readers = (
        tenants.honest.reader(tenants.log, "s"),
        tenants.honest.reader_at(tenants.log, None),
        tenants.honest.queue(tenants.log, "q"),
    )
    for reader in readers:
        *_, message = reader.read(10)
        assert (message.payload, message.metadata) == (b"abc", None)
