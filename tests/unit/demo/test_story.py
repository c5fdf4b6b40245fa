"""The demo's day: what counts as seen, who comes and goes when, and how records are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from controller.client.history import Attachment, ConsumerHistory, ProducerHistory
from controller.demo.load_profile import synthetic_day
from controller.demo.planes import EMBEDDED, PLANES, SERVICE_URL, Plane, PulsarPlane
from controller.demo.policy import POLICY, THRESHOLDS, policy_at
from controller.demo.stack import Stack
from controller.demo.story import (
    BY_CONSUMERS,
    BY_LOAD,
    CROWD,
    CROWD_COMES_AT,
    CROWD_GOES_AT,
    LOAD_REASONS,
    MERGED,
    PATTERN,
    PRODUCERS,
    STANDARD_CONSUMERS,
    STANDARD_SUBSCRIPTION,
    DayRecord,
    Story,
)
from controller.devstack.failure import DevstackFailed
from controller.domain.policy import PolicyOverride
from controller.domain.profiles.adaptive import COLD

NOON = datetime(2026, 5, 17, 12, tzinfo=UTC)


def operation(kind: str, reason: str = "msgRateIn", **changes: Any) -> dict[str, Any]:
    """A committed automatic operation, as `inspect.operations` shows it."""
    return {"kind": kind, "origin": "auto", "reason": reason, "committed_at": NOON, **changes}


@pytest.mark.parametrize(
    ("operations", "missing"),
    [
        ([], ["a split by load", "a split by consumers", "a merge"]),
        ([operation("split")], ["a split by consumers", "a merge"]),
        ([operation("split", "consumer-count")], ["a split by load", "a merge"]),
        ([operation("split"), operation("split", "consumer-count"), operation("merge", "cold")], []),
        ([operation("recut"), operation("split", "consumer-count"), operation("recut", "cold")], []),
        (
            [operation("merge", "cold", origin="manual"), operation("merge", "cold", committed_at=None)],
            ["a split by load", "a split by consumers", "a merge"],
        ),
    ],
    ids=[
        "nothing",
        "load alone",
        "consumers alone",
        "everything",
        "everything by re-cuts",
        "by hand, and one that gave up",
    ],
)
def test_what_was_not_seen_is_named(operations: list[dict[str, Any]], missing: list[str]) -> None:
    assert DayRecord(operations=operations).missing == missing


def test_acts_are_told_apart_by_what_asked_for_them() -> None:
    seen = DayRecord(
        operations=[operation("split"), operation("recut"), operation("split", "consumer-count")]
    )

    assert [seen.count(LOAD_REASONS), seen.count({"consumer-count"}), seen.count({COLD})] == [2, 1, 0]


def test_splits_by_consumers_before_the_crowd_do_not_count(story: Story, stack: IdleStack) -> None:
    """Standard consumers cause such a split early in the day."""
    story.seen.operations = [operation("split", "consumer-count")]
    story._follow_crowd(CROWD_COMES_AT)
    assert not story.seen.has_seen(BY_CONSUMERS)

    story.seen.operations.append(operation("split", "consumer-count"))

    assert story.seen.has_seen(BY_CONSUMERS)
    assert len(stack.present) == CROWD


@pytest.mark.parametrize("plane", PLANES.values(), ids=PLANES)
def test_the_demos_policy_is_one_that_may_be_set(plane: Plane) -> None:
    policy = policy_at(plane.load_share)
    override = PolicyOverride.from_document(policy)

    assert override.to_document() == policy
    assert int(POLICY["max_segments"]) > CROWD


@pytest.mark.parametrize("plane", PLANES.values(), ids=PLANES)
def test_thresholds_keep_their_distance_from_the_load_on_every_plane(plane: Plane) -> None:
    policy, peak = policy_at(plane.load_share), max(synthetic_day().scaled(plane.load_share).rates)

    assert [float(policy[parameter]) / peak for parameter in THRESHOLDS] == [
        rate / max(synthetic_day().rates) for rate in THRESHOLDS.values()
    ]
    assert {parameter for parameter in policy if policy[parameter] != POLICY.get(parameter)} == set(
        THRESHOLDS
    )


class Child:
    """A process that was started, and perhaps asked to end."""

    def __init__(self) -> None:
        self.asked = False
        self.exit_code: int | None = None
        self.is_stopped = False

    @property
    def ended_by_itself(self) -> bool:
        """As of a real child."""
        return self.exit_code is not None and not self.asked

    def ask_to_end(self) -> None:
        """Note it."""
        self.asked = True

    def stop(self) -> None:
        """Note it."""
        self.is_stopped = True


class IdleStack:
    """A stack on which nothing runs: it notes what it is told to start."""

    def __init__(self, directory: Path, plane: Plane = EMBEDDED) -> None:
        self.directory, self.plane = directory, plane
        self.env, self.client_env = {"WHOSE": "Cleave's"}, {"WHOSE": "an application's"}
        self.plane_settings = {SERVICE_URL: "pulsar://broker:6650"}
        self.reader_url = "postgresql://nobody@localhost/nothing"
        self.children: dict[str, Child] = {}
        self.commands: dict[str, list[str]] = {}
        self.envs: dict[str, Mapping[str, str]] = {}
        self.kept: set[str] = set()

    def spawn(
        self, name: str, command: list[str], *, kept: bool = False, env: Mapping[str, str] | None = None
    ) -> Child:
        """Note it."""
        self.commands[name] = command
        self.envs[name] = self.env if env is None else env
        if kept:
            self.kept.add(name)
        self.children[name] = Child()
        return self.children[name]

    @property
    def present(self) -> list[str]:
        """Who was started and not asked to end."""
        return sorted(name for name, child in self.children.items() if not child.asked)


def write(story: Story, name: str, *numbers: int) -> None:
    """Messages of one key in a record."""
    story.records.mkdir(exist_ok=True)
    messages = [("shop", "order-1", number) for number in numbers]
    if "produced" in name:
        with ProducerHistory(story.records / name) as produced:
            produced.sent(messages)
    else:
        with ConsumerHistory(story.records / name, "billing-0") as consumed:
            consumed.delivered(messages, Attachment(0, "", "1"))


def story_on(stack: IdleStack, *, trace: Path | None = None, say: Callable[[str], None] = print) -> Story:
    """A synthetic day of a hundred seconds."""
    profile = synthetic_day()
    return Story(cast("Stack", stack), day_seconds=100.0, profile=profile, trace=trace, say=say)


@pytest.fixture
def stack(tmp_path: Path) -> IdleStack:
    """Nobody has come yet."""
    return IdleStack(tmp_path)


@pytest.fixture
def said() -> list[str]:
    """What the story said."""
    return []


@pytest.fixture
def story(stack: IdleStack, said: list[str]) -> Story:
    """A day of a hundred seconds."""
    return story_on(stack, say=said.append)


def test_a_crowd_comes_once_in_the_middle_of_the_day_and_leaves_but_one(
    story: Story, stack: IdleStack, said: list[str]
) -> None:
    present = []
    for share in (0.0, CROWD_COMES_AT - 0.01, CROWD_COMES_AT, CROWD_COMES_AT + 0.01, CROWD_GOES_AT, 1.0):
        if share == 0.0:
            story._start_consumers(1)
        story._follow_crowd(share)
        present.append(len(stack.present))

    assert present == [1, 1, CROWD, CROWD, 1, 1]
    assert stack.present == ["billing-0"]
    assert len(said) == 2


def test_producers_share_the_load_and_go_by_one_clock(story: Story, stack: IdleStack) -> None:
    for _ in (0, 1):
        story._start_producer()

    commands = [stack.commands[f"shop-{index}"] for index in (0, 1)]
    clocks = [command[command.index("--clock") + 1] for command in commands]
    shares = [float(command[command.index("--share") + 1]) for command in commands]
    assert clocks == [str(story.clock_file)] * 2
    assert sum(shares) == 1.0
    assert "--trace" not in commands[0]


def test_another_producer_takes_the_place_of_one_that_died(
    story: Story, stack: IdleStack, said: list[str]
) -> None:
    """Once, and under another name: the numbers of its messages begin anew."""
    for _ in (0, 1):
        story._start_producer()
    stack.children["shop-0"].exit_code = -9
    stack.children["shop-1"].exit_code = 0  # its day is over

    for _ in (0, 1):
        story._replace_producers()

    assert [name for name in stack.commands if name.startswith("shop")] == ["shop-0", "shop-1", "shop-2"]
    assert said == ["producer shop-0 ended with -9; another producer replaces it"]


def test_producers_and_consumers_are_told_what_an_application_is_told(stack: IdleStack) -> None:
    story = story_on(stack)

    story._start_producer()
    story._start_consumers(1)

    assert set(stack.envs) == {"shop-0", "billing-0"}
    assert all(env == stack.client_env for env in stack.envs.values())


@pytest.mark.parametrize("failing", ["_start_standard_consumers", "_start_producer"])
def test_what_was_started_before_a_failed_start_is_stopped(
    story: Story, stack: IdleStack, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail() -> None:
        raise DevstackFailed("it cannot start")

    monkeypatch.setattr(story, "_cleave", lambda *_arguments: None)
    monkeypatch.setattr(story, failing, fail)

    with pytest.raises(DevstackFailed, match="it cannot start"):
        story.tell(lambda _moment: None)

    assert [child.is_stopped for child in stack.children.values()] == [True]


def test_consumers_are_kept_running(story: Story, stack: IdleStack) -> None:
    story._start_consumers(2)
    story._start_producer()

    assert stack.kept == {"billing-0", "billing-1"}


def test_the_day_waits_for_what_each_part_of_it_is_for(story: Story) -> None:
    """At the last moment of the burst, before the crowd goes, and before the end."""
    gates = [(gate.share, gate.sight) for gate in story.clock._gates]

    [(burst, by_load), (crowd, by_consumers), (evening, merged)] = gates
    assert (by_load, by_consumers, merged) == (BY_LOAD, BY_CONSUMERS, MERGED)
    assert synthetic_day().rate_at(burst) == max(synthetic_day().rates)
    assert CROWD_COMES_AT < crowd < CROWD_GOES_AT
    assert CROWD_GOES_AT < evening < 1.0


@pytest.mark.parametrize("plane", PLANES.values(), ids=PLANES)
def test_traffic_runs_on_the_stacks_plane_at_its_share(plane: Plane, tmp_path: Path) -> None:
    stack = IdleStack(tmp_path, plane)
    story = story_on(stack)
    story._start_consumers(1)
    for _ in range(PRODUCERS):
        story._start_producer()

    commands = stack.commands
    assert {command[command.index("--plane") + 1] for command in commands.values()} == {plane.name}
    shares = [
        float(command[command.index("--share") + 1]) for name, command in commands.items() if "shop" in name
    ]
    assert sum(shares) == plane.load_share
    assert story.seen.policy == policy_at(plane.load_share)


def test_a_trace_is_handed_to_the_producers(stack: IdleStack, tmp_path: Path) -> None:
    story_on(stack, trace=tmp_path / "t.csv")._start_producer()

    command = stack.commands["shop-0"]
    assert command[command.index("--trace") + 1] == str(tmp_path / "t.csv")


def test_records_are_counted_as_they_grow_and_by_their_end(story: Story) -> None:
    story.records.mkdir()
    assert (story.produced(), story.consumed()) == (0, 0)
    write(story, "a.produced.history", 0, 1)
    write(story, "b.produced.history", 0)
    write(story, "a.consumed.history", 0)
    assert (story.produced(), story.consumed()) == (3, 1)

    with (story.records / "a.consumed.history").open("a") as record:
        record.write("1\tbegun\tshop\torder-1\t0\tbilling-0\t0\t\t1\n")
    with (story.records / "a.produced.history").open("a") as record:
        record.write("1\tsent\tshop\torder-1\t2\n1\tsent\tshop\tord")
    assert story.produced() == 4
    with (story.records / "a.produced.history").open("a") as record:
        record.write("er-1\t3\n")

    assert (story.produced(), story.consumed()) == (5, 1)


def test_draining_ends_at_once_when_everything_was_read(story: Story) -> None:
    write(story, "a.produced.history", 0, 1)
    write(story, "a.consumed.history", 0, 1)

    story._drain(patience_seconds=3600.0)


def test_a_message_delivered_twice_does_not_hide_one_that_is_still_to_come(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(story, "a.produced.history", 0, 1)
    write(story, "a.consumed.history", 0, 0)
    monkeypatch.setattr(
        "controller.demo.story.time.sleep", lambda _seconds: write(story, "a.consumed.history", 1)
    )

    story._drain(patience_seconds=3600.0)

    verdict = story.verdict()
    assert verdict.in_order_and_complete
    assert verdict.redelivered == 1


class PlaneOfABroker(PulsarPlane):
    """A plane whose consumer is compiled without a compiler, or cannot be compiled."""

    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    def standard_consumer(self, directory: Path) -> list[str | Path]:
        """Return a command, or fail with the problem."""
        if self.problem:
            raise DevstackFailed(self.problem)
        return ["java", directory, "StockConsumer"]


def with_standard_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str = ""
) -> tuple[Story, IdleStack, list[tuple[str, ...]], list[str]]:
    """Start the standard consumers of a story. Return the story, its stack, the commands of `cleave` and what was said."""
    stack, said, commands = IdleStack(tmp_path, PlaneOfABroker(problem)), list[str](), list[tuple[str, ...]]()
    story = story_on(stack, say=said.append)
    monkeypatch.setattr(story, "_cleave", lambda *arguments: commands.append(arguments))
    story.records.mkdir()
    story._start_standard_consumers()
    return story, stack, commands, said


def test_standard_consumers_read_all_segments_behind_gates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, stack, commands, _ = with_standard_consumers(tmp_path, monkeypatch)

    assert [(one[:2], one[-2:]) for one in commands] == [
        (("subscriptions", "create"), ("--consumers", "stock"))
    ]
    assert len(stack.present) == STANDARD_CONSUMERS
    assert stack.kept == set(stack.present)
    assert story.subscriptions == ("billing", STANDARD_SUBSCRIPTION)
    for command in stack.commands.values():
        assert command[3:5] == ["pulsar://broker:6650", PATTERN]
        assert "Failover" in command


def test_without_a_java_compiler_one_line_says_so_and_the_day_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, stack, commands, said = with_standard_consumers(tmp_path, monkeypatch, "no Java compiler here")

    assert said == ["no standard Java consumers: no Java compiler here"]
    assert (commands, stack.present, story.subscriptions) == ([], [], ("billing",))


def test_each_subscription_is_judged_by_its_own_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, *_ = with_standard_consumers(tmp_path, monkeypatch)
    write(story, "a.produced.history", 0, 1)
    write(story, "billing-0.consumed.history", 0, 1)
    write(story, f"{STANDARD_SUBSCRIPTION}/shipping-0.consumed.history", 0)

    assert story.verdict().in_order_and_complete
    assert not story.verdict(STANDARD_SUBSCRIPTION).in_order_and_complete
    assert [story.consumed(name) for name in story.subscriptions] == [2, 1]

    def write_the_rest(_seconds: float) -> None:
        write(story, f"{STANDARD_SUBSCRIPTION}/shipping-0.consumed.history", 1)

    monkeypatch.setattr("controller.demo.story.time.sleep", write_the_rest)
    story._drain(patience_seconds=3600.0)

    assert story.verdict(STANDARD_SUBSCRIPTION).in_order_and_complete
