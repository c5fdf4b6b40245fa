"""Changes of one level at the same time: each keeps the parameters of the others. Previews: the same result as the change."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from controller.domain.errors import InvalidPolicy, LostRace
from controller.services import policy_admin, topic_admin
from controller.services.policy_admin import Changed, Document
from tests.support.bench import TOPIC, Bench

LEVELS = ["cluster", TOPIC.removeprefix("topic://").rpartition("/")[0], TOPIC]


@pytest.mark.parametrize("level", LEVELS)
def test_changes_at_the_same_time_keep_each_others_parameters(bench: Bench, level: str) -> None:
    bench.topic_with()
    seen: list[Document] = []

    def merge(before: Document) -> Document:
        seen.append(before)
        if len(seen) == 1:  # another change is committed after this one has read the document
            policy_admin.change(
                bench.store, level, lambda now: {**now, "merge_cooldown_seconds": 7}, actor="bob"
            )
        return {**before, "max_segments": 9}

    changed = policy_admin.change(bench.store, level, merge, actor="ann")

    assert [document.get("merge_cooldown_seconds") == 7 for document in seen] == [False, True]
    assert changed.before == seen[1]
    assert (changed.after["max_segments"], changed.after["merge_cooldown_seconds"]) == (9, 7)


def test_a_change_that_others_always_precede_ends(bench: Bench) -> None:
    bench.topic_with()
    turns: list[int] = []

    def merge(_before: Document) -> Document:
        turns.append(len(turns) + 1)
        policy_admin.change(bench.store, TOPIC, lambda _: {"max_segments": len(turns)}, actor="bob")
        return {"min_segments": 1}

    with pytest.raises(LostRace, match="read the policy again"):
        policy_admin.change(bench.store, TOPIC, merge, actor="ann")

    assert bench.store.in_transaction(policy_admin.stored, TOPIC) == {"max_segments": len(turns)}


def test_a_change_logs_the_parameters_that_differ(bench: Bench) -> None:
    bench.topic_with()
    policy_admin.change(bench.store, TOPIC, lambda _: {"min_segments": 2, "max_segments": 8}, actor="ann")

    with capture_logs() as lines:
        policy_admin.change(bench.store, TOPIC, lambda _: {"min_segments": 2, "max_segments": 9}, actor="ann")
        policy_admin.change(bench.store, TOPIC, dict, actor="ann")

    assert [(line["event"], line["parameters"]) for line in lines] == [("policy set", ["max_segments"])]


@pytest.mark.parametrize(
    "above",
    ['{"no_such_parameter": 1}', '{"max_segments": 0}'],
    ids=["not readable", "not valid"],
)
def test_the_preview_removes_a_topics_policy_like_the_change(bench: Bench, above: str) -> None:
    bench.topic_with()
    policy_admin.change(bench.store, TOPIC, lambda _: {"merge_cooldown_seconds": 7}, actor="ann")
    with bench.store.transaction() as tx:
        tx.execute(text("UPDATE cleave.cluster_policy SET policy = CAST(:above AS jsonb)"), {"above": above})

    preview = policy_admin.preview(bench.store, bench.planes, TOPIC, lambda _: {})
    changed = policy_admin.change(bench.store, TOPIC, lambda _: {}, actor="ann")

    assert preview.changed == changed == Changed({"merge_cooldown_seconds": 7}, {})
    assert (preview.evaluated, preview.topics) == (1, 1)


@pytest.mark.parametrize("seconds", [7, None])
def test_the_preview_refuses_a_topics_document_like_the_change(bench: Bench, seconds: int | None) -> None:
    bench.topic_with()
    with bench.store.transaction() as tx:
        tx.execute(text("""UPDATE cleave.cluster_policy SET policy = '{"max_segments": 0}'"""))

    def merge(_before: Document) -> Document:
        return {"merge_cooldown_seconds": seconds}

    with pytest.raises(InvalidPolicy, match="max_segments = 0"):
        policy_admin.preview(bench.store, bench.planes, TOPIC, merge)
    with pytest.raises(InvalidPolicy, match="max_segments = 0"):
        policy_admin.change(bench.store, TOPIC, merge, actor="ann")


@pytest.mark.parametrize("level", LEVELS)
def test_one_correct_value_repairs_a_document_with_a_number_that_python_does_not_convert(
    bench: Bench, level: str
) -> None:
    bench.topic_with()
    statement = {
        LEVELS[0]: "UPDATE cleave.cluster_policy SET policy = CAST(:p AS jsonb)",
        LEVELS[
            1
        ]: f"INSERT INTO cleave.namespace_policy (namespace, policy, actor) VALUES ('{LEVELS[1]}', CAST(:p AS jsonb), 'x')",
        LEVELS[2]: "UPDATE cleave.topic SET policy = CAST(:p AS jsonb), row_version = row_version + 1",
    }[level]
    bench.execute(statement, p=f'{{"max_segments": {"9" * 5000}, "min_segments": 2}}')

    changed = policy_admin.change(bench.store, level, lambda now: {**now, "max_segments": 8}, actor="ann")

    assert changed.before["max_segments"] == "9" * 5000
    assert (changed.after["max_segments"], changed.after["min_segments"]) == (8, 2)


@pytest.mark.parametrize("level", LEVELS[:2])
def test_the_preview_of_a_level_has_its_live_topics_only(bench: Bench, level: str) -> None:
    bench.topic_with()
    topic_admin.delete_topic(bench.store, TOPIC, bench.request())

    preview = policy_admin.preview(bench.store, bench.planes, level, dict)

    assert (preview.evaluated, preview.topics) == (0, 0)
