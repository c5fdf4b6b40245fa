"""`cleave subscriptions` and `cleave consumers`."""

from __future__ import annotations

from tests.support.command_line import CommandLine


def test_a_subscription_is_created_listed_and_deleted(cleave: CommandLine, orders: str) -> None:
    created = cleave.json("subscriptions", "create", orders, "billing", "--kind", "queue")
    listed = cleave.json("subscriptions", "list", orders)
    deleted = cleave.json("subscriptions", "delete", orders, "billing")

    assert (created["kind"], created["state"]) == ("subscription_create", "done")
    assert [(row["subscription"], row["kind"], row["state"]) for row in listed] == [
        ("billing", "QUEUE", "live")
    ]
    assert (deleted["kind"], deleted["state"]) == ("subscription_delete", "done")
    assert cleave.json("subscriptions", "list", orders) == []


def test_consumers_come_are_listed_and_leave(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    said = cleave.ok("consumers", "register", orders, "billing", "c1")
    cleave.ok("consumers", "register", orders, "billing", "c2")
    readable = cleave.json("consumers", "list", orders)
    (subscription,) = cleave.json("subscriptions", "list", orders)
    left = cleave.json("consumers", "unregister", orders, "billing", "c1")

    assert said == f"topic://{orders}: c1 billing registered\n"
    assert [(row["segment_id"], row["barrier"]) for row in readable] == [(0, "readable"), (1, "readable")]
    assert subscription["consumer_names"] == ["c1", "c2"]
    assert (left["consumer"], left["result"]) == ("c1", "unregistered")
    assert cleave.json("subscriptions", "list", orders)[0]["consumer_names"] == ["c2"]
    assert "billing" in cleave.ok("consumers", "list", orders)
    assert "billing" in cleave.ok("subscriptions", "list", orders)


def test_dry_runs_say_what_would_happen(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    created = cleave.rehearsed("subscriptions", "create", orders, "audit", "--kind", "CHECKPOINT")
    deleted = cleave.rehearsed("subscriptions", "delete", orders, "billing")

    assert created == f"topic://{orders} at epoch 0: subscription_create audit would be accepted\n"
    assert deleted == f"topic://{orders} at epoch 0: subscription_delete billing would be accepted\n"
    assert "already" in cleave.refused("subscriptions", "create", orders, "billing", "--dry-run")


def test_lag_is_counted_of_each_bucket(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    rows = cleave.json("consumers", "lag", orders, "billing")["buckets"]

    assert {(row["segment_id"], row["messages"]) for row in rows} == {(0, 0), (1, 0)}
    assert len({row["bucket"] for row in rows}) == 2
    assert "0000-7fff" in cleave.ok("consumers", "lag", orders, "billing")
    assert "elsewhere" in cleave.refused("consumers", "lag", orders, "elsewhere")


def test_how_a_subscription_is_shared_out_is_set_and_shown(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")

    rehearsed = cleave.rehearsed("subscriptions", "set", orders, "billing", "--no-parents-block")
    cleave.ok("subscriptions", "set", orders, "billing", "--no-parents-block")
    cleave.ok("subscriptions", "set", orders, "billing", "--drain-consumers", "4")
    (row,) = cleave.json("subscriptions", "list", orders)

    assert rehearsed.startswith(f"topic://{orders}: sharing of billing would be set\n")
    assert (row["parents_block"], row["drain_consumers"]) == (False, 4)
    assert "nothing to set" in cleave.refused("subscriptions", "set", orders, "billing")
    assert "nothing" in cleave.refused("subscriptions", "set", orders, "nothing", "--parents-block")


def test_standard_consumers_are_refused_where_the_logs_have_no_gates(
    cleave: CommandLine, orders: str
) -> None:
    cleave.ok("subscriptions", "create", orders, "billing", "--consumers", "cleave")
    (row,) = cleave.json("subscriptions", "list", orders)
    assert row["read_by"] == "cleave"

    for command in ("create", "set"):
        name = "audit" if command == "create" else "billing"
        refusal = cleave.refused("subscriptions", command, orders, name, "--consumers", "stock")
        assert "has no gates, which keep standard consumers in order" in refusal


def test_the_policy_names_the_consumers_of_a_stream_whose_request_names_none(
    cleave: CommandLine, orders: str
) -> None:
    cleave.ok("policy", "set", f"topic://{orders}", "subscription_consumers=stock")

    refusal = cleave.refused("subscriptions", "create", orders, "billing")
    assert "has no gates, which keep standard consumers in order" in refusal
    cleave.ok("subscriptions", "create", orders, "billing", "--consumers", "cleave")
    cleave.ok("subscriptions", "create", orders, "jobs", "--kind", "queue")

    assert [row["read_by"] for row in cleave.json("subscriptions", "list", orders)] == ["cleave", "cleave"]


def test_an_unreadable_policy_is_named_unless_the_request_names_the_consumers(
    cleave: CommandLine, orders: str
) -> None:
    cleave.execute(
        """UPDATE cleave.topic SET policy = '{"max_segments": "x"}', row_version = row_version + 1"""
    )

    refusal = cleave.refused("subscriptions", "create", orders, "billing")

    assert "max_segments" in refusal
    assert "correct the policy, or name the consumers in the request" in refusal
    cleave.ok("subscriptions", "create", orders, "billing", "--consumers", "cleave")


def test_why_refuses_what_no_leader_hands_out_and_a_name_that_is_not_there(
    cleave: CommandLine, orders: str
) -> None:
    cleave.ok("subscriptions", "create", orders, "jobs", "--kind", "queue")
    cleave.ok("subscriptions", "create", orders, "kept", "--kind", "checkpoint")
    cleave.ok("segments", "split", orders, "0")

    def said(name: str) -> str:
        return cleave.refused("consumers", "why", orders, "--subscription", name)

    assert f"topic topic://{orders} has no subscription nosuch" in said("nosuch")
    assert "subscription jobs is a queue: " in said("jobs")
    assert "`QueueConsumer.why` returns" in said("jobs")
    assert "subscription kept is read by consumers that store their own positions" in said("kept")
    assert cleave.json("consumers", "why", orders) == []
    for act in (["consumers", "lag", orders, "nosuch"], ["consumers", "register", orders, "nosuch", "c1"]):
        assert f"topic topic://{orders} has no subscription nosuch" in cleave.refused(*act)


def test_a_checkpoint_group_with_a_member_has_buckets(cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "kept", "--kind", "checkpoint")
    cleave.execute(
        """
        INSERT INTO cleave.consumer (topic_id, subscription, name, incarnation)
        SELECT topic_id, 'kept', 'a', gen_random_uuid()::text FROM cleave.topic
        """
    )

    assert {row["reason"] for row in cleave.json("consumers", "why", orders, "--subscription", "kept")} == {
        "not assigned yet"
    }
