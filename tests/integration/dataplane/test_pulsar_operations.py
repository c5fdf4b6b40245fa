"""The `cleave` command on a real broker: what it does to topics there, and what it carries over."""

from __future__ import annotations

import pulsar
import pytest

from controller.dataplane.base import LogState
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.services import deletion_sweeper
from controller.store.topics.subscriptions import list_subscriptions
from tests.integration.dataplane.pulsar_house import PulsarSetup

OPEN, TERMINATED, MISSING = LogState.OPEN, LogState.TERMINATED, LogState.MISSING


def test_a_topic_is_created_split_merged_and_deleted(house: PulsarSetup) -> None:
    house.create(2, "billing")
    assert house.log_of(0) == f"persistent://{house.namespace}/orders-segment-0000-7fff-0"

    house.cleave.ok("segments", "split", house.topic, "0")
    house.cleave.ok("segments", "split", house.topic, "1", "--cut-points", "0x9000", "--cut-points", "0xc000")
    house.cleave.ok("segments", "merge", house.topic, "2", "3")

    assert house.ranges == ["0000-7fff", "8000-8fff", "9000-bfff", "c000-ffff"]
    active = [segment.segment_id for segment in house.layout.active]
    assert house.states(*active) == [OPEN] * 4
    assert house.states(0, 1, 2, 3) == [TERMINATED] * 4
    recorded = house.scalar(
        "SELECT jsonb_object_agg(backing_topic, terminated_position) FROM cleave.segment WHERE state = 'SEALED'"
    )
    plane = house.app.planes["pulsar"]
    assert recorded == {house.log_of(one): plane.terminate_segment(house.log_of(one)) for one in (0, 1, 2, 3)}
    assert all(house.cursors(one) == ["billing"] for one in (*active, 0, 1, 2, 3))

    logs = [house.log_of(one) for one in house.layout.segments]
    house.cleave.ok("topics", "delete", house.topic, "--yes")
    deletion_sweeper.sweep(house.app.store, house.app.planes)
    assert [house.app.planes["pulsar"].segment_state(log) for log in logs] == [MISSING] * len(logs)


def test_pulsars_own_name_of_a_topic_will_do(house: PulsarSetup) -> None:
    house.cleave.ok("topics", "create", f"persistent://{house.namespace}/orders", "--data-plane", "pulsar")

    assert house.cleave.json("topics", "show", house.topic)["topic"] == house.topic


@pytest.mark.parametrize("name", ["cleave-tests/n!/x", "ten%/n/x"])
def test_a_name_that_pulsar_does_not_take_is_refused_in_one_line(house: PulsarSetup, name: str) -> None:
    assert "Pulsar allows" in house.cleave.refused("topics", "create", name, "--data-plane", "pulsar")


def test_a_topic_in_a_namespace_that_is_not_there_says_what_to_do(house: PulsarSetup) -> None:
    for more in ([], ["--dry-run"], ["--json"]):
        said = house.cleave.refused("topics", "create", "nobody/nowhere/x", "--data-plane", "pulsar", *more)
        assert "check namespace nobody/nowhere: answered 404" in said
        assert "create the tenant and namespace" in said


def test_an_operation_that_the_broker_refuses_for_good_says_why(
    house: PulsarSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace went after it was looked at."""
    monkeypatch.setattr(PulsarDataPlane, "demand_namespace", lambda *_: None)

    answer = house.cleave("topics", "create", "nobody/nowhere/x", "--data-plane", "pulsar")

    assert answer.code == 1
    assert "(create of topic://nobody/nowhere/x) was aborted: " in answer.err
    assert "create the tenant and namespace" in answer.err
    (listed,) = house.cleave.json("operations", "--topic", "nobody/nowhere/x")
    assert "create the tenant and namespace" in listed["last_error"]


def test_what_applications_subscribed_themselves_is_carried_over_and_noted(house: PulsarSetup) -> None:
    """A durable one goes on on the children, from their beginning; a reader's temporary one does not."""
    house.create(1, "billing")
    client = house.client()
    consumer = client.subscribe(house.log_of(0), "of-an-application")
    reader = client.create_reader(house.log_of(0), pulsar.MessageId.earliest)

    house.cleave.ok("segments", "split", house.topic, "0")

    assert house.cursors(1) == house.cursors(2) == ["billing", "of-an-application"]
    noted = house.scalar(
        "SELECT detail->'made by applications' FROM cleave.operation_step WHERE detail ? 'made by applications'"
    )
    assert noted == ["of-an-application"]
    with house.app.store.transaction() as tx:
        assert [row.name for row in list_subscriptions(tx, house.topic_id)] == ["billing"]
    reader.close()
    consumer.close()
    client.close()


def test_without_the_cluster_a_topic_on_it_is_refused(
    house: PulsarSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLEAVE_PULSAR_ADMIN_URL")
    monkeypatch.delenv("CLEAVE_PULSAR_SERVICE_URL")

    said = house.cleave.refused("topics", "create", house.topic, "--data-plane", "pulsar")

    assert "'pulsar' is not configured here" in said


def test_an_address_that_nothing_answers_at_ends_in_one_line(
    house: PulsarSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", "http://127.0.0.1:9")

    answer = house.cleave("topics", "create", house.topic, "--data-plane", "pulsar", "--timeout-seconds", "0")

    assert (answer.code != 0, answer.err.count("\n")) == (True, 1)
    assert house.scalar("SELECT state FROM cleave.topic") == "creating"


def test_settings_that_contradict_each_other_are_one_line(
    house: PulsarSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", "ftp://secret@host")
    said = house.cleave.refused("topics", "create", house.topic, "--data-plane", "pulsar")
    assert "CLEAVE_PULSAR_ADMIN_URL" in said
    assert "secret" not in said


def test_no_secret_in_the_text_of_the_access() -> None:
    assert "hush" not in repr(PulsarAccess(admin_url="http://localhost:8080", token="hush"))
