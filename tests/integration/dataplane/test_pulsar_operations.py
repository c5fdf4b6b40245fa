"""The `cleave` command on a real broker: what it does to topics there, and what it carries over."""

from __future__ import annotations

import pulsar
import pytest

from controller.dataplane.base import LogState
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.services import deletion_sweeper
from controller.store.topics.subscriptions import list_subscriptions
from tests.integration.dataplane.pulsar_setup import PulsarSetup

OPEN, TERMINATED, MISSING = LogState.OPEN, LogState.TERMINATED, LogState.MISSING


def test_a_topic_is_created_split_merged_and_deleted(setup: PulsarSetup) -> None:
    setup.create(2, "billing")
    assert setup.log_of(0) == f"persistent://{setup.namespace}/orders-segment-0000-7fff-0"

    setup.cleave.ok("segments", "split", setup.topic, "0")
    setup.cleave.ok("segments", "split", setup.topic, "1", "--cut-points", "0x9000", "--cut-points", "0xc000")
    setup.cleave.ok("segments", "merge", setup.topic, "2", "3")

    assert setup.ranges == ["0000-7fff", "8000-8fff", "9000-bfff", "c000-ffff"]
    active = [segment.segment_id for segment in setup.layout.active]
    assert setup.states(*active) == [OPEN] * 4
    assert setup.states(0, 1, 2, 3) == [TERMINATED] * 4
    recorded = setup.scalar(
        "SELECT jsonb_object_agg(key, value) FROM cleave.operation_step, jsonb_each(detail -> 'positions')"
    )
    plane = setup.app.planes["pulsar"]
    assert recorded == {setup.log_of(one): plane.terminate_segment(setup.log_of(one)) for one in (0, 1, 2, 3)}
    assert all(setup.cursors(one) == ["billing"] for one in (*active, 0, 1, 2, 3))

    logs = [setup.log_of(one) for one in setup.layout.segments]
    setup.cleave.ok("topics", "delete", setup.topic, "--yes")
    deletion_sweeper.sweep(setup.app.store, setup.app.planes)
    assert [setup.app.planes["pulsar"].segment_state(log) for log in logs] == [MISSING] * len(logs)


def test_pulsars_own_name_of_a_topic_will_do(setup: PulsarSetup) -> None:
    setup.cleave.ok("topics", "create", f"persistent://{setup.namespace}/orders", "--data-plane", "pulsar")

    assert setup.cleave.json("topics", "show", setup.topic)["topic"] == setup.topic


@pytest.mark.parametrize("name", ["cleave-tests/n!/x", "ten%/n/x"])
def test_a_name_that_pulsar_does_not_take_is_refused_in_one_line(setup: PulsarSetup, name: str) -> None:
    assert "Pulsar allows" in setup.cleave.refused("topics", "create", name, "--data-plane", "pulsar")


def test_a_topic_in_a_namespace_that_is_not_there_says_what_to_do(setup: PulsarSetup) -> None:
    for more in ([], ["--dry-run"], ["--json"]):
        said = setup.cleave.refused("topics", "create", "nobody/nowhere/x", "--data-plane", "pulsar", *more)
        assert "check namespace nobody/nowhere: answered 404" in said
        assert "create the tenant and namespace" in said


def test_an_operation_that_the_broker_refuses_for_good_says_why(
    setup: PulsarSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace went after it was looked at."""
    monkeypatch.setattr(PulsarDataPlane, "demand_namespace", lambda *_: None)

    answer = setup.cleave("topics", "create", "nobody/nowhere/x", "--data-plane", "pulsar")

    assert answer.code == 1
    assert "(create of topic://nobody/nowhere/x) was aborted: " in answer.err
    assert "create the tenant and namespace" in answer.err
    (listed,) = setup.cleave.json("operations", "--topic", "nobody/nowhere/x")
    assert "create the tenant and namespace" in listed["last_error"]


def test_what_applications_subscribed_themselves_is_carried_over_and_noted(setup: PulsarSetup) -> None:
    """A durable one goes on on the children, from their beginning; a reader's temporary one does not."""
    setup.create(1, "billing")
    client = setup.client()
    consumer = client.subscribe(setup.log_of(0), "of-an-application")
    reader = client.create_reader(setup.log_of(0), pulsar.MessageId.earliest)

    setup.cleave.ok("segments", "split", setup.topic, "0")

    assert setup.cursors(1) == setup.cursors(2) == ["billing", "of-an-application"]
    noted = setup.scalar(
        "SELECT detail->'made by applications' FROM cleave.operation_step WHERE detail ? 'made by applications'"
    )
    assert noted == ["of-an-application"]
    with setup.app.store.transaction() as tx:
        assert [row.name for row in list_subscriptions(tx, setup.topic_id)] == ["billing"]
    reader.close()
    consumer.close()
    client.close()


def test_without_the_cluster_a_topic_on_it_is_refused(
    setup: PulsarSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLEAVE_PULSAR_ADMIN_URL")
    monkeypatch.delenv("CLEAVE_PULSAR_SERVICE_URL")

    said = setup.cleave.refused("topics", "create", setup.topic, "--data-plane", "pulsar")

    assert "'pulsar' is not configured here" in said


def test_an_address_that_nothing_answers_at_ends_in_one_line(
    setup: PulsarSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", "http://127.0.0.1:9")

    answer = setup.cleave("topics", "create", setup.topic, "--data-plane", "pulsar", "--timeout-seconds", "0")

    assert (answer.code != 0, answer.err.count("\n")) == (True, 1)
    assert setup.scalar("SELECT state FROM cleave.topic") == "creating"


def test_settings_that_contradict_each_other_are_one_line(
    setup: PulsarSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", "ftp://secret@host")
    said = setup.cleave.refused("topics", "create", setup.topic, "--data-plane", "pulsar")
    assert "CLEAVE_PULSAR_ADMIN_URL" in said
    assert "secret" not in said


def test_no_secret_in_the_text_of_the_access() -> None:
    assert "hush" not in repr(PulsarAccess(admin_url="http://localhost:8080", token="hush"))
