"""Commands that only read need a login that can only read."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from controller.commands.read_only_store import reading
from controller.domain.errors import StoreUnavailable
from tests.support.command_line import CommandLine

READING = [
    ("topics", "list"),
    ("topics", "show", "TOPIC"),
    ("layout", "TOPIC"),
    ("layout", "TOPIC", "--at", "0"),
    ("layout", "TOPIC", "--metadata"),
    ("lineage", "TOPIC"),
    ("key", "TOPIC", "customer-7"),
    ("key", "TOPIC", "customer-7", "--at", "0"),
    ("decisions", "list"),
    ("decisions", "list", "--topic", "TOPIC"),
    ("decisions", "refusals"),
    ("operations",),
    ("operations", "--stuck", "--topic", "TOPIC"),
    ("policy", "get", "cluster"),
    ("policy", "get", "acme/shop"),
    ("policy", "get", "TOPIC"),
    ("policy", "effective", "TOPIC"),
    ("subscriptions", "list", "TOPIC"),
    ("consumers", "list", "TOPIC"),
    ("consumers", "why", "TOPIC", "--subscription", "billing"),
    ("consumers", "why", "TOPIC", "--subscription", "billing", "--unread"),
]
STANDARD = ("consumers", "why", "TOPIC", "--subscription", "standard", "--unread")
UNEXPLAINED = [
    ("jobs", "subscription jobs is a queue"),
    ("none", "topic topic://acme/shop/orders has no subscription none; create it, or check the name"),
]
CHANGING = [
    ("topics", "create", "acme/shop/new"),
    ("segments", "split", "TOPIC", "0"),
    ("policy", "set", "TOPIC", "max_segments=9"),
    ("consumers", "register", "TOPIC", "billing", "ada"),
]


@pytest.fixture
def past(cleave: CommandLine, orders: str) -> str:
    """A topic with a subscription, a queue, a subscription of standard consumers, an operation and a policy."""
    cleave.ok("subscriptions", "create", orders, "billing")
    cleave.ok("subscriptions", "create", orders, "jobs", "--kind", "queue")
    cleave.ok("segments", "split", orders, "0")
    cleave.ok("policy", "set", orders, "max_segments=16")
    cleave.ok("subscriptions", "create", orders, "standard")
    cleave.execute("UPDATE cleave.subscription SET consumers = 'stock' WHERE name = 'standard'")
    cleave.execute(
        "INSERT INTO cleave.segment_drain (topic_id, subscription, segment_id)"
        " SELECT topic_id, name, 0 FROM cleave.subscription WHERE name = 'standard'"
    )
    cleave.execute(
        "INSERT INTO cleave.observed_subscription (topic_id, name, subscription_type, consumers, consumer_names)"
        " SELECT topic_id, name, 'Failover', 1, '{a}' FROM cleave.subscription WHERE name = 'standard'"
    )
    return orders


@pytest.mark.parametrize("command", [*READING, STANDARD], ids=" ".join)
def test_a_command_that_reads_does_with_a_login_that_can_only_read(
    cleave: CommandLine, past: str, reader: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    words = [past if word == "TOPIC" else word for word in command]
    as_reader = cleave.json(*words)
    monkeypatch.setenv("CLEAVE_DATABASE_URL", cleave.store.address.uri)

    assert as_reader == cleave.json(*words)
    assert cleave.ok(*words)


@pytest.mark.parametrize(("subscription", "words"), UNEXPLAINED)
def test_a_login_that_can_only_read_is_told_why_a_subscription_has_no_buckets(
    cleave: CommandLine, past: str, reader: str, subscription: str, words: str
) -> None:
    assert words in cleave.refused("consumers", "why", past, "--subscription", subscription)


@pytest.mark.parametrize("command", CHANGING, ids=" ".join)
def test_a_command_that_changes_something_is_refused_to_it(
    cleave: CommandLine, past: str, reader: str, command: tuple[str, ...]
) -> None:
    words = [past if word == "TOPIC" else word for word in command]

    assert "permission denied" in cleave.refused(*words, code=1)


def test_reading_changes_nothing_even_with_a_login_that_could(cleave: CommandLine) -> None:
    with pytest.raises(StoreUnavailable, match="read-only transaction"), reading() as tx:
        tx.execute(text("DELETE FROM cleave.consumer"))
