"""`cleave key`: which segment held a key then, the same that a producer sent it to."""

from __future__ import annotations

from sqlalchemy import text

from controller.client.producer import Producer
from controller.dataplane.registry import PlaneSettings, build_log_client
from controller.domain.key_hash import key_hash
from controller.postgres_source import PostgresSource
from tests.support.command_line import CommandLine

_NEWEST = text("""
    SELECT s.segment_id FROM embedded.message m JOIN embedded.log l USING (log_id)
      JOIN inspect.segments s ON s.backing_topic = l.name ORDER BY m.published_at DESC LIMIT 1
""")
KEY = "Kundin-äöü-7"


def sent_to(cleave: CommandLine, topic: str, key: str) -> int:
    """The segment that a producer appends the key to."""
    url = cleave.store.address.uri
    source, logs = PostgresSource(url), build_log_client("embedded", PlaneSettings(embedded_url=url))
    try:
        with Producer(source, logs, f"topic://{topic}", name="checkout") as producer:
            producer.send(b"x", key=key)
    finally:
        logs.close()
        source.close()
    with cleave.store.transaction() as tx:
        return tx.execute(_NEWEST).scalar_one()


def test_it_names_the_segment_that_a_producer_sends_the_key_to_then_and_now(
    cleave: CommandLine, orders: str
) -> None:
    before = sent_to(cleave, orders, KEY)
    cleave.ok("segments", "split", orders, str(before))
    now = sent_to(cleave, orders, KEY)

    assert cleave.json("key", orders, KEY, "--at", "0")["segment_id"] == before
    found = cleave.json("key", orders, KEY)
    assert found["segment_id"] == now
    assert [one["segment_id"] for one in found["earlier"]] == [before]
    assert found["segment_hash"] == f"{key_hash(KEY).segment_hash:#06x}"
    assert cleave.json("key", orders, KEY, "--at", "2999-01-01T00:00:00Z")["segment_id"] == now


def test_sql_gives_the_same_segment_in_one_line(cleave: CommandLine, orders: str) -> None:
    with cleave.store.transaction() as tx:
        found = tx.exec_driver_sql(
            "SELECT segment_id FROM inspect.layout_at(%s, now())"
            " WHERE state = 'ACTIVE' AND inspect.hash_of(%s) BETWEEN range_start AND range_end",
            (f"topic://{orders}", KEY),
        ).scalar_one()

    assert found == cleave.json("key", orders, KEY)["segment_id"] == sent_to(cleave, orders, KEY)


def test_people_get_one_line_of_it(cleave: CommandLine, orders: str) -> None:
    title, _, line = cleave.ok("key", orders, KEY).splitlines()

    assert title == f"topic://{orders}"
    assert line.split()[:2] == [KEY, f"{key_hash(KEY).segment_hash:#06x}"]


def test_a_time_before_the_topic_was_is_named(cleave: CommandLine, orders: str) -> None:
    said = cleave.refused("key", orders, KEY, "--at", "1999-01-01")

    assert f"topic://{orders} has no layout before 1999" in said
