"""The sensor, in this process: in each of its two ways it ends as the operation does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.services import segment_admin
from tests.integration.airflow.conftest import FailingApiServer
from tests.integration.airflow.provider.conftest import RunExample, RunOperator
from tests.support.bench import Bench

pytestmark = pytest.mark.airflow
WAYS = pytest.mark.parametrize("deferrable", [False, True], ids=["rescheduled", "deferred"])


def split(bench: Bench, **options: float) -> int:
    """Id of a split that nobody runs yet."""
    bench.create()
    return bench.intend(segment_admin.splitting(0), bench.request(**options)).operation.operation_id


def waiting(operation_id: object, *, deferrable: bool, **options: object) -> str:
    """The text of a sensor."""
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"WaitForOperationSensor(task_id='wait', operation_id={operation_id!r}, deferrable={deferrable}{given})"


def test_both_ways_of_the_example_hand_on_the_operation(bench: Bench, run_example: RunExample) -> None:
    operation_id = split(bench)
    bench.drive(operation_id)

    run = run_example("example_cleave_wait", operation_id=operation_id)

    assert run.state == "success"
    told = {
        instance.task_id: instance.xcom_pull(task_ids=instance.task_id)
        for instance in run.get_task_instances()
    }
    assert told["describe_operation"] == f"split of {bench.topic_name} made segments [1, 2]"
    assert told["wait"] == told["deferred"]
    link = run.get_task_instance("wait").xcom_pull(task_ids="wait", key="_link_OperationLink")
    assert link.endswith(f"/operation?operation_id={operation_id}")


@WAYS
@pytest.mark.parametrize("operation_id", ["", "the last one", None, -1, 1.5, True, 10**30, "9" * 5_000])
def test_an_id_of_no_operation_fails_the_task_at_once_with_one_line(
    bench: Bench,
    run_operator: RunOperator,
    capsys: pytest.CaptureFixture[str],
    deferrable: bool,
    operation_id: object,
) -> None:
    failed = run_operator(waiting(operation_id, deferrable=deferrable))

    assert (failed.state, failed.try_number) == ("failed", 1)
    [line] = {
        line.partition("operation_id=")[2]
        for line in capsys.readouterr().out.splitlines()
        if "must be the id of an operation" in line
    }
    assert line.startswith(repr(operation_id)[:40])
    assert len(line) < 300


@WAYS
def test_an_aborted_operation_fails_the_task_at_once_with_one_line(
    bench: Bench, run_operator: RunOperator, capsys: pytest.CaptureFixture[str], deferrable: bool
) -> None:
    operation_id = split(bench, deadline_seconds=0.0)
    bench.drive(operation_id)

    failed = run_operator(waiting(operation_id, deferrable=deferrable))

    assert (failed.state, failed.try_number) == ("failed", 1)
    assert f"operation {operation_id} (split of {bench.topic_name}) was aborted" in capsys.readouterr().out


@WAYS
def test_a_soft_fail_skips_instead(bench: Bench, run_operator: RunOperator, deferrable: bool) -> None:
    bench.create()

    assert run_operator(waiting(77_777, deferrable=deferrable, soft_fail=True)).state == "skipped"


@WAYS
def test_what_is_no_operation_fails_at_once(
    bench: Bench, run_operator: RunOperator, capsys: pytest.CaptureFixture[str], deferrable: bool
) -> None:
    failed = run_operator(waiting("the last one", deferrable=deferrable))

    assert (failed.state, failed.try_number) == ("failed", 1)
    assert "operation_id='the last one' must be the id of an operation" in capsys.readouterr().out


def test_it_is_rescheduled_until_the_operation_ends(bench: Bench, connection: str) -> None:
    from cleave_provider.sensors.cleave import WaitForOperationSensor

    operation_id = split(bench)
    sensor = WaitForOperationSensor(task_id="wait", operation_id=operation_id)

    assert sensor.mode == "reschedule"
    assert not sensor.poke({})
    bench.drive(operation_id)
    found: Any = sensor.poke({})
    assert (found.is_done, found.xcom_value["state"]) == (True, "done")


def test_a_database_that_is_away_is_looked_at_again(connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look costs no attempt, or an hour's wait would end with a restart of the server."""
    from cleave_provider.sensors.cleave import WaitForOperationSensor

    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", "postgres://nobody@127.0.0.1:9/none")
    sensor = WaitForOperationSensor(task_id="wait", operation_id=1)
    for _ in range(2):
        assert not sensor.poke({})


def test_an_api_server_that_answers_with_errors_is_asked_again(failing_api_server: FailingApiServer) -> None:
    from cleave_provider.sensors.cleave import WaitForOperationSensor

    assert not WaitForOperationSensor(task_id="wait", operation_id=1).poke({})


def test_the_dags_own_pace_counts(airflow_home: None) -> None:
    from cleave_provider.sensors.cleave import WaitForOperationSensor

    ours = WaitForOperationSensor(task_id="wait", operation_id=1)
    assert (ours.mode, ours.poke_interval) == ("reschedule", 10)
    theirs = WaitForOperationSensor(
        task_id="wait", operation_id=1, default_args={"mode": "poke", "poke_interval": 77}
    )
    assert (theirs.mode, theirs.poke_interval) == ("poke", 77)


def test_deferred_it_is_tried_again_whatever_is_asked(airflow_home: None) -> None:
    from cleave_provider.sensors.cleave import WaitForOperationSensor

    def retries(**options: Any) -> object:
        return WaitForOperationSensor(task_id="wait", operation_id=1, **options).retries

    assert retries(deferrable=True, retries=0) == 2
    assert retries(deferrable=True) == 3
    assert retries(retries=0) == 0


def test_the_trigger_waits_and_survives_being_stored(bench: Bench, connection: str) -> None:
    from cleave_provider.triggers.cleave import OperationTrigger

    operation_id = split(bench)
    path, kept = OperationTrigger(operation_id, poll_seconds=0.05).serialize()
    assert path == "cleave_provider.triggers.cleave.OperationTrigger"

    async def told() -> Any:
        waits = asyncio.ensure_future(anext(OperationTrigger(**kept).run()))
        await asyncio.to_thread(bench.drive, operation_id)
        return (await asyncio.wait_for(waits, 30)).payload

    event = asyncio.run(told())
    assert (event["operation"]["operation_id"], event["operation"]["state"]) == (operation_id, "done")


def test_the_trigger_looks_its_connection_up_at_each_look(
    bench: Bench, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password that was renewed meanwhile is the one that serves."""
    from cleave_provider.triggers.cleave import OperationTrigger

    operation_id = split(bench)
    bench.drive(operation_id)
    looks = OperationTrigger._look
    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", "postgres://nobody@127.0.0.1:9/none")

    def put_right(trigger: Any, access: Any) -> Any:
        monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", connection)
        return looks(trigger, access)

    monkeypatch.setattr(OperationTrigger, "_look", put_right)

    async def told() -> Any:
        event = await asyncio.wait_for(anext(OperationTrigger(operation_id, poll_seconds=0.05).run()), 30)
        return event.payload

    assert asyncio.run(told())["operation"]["state"] == "done"


def test_the_trigger_waits_while_the_api_server_answers_with_errors(
    bench: Bench, connection: str, failing_api_server: FailingApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cleave_provider.triggers.cleave import OperationTrigger

    operation_id = split(bench)
    bench.drive(operation_id)

    async def told() -> Any:
        waits = asyncio.ensure_future(anext(OperationTrigger(operation_id, poll_seconds=0.05).run()))
        lookups_of_a_check = 2  # by Airflow, and by Cleave to learn why Airflow found nothing
        while failing_api_server.lookups <= lookups_of_a_check and not waits.done():
            await asyncio.sleep(0.01)
        assert not waits.done()
        monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", connection)
        return (await asyncio.wait_for(waits, 30)).payload

    assert asyncio.run(told())["operation"]["state"] == "done"
