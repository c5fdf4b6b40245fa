"""The database is the last guard: what breaks a rule gets the rule's sentence, as the right error."""

from __future__ import annotations

import pytest

from controller.domain.errors import (
    CleaveError,
    Conflict,
    InvalidInput,
    InvariantViolated,
    LostRace,
    NotFound,
    SegmentBusy,
    SubscriptionNotFound,
    Terminal,
    TopicExists,
)
from controller.domain.operation import OperationState
from controller.domain.reshape import plan_split
from controller.store.postgres.errors import load_comments
from tests.support.store_driver import StoreDriver


def test_every_named_rule_carries_its_sentence(driver: StoreDriver) -> None:
    """Primary keys, references to a parent row alone and NOT NULL explain themselves."""
    named = driver.sql("""
        SELECT c.conname FROM pg_constraint c
         WHERE c.connamespace = 'cleave'::regnamespace AND c.contype IN ('c', 'u', 'x', 'f') AND c.conislocal
           AND c.conname !~ '_(topic_id|operation_id)_fkey$' AND c.conparentid = 0
        UNION ALL
        SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
         WHERE i.relnamespace = 'cleave'::regnamespace AND x.indisunique
           AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.oid)
    """)
    sentences = driver.do(load_comments)

    assert named
    assert [name for (name,) in named if name not in sentences] == []


BAD_INPUT: list[tuple[str, type[CleaveError], str]] = [
    (
        "INSERT INTO cleave.topic (name, namespace, next_segment_id) VALUES ('a/b', 't/n', 0)",
        InvalidInput,
        "A topic name is",
    ),
    (
        "INSERT INTO cleave.topic (name, namespace, next_segment_id) VALUES ('topic://t/n/x', 't/other', 0)",
        InvalidInput,
        "namespace column is",
    ),
    (
        "INSERT INTO cleave.topic (name, namespace, next_segment_id) VALUES ('topic://t/n/a', 't/n', 9)",
        TopicExists,
        "exists already.*delete it first",
    ),
    (
        "INSERT INTO cleave.topic (name, namespace, next_segment_id, policy) VALUES ('topic://t/n/x', 't/n', 0, '[1]')",
        InvalidInput,
        "a JSON object",
    ),
    (
        "INSERT INTO cleave.topic (name, namespace, next_segment_id) VALUES ('topic://t/n/x/y', 't/n', 1)",
        InvalidInput,
        "without spaces or other slashes",
    ),
    (
        """INSERT INTO cleave.topic (name, namespace, next_segment_id)
           SELECT 'topic://t/n/' || string_agg(chr(20000 + 7 * i), ''), 't/n', 1 FROM generate_series(1, 1500) AS i""",
        InvalidInput,
        "index row size",
    ),
    (
        "INSERT INTO cleave.subscription (topic_id, name, created_epoch) VALUES (1, 'a b', 0)",
        InvalidInput,
        "no spaces",
    ),
    (
        "INSERT INTO cleave.subscription (topic_id, name, kind, created_epoch) VALUES (1, 's', 'FANCY', 0)",
        InvalidInput,
        "STREAM, QUEUE or CHECKPOINT",
    ),
    (
        "INSERT INTO cleave.subscription (topic_id, name, created_epoch) VALUES (404, 's', 0)",
        NotFound,
        r"\(topic_id\)=\(404\)",
    ),
    (
        "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (1, 'nobody', 'c')",
        SubscriptionNotFound,
        "create it first",
    ),
    (
        "INSERT INTO cleave.namespace_policy VALUES ('nonsense', '{}', 1, 'x')",
        InvalidInput,
        "tenant/namespace",
    ),
    (
        "INSERT INTO cleave.lease (name, holder, term, expires_at) VALUES ('l', 'h', 0, now())",
        InvalidInput,
        "start at 1",
    ),
    (
        """INSERT INTO cleave.segment_load (topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out,
                                            source, modified_at) VALUES (1, 0, 'NaN', 0, 0, 0, 's', now())""",
        InvalidInput,
        "finite and not negative",
    ),
    (
        """INSERT INTO cleave.operation (topic_id, kind, request_key, origin, actor, reason, deadline)
           SELECT topic_id, kind, request_key, origin, actor, reason, deadline FROM cleave.operation""",
        Conflict,
        "A request key is used once",
    ),
    ("UPDATE cleave.operation SET finished_at = NULL", InvalidInput, "the time at which it finished"),
    ("SELECT * FROM cleave.no_such_table", Terminal, "cleave migrate"),
    # Laws: no input leads here, only a program that does not keep them.
    ("UPDATE cleave.layout_change SET reason = 'better'", InvariantViolated, "history"),
    ("DELETE FROM cleave.segment", InvariantViolated, "history"),
    ("UPDATE cleave.segment SET range_end = 5", InvariantViolated, "may not change its range"),
    (
        "UPDATE cleave.segment SET drained_at = now() WHERE state = 'ACTIVE'",
        InvalidInput,
        "Only a sealed segment can be drained",
    ),
    (
        "UPDATE cleave.topic SET epoch = epoch - 1, row_version = row_version + 1",
        InvariantViolated,
        "only rise",
    ),
    (
        """INSERT INTO cleave.segment (topic_id, segment_id, range_start, range_end, created_epoch, created_at, backing_topic)
           VALUES (1, 77, 0, 5, 1, now(), 'b')""",
        InvariantViolated,
        "was not reserved",
    ),
    (
        "INSERT INTO cleave.layout_change (topic_id, epoch, kind, origin, actor, reason) VALUES (1, 7, 'split', 'api', 'a', 'r')",
        InvariantViolated,
        "rises by exactly 1: 7 cannot follow 0",
    ),
    (
        "INSERT INTO cleave.layout_change (topic_id, epoch, kind, origin, actor, reason) VALUES (1, 1, 'split', 'api', 'a', 'r')",
        InvariantViolated,
        "at epoch 0, but its history is at epoch 1",
    ),
    (
        """INSERT INTO cleave.layout_change (topic_id, epoch, kind, origin, actor, reason, mirrored_from)
           VALUES (1, 0, 'mirrored', 'api', 'a', 'r', 0)""",
        InvariantViolated,
        "only rises: 0 cannot follow 0",
    ),
    (
        "UPDATE cleave.segment SET pruned_epoch = 0, pruned_at = now()",
        InvalidInput,
        "Only a SEALED segment can be pruned",
    ),
    ("UPDATE cleave.segment SET state = 'SEALED'", InvalidInput, "A SEALED segment has a sealed epoch"),
    ("UPDATE cleave.segment SET backing_topic = 'x'", InvariantViolated, "range, buckets, epoch or backing"),
    (
        "UPDATE cleave.topic SET next_segment_id = 0, row_version = row_version + 1",
        InvariantViolated,
        "next segment id and subscription version of topic 1 only rise",
    ),
    (
        "UPDATE cleave.evaluation SET load_version = input_version + 1",
        InvalidInput,
        "at most the version of the inputs",
    ),
]


@pytest.mark.parametrize(
    ("statement", "error", "sentence"), BAD_INPUT, ids=[sentence for _, _, sentence in BAD_INPUT]
)
def test_bad_input_gets_the_rules_sentence(
    driver: StoreDriver, statement: str, error: type[CleaveError], sentence: str
) -> None:
    driver.create("topic://t/n/a", segments=2)

    with pytest.raises(error, match=sentence) as caught:
        driver.sql(statement)
    assert type(caught.value) is error


def test_active_segments_never_overlap(driver: StoreDriver) -> None:
    topic_id = driver.create("topic://t/n/a", segments=1).topic_id
    driver.intend(topic_id, lambda layout: plan_split(layout, 0))  # reserves ids 1 and 2

    with pytest.raises(InvariantViolated, match="never own the same hash"):
        driver.sql(
            """INSERT INTO cleave.segment (topic_id, segment_id, range_start, range_end, created_epoch, created_at,
                                           backing_topic) VALUES (:id, 1, 5, 5, 0, now(), 'b')""",
            id=topic_id,
        )


def test_active_segments_leave_no_gap(driver: StoreDriver) -> None:
    topic_id = driver.create("topic://t/n/a", segments=2).topic_id

    with pytest.raises(InvariantViolated, match="cover 32768 of 65536"):
        driver.sql(
            """
            WITH sealed AS (UPDATE cleave.segment SET state = 'SEALED', sealed_epoch = 1, sealed_at = now()
                             WHERE segment_id = 0),
                 moved AS (UPDATE cleave.topic SET epoch = 1, row_version = row_version + 1)
            INSERT INTO cleave.layout_change (topic_id, epoch, kind, origin, actor, reason)
            VALUES (:id, 1, 'split', 'api', 'a', 'r')
            """,
            id=topic_id,
        )


def test_a_deleted_topic_keeps_no_active_segment(driver: StoreDriver) -> None:
    topic_id = driver.create("topic://t/n/a").topic_id

    with pytest.raises(InvariantViolated, match="deleted topic 1 cover 65536"):
        driver.sql(
            """
            WITH gone AS (UPDATE cleave.topic SET state = 'deleted', epoch = 1, row_version = row_version + 1)
            INSERT INTO cleave.layout_change (topic_id, epoch, kind, origin, actor, reason)
            VALUES (:id, 1, 'delete', 'api', 'a', 'r')
            """,
            id=topic_id,
        )


def test_the_first_epoch_of_a_topic_is_0(driver: StoreDriver) -> None:
    topic_id = driver.intend_create("topic://t/n/a").operation.topic_id

    with pytest.raises(InvariantViolated, match="first epoch of topic 1 is 0, not 3"):
        driver.sql(
            """INSERT INTO cleave.layout_change (topic_id, epoch, kind, origin, actor, reason)
               VALUES (:id, 3, 'create', 'api', 'a', 'r')""",
            id=topic_id,
        )


def test_a_segment_is_sealed_before_it_is_pruned(driver: StoreDriver) -> None:
    driver.create(splits=[0])

    with pytest.raises(InvalidInput, match="created, then sealed, then pruned"):
        driver.sql("UPDATE cleave.segment SET pruned_epoch = 0, pruned_at = now() WHERE segment_id = 0")


def test_lineage_is_never_rewritten(driver: StoreDriver) -> None:
    driver.create(splits=[0])

    for statement in ("UPDATE cleave.segment_parent SET ordinal = 7", "DELETE FROM cleave.segment_parent"):
        with pytest.raises(InvariantViolated, match="segment_parent are history"):
            driver.sql(statement)


def test_the_subscription_version_of_a_topic_only_rises(driver: StoreDriver) -> None:
    driver.subscribe(driver.create().topic_id, "s")

    with pytest.raises(InvariantViolated, match="subscription version of topic 1 only rise"):
        driver.sql("UPDATE cleave.topic SET subscription_version = 0, row_version = row_version + 1")


def test_the_row_of_a_deleted_topic_is_history(driver: StoreDriver) -> None:
    driver.delete(driver.create().topic_id)

    with pytest.raises(InvariantViolated, match="is deleted and its row is history"):
        driver.sql("UPDATE cleave.topic SET state = 'live', row_version = row_version + 1")


@pytest.mark.parametrize(
    ("segment_id", "log", "sentence"),
    [
        ("segment_id", "'another'", "reserved once and never used again"),
        ("99", "backing_topic", "is used once"),
    ],
)
def test_an_id_and_a_log_are_reserved_once_even_after_an_abort(
    driver: StoreDriver, segment_id: str, log: str, sentence: str
) -> None:
    topic_id = driver.create().topic_id
    aborted = driver.intend(topic_id, lambda layout: plan_split(layout, 0))
    driver.sql("UPDATE cleave.operation SET deadline = clock_timestamp()")
    assert driver.run(aborted).state is OperationState.ABORTED
    later = driver.intend(topic_id, lambda layout: plan_split(layout, 0))

    with pytest.raises(CleaveError, match=sentence):
        driver.sql(
            f"""INSERT INTO cleave.operation_child (operation_id, topic_id, segment_id, range_start, range_end, ordinal,
                                                    backing_topic)
                SELECT :later, topic_id, {segment_id}, 0, 5, 9, {log} FROM cleave.operation_child
                 WHERE operation_id = :aborted AND ordinal = 0""",
            later=later.operation_id,
            aborted=aborted.operation_id,
        )


def test_a_segment_has_a_log_of_its_own(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=1).topic_id
    driver.intend(topic_id, lambda layout: plan_split(layout, 0))  # reserves ids 1 and 2

    with pytest.raises(CleaveError, match="Every segment has a log of its own"):
        driver.sql("""
            INSERT INTO cleave.segment (topic_id, segment_id, range_start, range_end, state, created_epoch, sealed_epoch,
                                        created_at, sealed_at, backing_topic)
            SELECT topic_id, 1, 0, 5, 'SEALED', 0, 0, now(), now(), backing_topic FROM cleave.segment
        """)


def test_a_sealed_segment_never_becomes_active_again(driver: StoreDriver) -> None:
    driver.create(splits=[0])

    with pytest.raises(InvariantViolated, match="never becomes active again"):
        driver.sql(
            "UPDATE cleave.segment SET state = 'ACTIVE', sealed_epoch = NULL, sealed_at = NULL WHERE segment_id = 0"
        )


def test_a_segment_is_in_one_live_operation(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    first = driver.intend(topic_id, lambda layout: plan_split(layout, 0))
    second = driver.create("topic://t/n/b")
    assert first.state is OperationState.INTENDED

    with pytest.raises(SegmentBusy, match="one live operation at a time"):
        driver.sql(
            """INSERT INTO cleave.operation_parent (operation_id, topic_id, segment_id, ordinal)
               SELECT min(operation_id), :topic_id, 0, 0 FROM cleave.operation WHERE topic_id = :other""",
            topic_id=topic_id,
            other=second.topic_id,
        )


def test_a_topic_of_a_used_name_goes_on_counting_segments(driver: StoreDriver) -> None:
    driver.delete(driver.create("topic://t/n/a", segments=3).topic_id)

    with pytest.raises(LostRace, match="by an earlier topic of that name"):
        driver.sql(
            "INSERT INTO cleave.topic (name, namespace, next_segment_id) VALUES ('topic://t/n/a', 't/n', 2)"
        )


def test_the_time_of_changes_rises_within_a_topic_even_if_the_clock_does_not(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.sql("ALTER TABLE cleave.layout_change DISABLE TRIGGER layout_change_is_history")
    driver.sql("UPDATE cleave.layout_change SET committed_at = committed_at + interval '1 hour'")
    driver.split(topic_id, 0)

    [(rises,)] = driver.sql("""
        SELECT bool_and(later.committed_at > earlier.committed_at)
          FROM cleave.layout_change later JOIN cleave.layout_change earlier ON earlier.epoch = later.epoch - 1
    """)
    assert rises
