"""A topic whose load is aggregated and whose passes decide: from the recorded history each decision is made again the same."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from controller.domain.policy import PolicyOverride
from controller.services import topic_admin
from controller.store.topics import policies
from tests.support.aggregation import Run, loading
from tests.support.bench import TOPIC, Bench
from tests.support.command_line import CommandLine
from tests.support.passes import run as run_pass

CENTURY = 100 * 365 * 86_400
"""The samples of these tests are of another day, and must not be stale."""
QUIET_MINUTE = 3
MINUTES = (1_000, 1_100, 15_000, 26_000, 26_500, 9_000, 2_000, 300, 10, 10, 10, 11)
"""Messages a second into the topic, minute by minute: it becomes hot and then cold."""


@pytest.fixture
def run(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A live topic of two segments and a landing area; the loader logs in as itself."""
    bench.topic_with(segments=2, subscriptions=())
    with loading(bench) as store:
        yield Run(bench, store, tmp_path, bench.topic_id)


def live(run: Run, profile: str, *, is_late: bool = False, after_minutes: int = 0) -> int:
    """Each minute: traffic into whatever segments there are, an aggregation, a pass, and its operations; how many
    decisions were made. Sealed segments are reported as well.

    `is_late`: the aggregation comes after the pass, so that a parent's last traffic is counted after its children were made. The first
    minute is `after_minutes` later.
    """
    override = PolicyOverride(
        profile=profile,
        load_stale_after_seconds=CENTURY,
        split_cooldown_seconds=0,
        merge_cooldown_seconds=0,
        merge_window_seconds=0,
        reconnections_per_minute=1e6,
    )
    with run.bench.store.transaction() as tx:
        policies.set_topic(tx, run.topic_id, override, actor="tests")
    counted: defaultdict[int, int] = defaultdict(int)
    for minute, rate in enumerate(MINUTES, after_minutes):
        begin = 60 * minute - 60
        for id_, segment in run.bench.layout.segments.items():
            if minute == QUIET_MINUTE and segment.hash_range.start == 0:
                continue  # nobody reports it for a minute, while the broker is heard of
            skew = 1 + id_ % 3
            share = segment.hash_range.width / 65_536 if segment.is_active else 0
            more = round(rate * 5.1 * skew * share)
            run.land(*((begin + 10 * n, counted[id_] + n * more) for n in range(7)), segment_id=id_)
            counted[id_] += 6 * more
        if not is_late:
            run.aggregate(minutes=minute)
        for operation_id in run_pass(run.bench).operation_ids:
            run.bench.drive(operation_id)
        if is_late:
            run.aggregate(minutes=minute)
    return int(run.bench.scalar("SELECT count(*) FROM cleave.decision"))


@pytest.fixture
def history(cleave: CommandLine, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEAVE_HISTORY_URL", str(run.directory / "history"))
    return run.directory / "history"


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(("profile", "acts"), [("pip483", {"split", "merge"}), ("adaptive", {"split"})])
@pytest.mark.parametrize("is_late", [False, True], ids=["", "late"])
def test_every_decision_is_made_again_from_the_recorded_rates(
    cleave: CommandLine, run: Run, profile: str, acts: set[str], is_late: bool
) -> None:
    decisions = live(run, profile, is_late=is_late)

    answer = cleave("decisions", "replay", "--all", TOPIC, "--from-history")
    assert answer.code == 0, answer.out
    document = cleave.json("decisions", "replay", "--all", TOPIC, "--from-history")

    kinds = "SELECT DISTINCT jsonb_path_query(decisions, '$.kind') ->> 0 FROM cleave.decision"
    assert {kind for (kind,) in run.bench.rows(kinds)} >= acts
    assert document["differing"] == []
    assert (document["retraced"], document["same"]) == (decisions, decisions)
    assert decisions >= 4
    assert "all with the same loads and the same answer" in cleave.ok(
        "decisions", "replay", "--all", TOPIC, "--from-history"
    )


def test_a_history_that_is_not_what_was_decided_on_is_printed(
    cleave: CommandLine, run: Run, history: Path
) -> None:
    live(run, "pip483")
    [third] = sorted(history.glob("day=*/window_end=*/*.parquet"))[2:3]
    table = pq.read_table(third)
    place = table.schema.get_field_index("msg_rate_in")
    changed = table.set_column(
        place, table.schema.field(place), [[rate / 100 for rate in table.column(place).to_pylist()]]
    )
    pq.write_table(changed, third)

    answer = cleave("decisions", "replay", "--all", TOPIC, "--from-history")

    assert answer.code == 1
    said = " ".join(answer.out.split())
    assert "with another load or another answer" in said
    told = re.findall(r"msg_rate_in ([\d.e+]+), [^:]*? stored, msg_rate_in ([\d.e+]+),", said)
    assert any(float(one) == pytest.approx(100 * float(other), rel=1e-4) for one, other in told)
    assert "made by" not in said
    assert "stored split" in said


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("number", [0, 2], ids=["the first", "the third"])
@pytest.mark.parametrize("is_whole", [True, False], ids=["from the creation", "from the first decision"])
def test_a_decision_whose_inputs_cannot_be_read_counts_as_different(
    cleave: CommandLine, run: Run, number: int, *, is_whole: bool
) -> None:
    decisions = live(run, "pip483")
    ids = [id_ for (id_,) in run.bench.rows("SELECT decision_id FROM cleave.decision ORDER BY decided_at")]
    run.bench.execute(
        "SET LOCAL session_replication_role = replica;"
        "UPDATE cleave.decision SET situation = (situation::jsonb - 'loads')::text WHERE decision_id = :id",
        id=ids[number],
    )
    if not is_whole:
        run.bench.execute(
            "UPDATE cleave.topic SET created_at = created_at - interval '1 day', row_version = row_version + 1"
        )

    answer = cleave("decisions", "replay", "--all", TOPIC, "--from-history", "--json")

    assert answer.code == 1, answer.out
    document = json.loads(answer.out)
    [differing] = document["differing"]
    assert (differing["decision_id"], differing["unreadable"]) == (ids[number], "KeyError: 'loads'")
    assert (document["retraced"], document["same"]) == (
        decisions - (not is_whole),
        decisions - 1 - (not is_whole),
    )
    said = " ".join(cleave("decisions", "replay", "--all", TOPIC, "--from-history").out.split())
    assert "its evaluation input cannot be read (KeyError: 'loads')" in said


@pytest.mark.usefixtures("history")
def test_each_topic_of_a_name_that_was_used_again_has_its_own_history(cleave: CommandLine, run: Run) -> None:
    live(run, "pip483")
    run.bench.finish(topic_admin.delete_topic(run.bench.store, TOPIC, run.bench.request()))
    run.topic_id = run.bench.topic_with(segments=2, subscriptions=())
    decisions = live(run, "pip483", after_minutes=len(MINUTES))

    answer = cleave("decisions", "replay", "--all", TOPIC, "--from-history", "--json")

    assert answer.code == 0, answer.out
    document = json.loads(answer.out)
    topics = run.bench.scalar("SELECT count(DISTINCT topic_id) FROM cleave.decision")
    assert (document["retraced"], document["same"], topics) == (decisions, decisions, 2)


@pytest.mark.usefixtures("history")
def test_in_the_middle_the_first_decision_is_where_it_sets_out_from(cleave: CommandLine, run: Run) -> None:
    decisions = live(run, "pip483")
    second = run.bench.scalar("SELECT decided_at FROM cleave.decision ORDER BY 1 OFFSET 1 LIMIT 1")
    run.bench.execute(
        "UPDATE cleave.topic SET created_at = created_at - interval '1 day', row_version = row_version + 1"
    )

    document = cleave.json(
        "decisions", "replay", "--all", TOPIC, "--from-history", "--from", second.isoformat()
    )

    assert (document["retraced"], document["same"]) == (decisions - 2, decisions - 2)
