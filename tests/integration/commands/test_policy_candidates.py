"""`cleave policy propose`, `candidates`, `withdraw` and `promote`: a policy proves itself on a topic's own past."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controller.actions.action import find_action
from controller.actions.context import Caller, Options
from controller.actions.perform import perform_at
from controller.bootstrap import Application
from controller.domain.errors import Conflict
from controller.domain.operation import Origin
from controller.settings import load_settings
from tests.support.command_line import CommandLine
from tests.support.recorded import keep_days

DAYS = 4
BETTER = ("profile=pip483", "split_cooldown_seconds=0", "merge_window_seconds=60", "merge_msg_rate_in=4000")
WORSE = ("max_segments=2",)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some days of load of topic 1, until now."""
    url = tmp_path_factory.mktemp("past") / "history"
    keep_days(url, DAYS)
    return url


@pytest.fixture
def recorded(cleave: CommandLine, orders: str, past: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The topic, whose id is 1 in a fresh database, under `pip483`."""
    monkeypatch.setenv("CLEAVE_HISTORY_URL", str(past))
    with cleave.store.transaction() as tx:
        assert tx.execute(text("SELECT topic_id FROM cleave.topic")).scalars().all() == [1]
    cleave.ok("policy", "set", f"topic://{orders}", "profile=pip483")
    return orders


def override(cleave: CommandLine, topic: str) -> dict[str, object]:
    return dict(cleave.json("policy", "get", f"topic://{topic}")["parameters"])


def test_a_better_candidate_is_promoted_on_the_topics_own_past(cleave: CommandLine, recorded: str) -> None:
    made = cleave.json("policy", "propose", recorded, *BETTER[1:], "--reason", "fewer idle segments")
    before = override(cleave, recorded)
    said = cleave.rehearsed("policy", "promote", recorded)

    answer = cleave.json("policy", "promote", recorded)

    assert "would be promoted" in said
    live, proposed = answer["results"]
    assert (live["policy"], proposed["policy"]) == ("in-force", "candidate")
    assert proposed["regret"] < live["regret"]
    assert (answer["is_better"], answer["state"], answer["ended_by"]) == (True, "promoted", "ada")
    assert override(cleave, recorded) == {**before, **made["override"]}
    [row] = cleave.json("policy", "candidates", "--topic", recorded)
    assert (row["run_id"], row["regret"]) == (answer["run_id"], pytest.approx(proposed["regret"]))
    assert row["live_regret"] == pytest.approx(live["regret"])
    assert row["reason"] == "fewer idle segments"
    assert cleave.json("backtests", "show", str(answer["run_id"]))["state"] == "done"


def test_a_repeat_of_a_promotion_is_harmless(cleave: CommandLine, recorded: str) -> None:
    cleave.ok("policy", "propose", recorded, *BETTER)
    cleave.ok("policy", "promote", recorded)
    cleave.ok("policy", "set", f"topic://{recorded}", "max_segments=9")
    before = cleave.rows()

    said = cleave.ok("policy", "promote", recorded)
    in_a_dry_run = cleave.ok("policy", "promote", recorded, "--dry-run")

    assert "was promoted: regret" in said
    assert "was promoted: regret" in in_a_dry_run
    assert cleave.rows() == before


def test_a_key_of_another_candidates_promotion_is_refused_in_a_dry_run_too(
    cleave: CommandLine, recorded: str
) -> None:
    app = Application(load_settings(), cleave.store)
    action, caller = find_action("policy promote"), Caller("ada", Origin.API, "a test", "only-once")

    def promote(*, is_dry_run: bool) -> Any:
        request = action.request(topic=f"topic://{recorded}")
        return perform_at(app, caller, Options(dry_run=is_dry_run), action, request)

    cleave.ok("policy", "propose", recorded, *WORSE)
    assert promote(is_dry_run=False).state == "refused"
    cleave.ok("policy", "propose", recorded, *BETTER[1:])
    before = cleave.rows()

    for is_dry_run in (False, True):
        with pytest.raises(Conflict, match="is not about candidate 2"):
            promote(is_dry_run=is_dry_run)
    assert cleave.rows() == before


def test_a_worse_candidate_is_refused_and_the_policy_stays(cleave: CommandLine, recorded: str) -> None:
    cleave.ok("policy", "propose", recorded, *WORSE)
    before = override(cleave, recorded)

    rehearsed = cleave("policy", "promote", recorded, "--dry-run")
    answer = cleave("policy", "promote", recorded)
    again = cleave("policy", "promote", recorded)

    assert (rehearsed.code, answer.code, again.code) == (1, 1, 1)
    assert "would be refused: regret" in rehearsed.out
    assert "is refused: regret" in answer.out
    assert "of the policy in force" in answer.out
    assert "was refused: regret" in again.out
    assert override(cleave, recorded) == before
    [row] = cleave.json("policy", "candidates")
    assert row["state"] == "refused"
    assert row["regret"] > row["live_regret"] > 1


def waiting(cleave: CommandLine, topic: str) -> dict[str, Any]:
    """The approval of a better candidate of the topic, which the command has asked for."""
    cleave.ok("policy", "propose", topic, *BETTER[1:], "--reason", "fewer idle segments")
    assert "would be in shadow, and waits for an approval" in cleave.rehearsed(
        "policy", "promote", topic, "--ask"
    )
    assert "is in shadow, and waits for an approval: regret" in cleave.ok("policy", "promote", topic, "--ask")
    [row] = cleave.json("approvals", "list", "--subject", "promotion")
    return dict(row)


def test_a_promotion_waits_for_an_approval_and_is_carried_out_by_it(
    cleave: CommandLine, recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = override(cleave, recorded)
    row = waiting(cleave, recorded)
    [candidate] = cleave.json("policy", "candidates")
    assert (row["level"], row["subject_id"], row["default_answer"]) == (
        f"topic://{recorded}",
        candidate["candidate_id"],
        "reject",
    )
    assert row["action"] == f"promote candidate {candidate['candidate_id']} ({candidate['parameters']})"
    assert re.match(r"regret .* against .*; ada proposed it: fewer idle segments$", row["reason"])
    assert (candidate["approval_id"], candidate["state"]) == (row["approval_id"], "shadow")
    assert override(cleave, recorded) == before

    monkeypatch.setenv("USER", "bob")
    [answered] = cleave.json("approvals", "approve", str(row["approval_id"]))["approvals"]

    assert (answered["state"], answered["answered_by"]) == ("done", "bob")
    [candidate] = cleave.json("policy", "candidates")
    assert (candidate["state"], candidate["ended_by"]) == ("promoted", "bob")
    assert override(cleave, recorded) == {**before, **candidate["override"]}


def test_a_rejected_promotion_leaves_the_candidate_in_shadow(cleave: CommandLine, recorded: str) -> None:
    before = override(cleave, recorded)
    row = waiting(cleave, recorded)

    assert "is rejected" in cleave.ok("approvals", "reject", str(row["approval_id"]))

    assert cleave.json("policy", "candidates")[0]["state"] == "shadow"
    assert override(cleave, recorded) == before
    cleave.ok("policy", "promote", recorded, "--ask")
    assert len(cleave.json("approvals", "list")) == 1, "it may be asked for again"


@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        (("policy", "withdraw"), "candidate {} was withdrawn"),
        (("policy", "promote"), "candidate {} was promoted"),
        (("policy", "promote", "--ask", "--days", "5"), "candidate {} was tested again, in backtest"),
    ],
)
def test_an_approval_ends_with_its_candidate_and_with_its_evidence(
    cleave: CommandLine, recorded: str, act: tuple[str, ...], outcome: str
) -> None:
    row = waiting(cleave, recorded)

    cleave.ok(*act[:2], recorded, *act[2:])

    ended = cleave.json("approvals", "show", str(row["approval_id"]))
    assert ended["state"] == "expired"
    assert ended["outcome"].startswith(outcome.format(row["subject_id"]))
    assert "has expired" in cleave.refused("approvals", "approve", str(row["approval_id"]))


def test_a_policy_that_was_changed_while_the_promotion_waits_stays(
    cleave: CommandLine, recorded: str
) -> None:
    row = waiting(cleave, recorded)
    cleave.ok("policy", "set", f"topic://{recorded}", "max_segments=9")

    line = cleave.refused("approvals", "approve", str(row["approval_id"]), code=75)
    assert "was changed since" in line


def test_the_same_policy_is_no_better(cleave: CommandLine, recorded: str) -> None:
    cleave.ok("policy", "propose", recorded, "profile=pip483")

    assert cleave("policy", "promote", recorded).code == 1


def test_too_short_a_past_is_refused_with_the_sentence(
    cleave: CommandLine, recorded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_HISTORY_URL", str(tmp_path / "short"))
    keep_days(tmp_path / "short", 1)
    cleave.ok("policy", "propose", recorded, *BETTER)

    answer = cleave("policy", "promote", recorded)

    assert answer.code == 2
    assert "has 1.0 recorded days in the last 14, but 3 are needed to compare policies" in answer.err
    assert cleave.json("policy", "candidates")[0]["state"] == "shadow"
    monkeypatch.setenv("CLEAVE_HISTORY_URL", str(tmp_path / "none"))
    assert "no load was recorded" in cleave("policy", "promote", recorded).err


def test_candidates_are_proposed_listed_and_withdrawn(cleave: CommandLine, orders: str) -> None:
    assert "would be in shadow" in cleave.rehearsed("policy", "propose", orders, "max_segments=9")
    said = cleave.ok("policy", "propose", orders, "max_segments=9", "profile=adaptive")
    again = cleave.ok("policy", "propose", orders, "profile=adaptive", "max_segments=9")

    assert "(max_segments=9 profile=adaptive) is in shadow" in said
    assert "was in shadow" in again
    assert "max_segments=9" in cleave.ok("policy", "candidates", "--topic", orders)
    assert "in shadow" in cleave.refused("policy", "propose", orders, "max_segments=8")
    assert "would be withdrawn" in cleave.rehearsed("policy", "withdraw", orders)
    assert "is withdrawn" in cleave.ok("policy", "withdraw", orders, "--reason", "enough")
    assert "is withdrawn" in cleave.ok("policy", "withdraw", orders)
    assert "was withdrawn (enough)" in cleave.refused("policy", "promote", orders)


def test_what_cannot_be_asked_is_refused(cleave: CommandLine, orders: str) -> None:
    assert "null" in cleave.refused("policy", "propose", orders, "max_segments=null")
    assert "'colour' cannot be set" in cleave.refused("policy", "propose", orders, "colour=red")
    assert "max_segments" in cleave.refused("policy", "propose", orders, "max_segments=0")
    assert "cleave policy propose" in cleave.refused("policy", "promote", orders)
    assert "cleave policy propose" in cleave.refused("policy", "withdraw", orders)
    assert "does not exist" in cleave.refused("policy", "candidates", "--topic", "acme/shop/none")
    assert "does not exist" in cleave.refused("policy", "promote", "acme/shop/none")
