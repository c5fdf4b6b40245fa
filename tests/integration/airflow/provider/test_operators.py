"""The provider's operators on a real database: the same acts as the forms', with XComs, links and failures of one line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.domain.errors import InvalidInput
from controller.landing.history import RateHistory
from tests.integration.airflow.provider.conftest import RunExample, RunOperator
from tests.support.airflow_home import SHOWS_NO_FRAMES
from tests.support.bench import TOPIC, Bench
from tests.support.browser import linked
from tests.support.recorded import keep_rates
from tests.support.reports import milliseconds

pytestmark = pytest.mark.airflow


def test_the_acts_of_the_example_are_done_one_after_the_other(bench: Bench, run_example: RunExample) -> None:
    bench.create()

    run = run_example("example_cleave_acts", topic=TOPIC, segment_id=0)

    assert run.state == "success"
    assert [segment.segment_id for segment in bench.layout.active] == [3]
    asked = bench.rows(
        "SELECT kind, reason FROM cleave.operation WHERE kind <> 'create' ORDER BY operation_id"
    )
    assert asked == [("split", "a busy day"), ("merge", "the day is over")]
    assert bench.scalar("SELECT policy FROM cleave.topic")["max_segments"] == 16
    bench.check_laws()


def act(made: str, **options: object) -> str:
    """The text of an operator on the bench's topic."""
    given = "".join(f", {name}={value!r}" for name, value in {"topic": TOPIC, **options}.items())
    return f"{made}(task_id='act'{given})"


def test_a_split_leaves_its_operation_s_id_and_a_link_to_its_page(
    bench: Bench, run_operator: RunOperator
) -> None:
    bench.create()

    done = run_operator(act("SplitSegmentOperator", segment_id=0, cut_points="0x4000, 0x8000"))

    assert done.state == "success"
    assert [str(segment.hash_range) for segment in bench.layout.active] == [
        "0000-3fff",
        "4000-7fff",
        "8000-ffff",
    ]
    [operation_id] = bench.rows("SELECT operation_id FROM cleave.operation WHERE kind = 'split'")[0]
    assert done.xcom_pull(task_ids="act", key="operation_id") == operation_id
    assert done.xcom_pull(task_ids="act")["state"] == "done"
    link = done.xcom_pull(task_ids="act", key="_link_OperationLink")
    assert link.endswith(linked(f"operation?operation_id={operation_id}"))
    key = bench.scalar("SELECT request_key FROM cleave.operation WHERE kind = 'split'")
    assert key == f"airflow/peoples_own/{done.run_id}/act/-1"


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    bench: Bench, run_operator: RunOperator, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.create(2)

    done = run_operator(act("MergeSegmentsOperator", first_id=0, second_id=1, dry_run=True))

    assert done.state == "success"
    assert len(bench.layout.active) == 2
    assert bench.live_operations() == []
    assert done.xcom_pull(task_ids="act")["dry_run"] is True
    assert "merge would seal 0, 1" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (act("SplitSegmentOperator", segment_id=77), "segment 77"),
        (act("SplitSegmentOperator", segment_id="the hot one"), "segment_id='the hot one'"),
        (act("MergeSegmentsOperator", first_id=0, second_id=2), "not adjacent"),
        (
            "SetAutoScalePolicyOperator(task_id='act', level='cluster', parameters={'how_hot': 1})",
            "how_hot",
        ),
        (act("SplitSegmentOperator", segment_id=0, cleave_conn_id="nowhere"), "no connection 'nowhere'"),
        (act("SplitSegmentOperator", segment_id=""), "segment_id=''"),
        (act("SplitSegmentOperator", segment_id=0, timeout_seconds="nan"), "timeout_seconds='nan'"),
        (act("SplitSegmentOperator", segment_id=0, timeout_seconds=-1), "timeout_seconds=-1"),
        (act("SplitSegmentOperator", segment_id=0, reason=[1]), "reason=[1]"),
        (act("RebucketSegmentOperator", segment_id=0, bucket_count=10**30), "bucket_count=1000000"),
        (act("SplitSegmentOperator", segment_id=0, topic="acme/shop/a\nb"), r"acme/shop/a\nb"),
        (
            "SetAutoScalePolicyOperator(task_id='act', level='cluster', parameters='max_segments')",
            "parameters='max_segments'",
        ),
        (
            "SetAutoScalePolicyOperator(task_id='act', level='cluster', parameters={'target_use': 'NaN'})",
            "target_use = nan must be >= 0.1",
        ),
        ("BacktestOperator(task_id='act', topics=[])", "topics=[]: give at least one topic"),
        ("BacktestOperator(task_id='act', topics='acme/shop/none')", "no live topic topic://acme/shop/none"),
        ("BacktestOperator(task_id='act', seeds='many')", "seeds='many'"),
        ("BacktestOperator(task_id='act', since='99999999d')", "99999999d"),
        ("BacktestOperator(task_id='act', policies={'adaptive': 1})", "policies"),
        ("BacktestOperator(task_id='act', weights='excess=nan')", "excess=nan"),
        (
            "BacktestOperator(task_id='act', policies='adaptive:target_use=NaN', engine='here')",
            "target_use = nan must be >= 0.1",
        ),
    ],
    ids=[
        "no such segment",
        "no number",
        "no neighbours",
        "no such parameter",
        "no connection",
        "empty",
        "no time",
        "negative",
        "no text",
        "huge",
        "two lines",
        "no parameters",
        "NaN",
        "no topics",
        "no such topic",
        "no seeds",
        "too long ago",
        "no policies",
        "no weight",
        "NaN in a policy",
    ],
)
def test_what_cannot_be_done_fails_at_once_with_one_line_and_a_link_to_the_run(
    bench: Bench, run_operator: RunOperator, capsys: pytest.CaptureFixture[str], made: str, line: str
) -> None:
    bench.create(3)

    failed = run_operator(made)

    assert (failed.state, failed.try_number) == ("failed", 1)
    said = capsys.readouterr().out
    assert line in said
    assert not (SHOWS_NO_FRAMES and "Traceback" in said)
    if "Segment" in made:
        link = failed.xcom_pull(task_ids="act", key="_link_OperationLink")
        assert linked("run?dag_id=peoples_own&run_id=manual") in link


def test_the_operators_have_attempts_of_their_own_unless_the_dag_says_otherwise(airflow_home: None) -> None:
    from airflow.sdk import DAG

    from cleave_provider.operators.cleave import SplitSegmentOperator

    def retries(**options: object) -> int:
        return int(SplitSegmentOperator(task_id="act", topic=TOPIC, segment_id=0, **options).retries or 0)

    assert retries() == 3
    assert retries(retries=7) == 7
    with DAG("patient", default_args={"retries": 5}):
        assert retries() == 5


@pytest.fixture
def recorded(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Half an hour of load that was recorded, and when it began and ended."""
    monkeypatch.setenv("CLEAVE_HISTORY_URL", str(tmp_path / "history"))
    monkeypatch.setenv("SPARK_MASTER", "none")
    bench.create()
    since = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
    history = RateHistory(str(tmp_path / "history"))
    for minute in range(1, 31):
        keep_rates(history, milliseconds(since) + minute * 60_000, {(bench.topic_id, 0): 500.0 * minute})
    return since.isoformat(), (since + timedelta(minutes=30)).isoformat()


def test_policies_and_topics_of_a_backtest_may_be_one_text(
    bench: Bench, run_operator: RunOperator, recorded: tuple[str, str]
) -> None:
    since, until = recorded

    done = run_operator(
        "BacktestOperator(task_id='act', policies='in-force, {{ \"adaptive\" }}:target_use=0.8',"
        f" topics={TOPIC!r}, since={since!r}, until={until!r}, engine='here')"
    )

    assert done.state == "success"
    rows = done.xcom_pull(task_ids="act")["summary"]
    assert sorted(row["policy"] for row in rows) == ["adaptive:target_use=0.8", "in-force"]


def test_the_example_s_backtest_is_kept_and_linked(
    bench: Bench, run_example: RunExample, recorded: tuple[str, str]
) -> None:
    since, until = recorded

    run = run_example("example_cleave_backtest", namespace="acme/shop", since=since, until=until)

    assert run.state == "success"
    [week] = [one for one in run.get_task_instances() if one.task_id == "week"]
    kept = bench.scalar("SELECT run_id FROM inspect.backtest_runs WHERE state = 'done'")
    assert week.xcom_pull(task_ids="week")["run_id"] == kept
    link = week.xcom_pull(task_ids="week", key="_link_BacktestLink")
    assert link.endswith(linked(f"backtest?run_id={kept}"))
    assert "times the least possible" in week.xcom_pull(task_ids="best")


def test_a_policy_is_shown_before_it_is_set_and_linked(
    bench: Bench, run_operator: RunOperator, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.create()

    done = run_operator(
        f"SetAutoScalePolicyOperator(task_id='act', level={TOPIC!r}, parameters={{'max_segments': 9}}, dry_run=True)"
    )

    assert done.state == "success"
    assert bench.scalar("SELECT policy FROM cleave.topic") is None
    assert "would have max_segments from unset to 9" in capsys.readouterr().out
    link = done.xcom_pull(task_ids="act", key="_link_PolicyLink")
    assert link.endswith(linked("policy?level=topic%3A%2F%2Facme%2Fshop%2Forders"))


def test_what_cannot_succeed_is_final_whatever_decides_about_attempts(airflow_home: None) -> None:
    """An exit is so by our policy alone; an operator may have been given another one."""
    from cleave_provider.airflow_compatibility import HAS_RETRY_POLICIES, AirflowFailException
    from cleave_provider.failures import RetryableOnly, with_airflow_errors

    class Operator:
        def __init__(self, policy: object) -> None:
            self.retry_policy = policy

        @with_airflow_errors
        def execute(self) -> None:
            raise InvalidInput("no such segment")

    with pytest.raises(AirflowFailException, match="no such segment"):
        Operator(None).execute()
    with pytest.raises(SystemExit if HAS_RETRY_POLICIES else AirflowFailException, match="no such segment"):
        Operator(RetryableOnly()).execute()
