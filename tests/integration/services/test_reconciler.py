"""Comparing books and data plane: each difference found, answered without destroying data, and not found again."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection

from controller.dataplane.base import LogReport, LogState
from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.domain.errors import DataPlaneUnavailable, InvalidInput, Unsupported
from controller.domain.operation import OperationKind, OperationState, Origin
from controller.services import subscription_admin, topic_admin
from controller.services.reconciler import Finding, FindingKind, reconcile, reconcile_topics
from controller.services.segment_admin import splitting
from controller.store.topics import backing_logs, drains, topics
from controller.store.topics.backing_logs import ExpectedLogs
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.store_driver import SOMEBODY_WAITS
from tests.support.waiting import wait_until


def look(bench: Bench, *, dry_run: bool = False) -> list[Finding]:
    """One comparison of the topic."""
    return list(reconcile(bench.store, bench.planes, bench.topic_id, dry_run=dry_run))


def kinds(findings: list[Finding]) -> list[FindingKind]:
    """What was found."""
    return [finding.kind for finding in findings]


def orphan(bench: Bench) -> str:
    """A log whose id was reserved once and belongs to nobody."""
    operation = bench.intend(splitting(0), bench.request(deadline_seconds=0.0)).operation
    bench.drive(operation.operation_id)
    bench.settle()
    log = operation.children[0].backing_topic
    bench.create_again(log)  # a call that was held up for long
    bench.execute("UPDATE cleave.deletion_entry SET closed_at = clock_timestamp() WHERE closed_at IS NULL")
    return log


def terminate_active(bench: Bench) -> None:
    bench.plane.terminate_segment(bench.log_of(1))


def delete_active(bench: Bench) -> None:
    bench.plane.delete_segment(bench.log_of(1))


def delete_sealed(bench: Bench) -> None:
    bench.plane.delete_segment(bench.log_of(0))


def reopen_sealed(bench: Bench) -> None:
    bench.plane.delete_segment(bench.log_of(0))
    bench.create_again(bench.log_of(0), ["billing"])


def remove_cursor(bench: Bench) -> None:
    bench.plane.delete_subscription(bench.log_of(1), "billing")


def remove_cursor_of_sealed(bench: Bench) -> None:
    bench.plane.delete_subscription(bench.log_of(0), "billing")


DAMAGE = [
    (terminate_active, FindingKind.ACTIVE_TERMINATED),
    (delete_active, FindingKind.ACTIVE_MISSING),
    (delete_sealed, FindingKind.SEALED_MISSING),
    (reopen_sealed, FindingKind.SEALED_OPEN),
    (remove_cursor, FindingKind.CURSOR_MISSING),
    (remove_cursor_of_sealed, FindingKind.CURSOR_MISSING),
]


@pytest.fixture
def split_topic(bench: Bench) -> Bench:
    """A topic whose segment 0 was split into 1 and 2."""
    bench.topic_with()
    bench.reshape(splitting(0))
    return bench


def test_a_whole_topic_has_no_findings(split_topic: Bench) -> None:
    assert look(split_topic) == []


@pytest.mark.parametrize(("damage", "kind"), DAMAGE, ids=[damage.__name__ for damage, _kind in DAMAGE])
def test_damage_is_listed_by_a_dry_run_and_put_right_by_a_run(
    split_topic: Bench, damage: Callable[[Bench], None], kind: FindingKind
) -> None:
    damage(split_topic)

    assert kinds(look(split_topic, dry_run=True)) == [kind]
    assert kinds(look(split_topic, dry_run=True)) == [kind]
    [finding] = look(split_topic)
    assert (finding.kind, finding.error) == (kind, None)
    split_topic.settle(collects=True)
    split_topic.check_laws()
    assert look(split_topic) == []


def test_a_terminated_active_log_is_healed_through_the_journal(split_topic: Bench) -> None:
    terminate_active(split_topic)

    [finding] = look(split_topic)

    assert finding.operation_id is not None
    operation = split_topic.operation(finding.operation_id)
    assert (operation.kind, operation.origin) == (OperationKind.HEAL, Origin.RECONCILER)
    assert look(split_topic) == []  # in a live operation: its runner's business
    assert split_topic.drive(operation.operation_id).state is OperationState.DONE


def test_a_heal_that_was_aborted_is_asked_for_again(split_topic: Bench) -> None:
    terminate_active(split_topic)
    [first] = look(split_topic)
    assert first.operation_id is not None
    split_topic.execute(
        "UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1 WHERE kind = 'heal'"
    )
    assert split_topic.drive(first.operation_id).state is OperationState.ABORTED

    [second] = look(split_topic)

    assert second.operation_id not in (None, first.operation_id)
    split_topic.settle()
    split_topic.check_laws()


def test_the_log_of_a_missing_sealed_segment_counts_as_drained(split_topic: Bench) -> None:
    delete_sealed(split_topic)

    look(split_topic)

    assert split_topic.store.in_transaction(drains.drained, split_topic.topic_id, "billing") == {0}
    assert look(split_topic) == []


def test_where_no_log_at_all_is_there_nothing_is_concluded(split_topic: Bench) -> None:
    """The address may name another cluster: there everything is missing, and nothing of it is read or lost."""
    for segment_id in (0, 1, 2):
        split_topic.plane.delete_segment(split_topic.log_of(segment_id))

    for _ in range(2):
        findings = look(split_topic)
        assert sorted(kinds(findings)) == ["active-missing", "active-missing", "sealed-missing"]
        assert all("check that the address names the cluster" in str(finding.error) for finding in findings)
    assert split_topic.plane.list_segments(TOPIC) == []
    assert split_topic.store.in_transaction(drains.drained, split_topic.topic_id, "billing") == set()


def test_an_orphan_goes_through_a_tombstone(bench: Bench) -> None:
    bench.topic_with()
    log = orphan(bench)

    [finding] = look(bench)

    assert (finding.kind, finding.backing_topic) == (FindingKind.ORPHAN_LOG, log)
    assert bench.plane.segment_state(log) is LogState.OPEN  # not deleted inline
    bench.settle()
    bench.check_laws()


def test_a_log_whose_id_was_never_reserved_is_reported_and_left_alone(bench: Bench) -> None:
    bench.topic_with()
    foreign = bench.plane.backing_topic(TOPIC, "0000-ffff-99")
    bench.plane.create_segment(foreign, [])

    for _ in range(2):
        assert kinds(look(bench)) == [FindingKind.UNMANAGED_LOG]
    assert bench.plane.segment_state(foreign) is LogState.OPEN


def test_a_cursor_nobody_recorded_is_reported_and_left_alone(bench: Bench) -> None:
    bench.topic_with()
    bench.plane.create_subscription(bench.log_of(0), "application-own")

    [finding] = look(bench)

    assert (finding.kind, finding.subscription) == (FindingKind.CURSOR_UNRECORDED, "application-own")
    assert "application-own" in bench.plane.list_subscriptions(bench.log_of(0))


def test_a_log_put_back_has_the_record_of_its_first_creation(split_topic: Bench) -> None:
    """Without the record it would be a foreign log, which is never deleted."""
    log = split_topic.log_of(1)
    before = split_topic.plane.describe_logs([log])[log]
    delete_active(split_topic)

    look(split_topic)

    assert before.origin is not None
    assert split_topic.plane.describe_logs([log])[log].origin == before.origin


def test_a_log_put_back_has_the_cursors_its_parents_have(bench: Bench) -> None:
    bench.topic_with()
    bench.plane.create_subscription(bench.log_of(0), "application-own")
    bench.reshape(splitting(0))
    delete_active(bench)

    look(bench)

    assert bench.plane.list_subscriptions(bench.log_of(1)) == ["application-own", "billing"]


@pytest.mark.parametrize("state", [OperationState.PREPARED, OperationState.FENCING, OperationState.FENCED])
def test_logs_of_an_operation_under_way_are_its_runners_business(bench: Bench, state: OperationState) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, state)

    assert look(bench) == []
    assert bench.drive(operation.operation_id).state is OperationState.DONE


def test_children_made_after_the_listing_are_no_orphans(bench: Bench) -> None:
    """And a reshape that commits while the reconciler looks leaves it nothing to judge."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    plane = FaultyDataPlane(bench.runner_plane)

    def reshape_meanwhile(call: str, _number: int) -> None:
        if call == "describe_logs":
            plane.before_call = lambda _call, _number: None
            bench.drive(operation.operation_id)

    plane.before_call = reshape_meanwhile

    assert reconcile(bench.store, {"embedded": plane.as_data_plane()}, bench.topic_id) == ()
    bench.check_laws()


def test_a_reshape_made_and_done_while_the_reconciler_looks_leaves_it_nothing_to_judge(bench: Bench) -> None:
    """When its first books were read nobody was at work on the segment, and then its log was found terminated."""
    bench.topic_with()
    plane = FaultyDataPlane(bench.runner_plane)

    def reshape_meanwhile(call: str, _number: int) -> None:
        if call == "describe_logs":
            plane.before_call = lambda _call, _number: None
            bench.reshape(splitting(0))

    plane.before_call = reshape_meanwhile

    assert reconcile(bench.store, {"embedded": plane.as_data_plane()}, bench.topic_id) == ()
    bench.check_laws()


def test_a_log_that_is_out_of_sight_for_a_moment_is_not_missing(split_topic: Bench) -> None:
    """A broker says so of a log that is on its way to another one: what is missing is looked at twice."""
    plane, log = FaultyDataPlane(split_topic.plane), split_topic.log_of(1)

    def away_for_a_moment(call: str, _number: int) -> None:
        looks = [name for name, _ in plane.log if name == "describe_logs"]
        if call == "describe_logs" and len(looks) == 1:
            split_topic.plane.delete_segment(log)
        elif call == "describe_logs" and len(looks) == 2:
            split_topic.create_again(log, ["billing"])

    plane.before_call = away_for_a_moment

    assert reconcile(split_topic.store, {"embedded": plane.as_data_plane()}, split_topic.topic_id) == ()


def test_what_is_made_after_the_books_were_read_is_not_judged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run holds no lock, so only the order of its looks keeps children from being taken for orphans."""
    bench.topic_with()
    reading = backing_logs.read_expected_logs
    readings = itertools.count(1)

    def read_and_be_overtaken(tx: Connection, topic_ids: Collection[int]) -> dict[int, ExpectedLogs]:
        books = reading(tx, topic_ids)
        if next(readings) == 2:  # those that the listing is compared with
            operation = bench.intend(splitting(0)).operation
            bench.run_until(operation.operation_id, OperationState.PREPARED)
        return books

    monkeypatch.setattr(backing_logs, "read_expected_logs", read_and_be_overtaken)

    assert look(bench, dry_run=True) == []
    assert next(readings) == 3


def test_books_are_compared_while_nobody_writes_them(split_topic: Bench) -> None:
    with ThreadPoolExecutor(1) as pool:
        with split_topic.store.transaction() as tx:
            topics.get_topic(tx, split_topic.topic_id, lock=True)
            looking = pool.submit(look, split_topic)
            wait_until(
                lambda: looking.done() or split_topic.scalar(f"SELECT EXISTS ({SOMEBODY_WAITS})"),
                message="the reconciler waits for the topic's row",
            )
            assert not looking.done()
        assert looking.result() == []


def test_a_log_that_is_being_deleted_is_no_orphan(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0), bench.request(deadline_seconds=60.0)).operation
    bench.run_until(operation.operation_id, OperationState.PREPARED)
    bench.execute("UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1")
    bench.drive(operation.operation_id)
    assert bench.undeleted_logs() != []

    assert look(bench) == []


def test_cursors_are_not_judged_while_a_subscription_is_being_made(bench: Bench) -> None:
    bench.topic_with(subscriptions=())
    subscription_admin.create_subscription(bench.store, TOPIC, "billing", bench.request())

    assert look(bench) == []


def test_a_deleted_topic_is_looked_after_for_a_while(bench: Bench) -> None:
    bench.topic_with()
    log = bench.log_of(0)
    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))
    bench.settle()
    bench.execute("UPDATE cleave.deletion_entry SET closed_at = clock_timestamp() WHERE closed_at IS NULL")
    bench.create_again(log)  # a call that was held up for long

    findings, next_after = reconcile_topics(bench.store, bench.planes)

    assert (kinds(findings), next_after) == ([FindingKind.ORPHAN_LOG], None)
    bench.settle()
    assert bench.plane.list_segments(TOPIC) == []


def test_a_remedy_that_fails_is_noted_and_found_again(split_topic: Bench) -> None:
    delete_active(split_topic)
    plane = FaultyDataPlane(split_topic.plane, PlannedFault(Fault.REFUSED, "create_segment"))

    [failed] = reconcile(split_topic.store, {"embedded": plane.as_data_plane()}, split_topic.topic_id)

    assert "injected" in (failed.error or "")
    assert kinds(look(split_topic)) == [FindingKind.ACTIVE_MISSING]
    split_topic.check_laws()


def with_others(bench: Bench, count: int) -> list[int]:
    """The topic of the bench, and others like it; their ids."""
    topic_ids = [bench.topic_with()]
    for number in range(count):
        name = f"{TOPIC}-{number}"
        made = topic_admin.create_topic(
            bench.store, bench.planes, name, bench.request(), segments=2, data_plane="embedded"
        )
        topic_ids.append(bench.finish(made).topic_id)
        bench.finish(subscription_admin.create_subscription(bench.store, name, "billing", bench.request()))
    return topic_ids


def logs_of(bench: Bench, topic_id: int) -> list[str]:
    """Names of the logs behind a topic's segments, by range."""
    return bench.store.in_transaction(backing_logs.backing_topics, topic_id)


def test_topics_that_are_as_recorded_are_looked_at_together(bench: Bench) -> None:
    with_others(bench, 3)
    plane = FaultyDataPlane(bench.runner_plane)

    assert reconcile_topics(bench.store, {"embedded": plane.as_data_plane()}) == ([], None)

    assert [call for call, _ in plane.log] == ["list_segments_of", "describe_logs"]


@pytest.mark.parametrize(("topics_a_look", "logs_a_call"), [(100, 200), (2, 3)], ids=["one look", "several"])
def test_of_many_topics_those_that_differ_are_put_right(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, topics_a_look: int, logs_a_call: int
) -> None:
    """Each kind of damage is seen in the look at all of them, and what is in order is left alone."""
    module = sys.modules[reconcile_topics.__module__]
    monkeypatch.setattr(module, "TOPICS_PER_VIEW", topics_a_look)
    monkeypatch.setattr(module, "LOGS_PER_CALL", logs_a_call)
    _, first, second, third, fourth = with_others(bench, 4)
    logs = {topic_id: logs_of(bench, topic_id) for topic_id in (first, second, third, fourth)}
    bench.plane.delete_segment(logs[first][0])
    bench.plane.terminate_segment(logs[second][1])
    bench.plane.delete_subscription(logs[third][0], "billing")
    bench.plane.create_segment(f"{logs[fourth][0].rpartition('/')[0]}/0000-ffff-77", [])

    findings, _ = reconcile_topics(bench.store, bench.planes)

    assert {(one.topic, one.kind) for one in findings} == {
        (f"{TOPIC}-0", FindingKind.ACTIVE_MISSING),
        (f"{TOPIC}-1", FindingKind.ACTIVE_TERMINATED),
        (f"{TOPIC}-2", FindingKind.CURSOR_MISSING),
        (f"{TOPIC}-3", FindingKind.UNMANAGED_LOG),
    }
    bench.settle()
    assert {one.kind for one in reconcile_topics(bench.store, bench.planes)[0]} == {FindingKind.UNMANAGED_LOG}


def test_a_log_that_does_not_answer_keeps_no_other_topic_from_being_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it taken for one that is missing."""
    first, second = with_others(bench, 1)
    silent, describing = logs_of(bench, first)[0], EmbeddedDataPlane.describe_logs

    def describe_logs(plane: EmbeddedDataPlane, logs: Sequence[str]) -> dict[str, LogReport]:
        return {name: report for name, report in describing(plane, logs).items() if name != silent}

    monkeypatch.setattr(EmbeddedDataPlane, "describe_logs", describe_logs)
    for topic_id in (first, second):
        bench.plane.delete_segment(logs_of(bench, topic_id)[0])

    findings, _ = reconcile_topics(bench.store, bench.planes)

    assert [(one.topic, one.kind) for one in findings] == [(f"{TOPIC}-0", FindingKind.ACTIVE_MISSING)]
    with pytest.raises(DataPlaneUnavailable, match="not every log"):
        reconcile(bench.store, bench.planes, first)


def test_a_data_plane_that_does_not_answer_is_no_finding(split_topic: Bench) -> None:
    plane = FaultyDataPlane(split_topic.plane, PlannedFault(Fault.REFUSED, times=None))
    planes = {"embedded": plane.as_data_plane()}

    with pytest.raises(DataPlaneUnavailable):
        reconcile(split_topic.store, planes, split_topic.topic_id)
    assert reconcile_topics(split_topic.store, planes) == ([], None)
    with pytest.raises(Unsupported, match="embedded"):
        reconcile(split_topic.store, {}, split_topic.topic_id)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_comparison_of_no_topics_is_refused(bench: Bench, limit: int) -> None:
    """It has no last topic after which the next one could continue."""
    with pytest.raises(InvalidInput, match=f"limit = {limit}; give a whole number from 1 "):
        reconcile_topics(bench.store, bench.planes, limit=limit)
