"""Each verb that goes both ways prints the same, whether it asks the database or `cleave serve`: tables and documents."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest

from controller.actions.action import all_actions
from controller.bootstrap import application
from controller.client.dead_letter_redrive import PART_LIMIT
from controller.client.dead_letters import Origin
from controller.commands import http_calls
from controller.commands.remote_commands import BOTH_WAYS
from controller.dataplane.log_client import OutgoingMessage
from controller.domain.evaluator import ALL_LANES
from controller.questions import question
from controller.services import autoscaler, dead_letters
from controller.settings import Settings
from tests.integration.commands import (
    test_adoptions_both_ways,
    test_backtests_both_ways,
    test_bundles_both_ways,
    test_candidates_both_ways,
)
from tests.support.command_line import CommandLine
from tests.support.over_http import OverHttp
from tests.support.passes import COLD, HOT, WARM
from tests.support.reports import report_load

TOPIC = "acme/shop/orders"
AGES = ("age_seconds",)
"""They are another a moment later."""
WAITING = "acme/other/stock"
LOOKS = (
    "topics list",
    "topics list --namespace acme/shop --limit 1",
    "topics list --prefix acme/other",
    f"topics show {TOPIC}",
    f"layout {TOPIC}",
    f"layout {TOPIC} --at 0",
    f"layout {TOPIC} --metadata",
    f"lineage {TOPIC}",
    f"lineage {TOPIC} 2",
    f"key {TOPIC} customer-7",
    f"key {TOPIC} customer-7 --at 0",
    "operations",
    f"operations --topic {TOPIC} --limit 2",
    "operations --live",
    "operations --stuck",
    "policy get cluster",
    "policy get acme/shop",
    "policy get acme/none",
    f"policy get {TOPIC}",
    f"policy effective {TOPIC}",
    "decisions list",
    f"decisions list --topic {TOPIC} --limit 1",
    "decisions refusals",
    f"decisions refusals --topic {TOPIC} --limit 3",
    "decisions replay 1",
    f"decisions replay --all {TOPIC}",
    f"decisions replay --all {TOPIC} --from 2h --to 1h",
    f"subscriptions list {TOPIC}",
    f"consumers list {TOPIC}",
    f"consumers why {TOPIC}",
    f"consumers why {TOPIC} --subscription billing",
    f"consumers lag {TOPIC} billing",
    f"subscriptions cursors {TOPIC} billing",
    f"hot-keys {TOPIC}",
    f"dead-letters list {TOPIC} billing",
    f"dead-letters list {TOPIC} billing --limit 1",
    "backtests list",
    "backtests show 1",
    "backtests results 1",
    "approvals list",
    f"approvals list --topic {WAITING}",
    f"approvals list --topic {TOPIC} --state any",
)
MOMENTARY = (
    f"decide {TOPIC}",
    f"decide {TOPIC} --print-snapshot",
    f"what-if {TOPIC} --set max_segments=16 --set target_use=0.9",
    f"what-if {TOPIC} --set max_segments=16 --lanes load",
    f"what-if {TOPIC} --set max_segments=4",
    f"what-if {TOPIC} --set split_msg_rate_in=Infinity",
    "top",
    "top --find stock",
    f"watch {TOPIC}",
)
"""Their figures are of the moment they are asked at."""
REHEARSALS = (
    f"topics create {TOPIC}-2 --segments 3 --properties team=blue",
    f"topics delete {TOPIC}",
    f"topics recover {TOPIC}",
    f"segments split {TOPIC} 1 --parts 3",
    f"segments split {TOPIC} 1 --cut-points 0xc000",
    f"segments merge {TOPIC} 3 1",
    f"segments rebucket {TOPIC} 1 3",
    f"segments recut {TOPIC} 3,1 --cut-points 0x5000",
    "policy set cluster max_segments=40",
    "policy set acme/shop max_segments=8 target_use=null",
    f"policy set {TOPIC} enabled=false --replace",
    f"policy remove {TOPIC}",
    "policy remove cluster",
    f"subscriptions create {TOPIC} audit --kind queue",
    f"subscriptions set {TOPIC} billing --no-parents-block --drain-consumers 3",
    f"subscriptions delete {TOPIC} billing",
    f"subscriptions seek {TOPIC} billing latest",
    f"dead-letters redrive {TOPIC} billing",
    f"dead-letters redrive {TOPIC} billing --limit 2",
    "approvals approve 1",
    "approvals reject 1 --reason sale",
)
CHANGES = (
    "topics create {topic} --segments 3 --properties team=blue",
    "topics recover {topic}",
    "segments split {topic} 1",
    "segments merge {topic} 3 4",
    "segments rebucket {topic} 0 2",
    "segments recut {topic} 2,5 --cut-points 0x9000",
    "policy set {topic} max_segments=8 target_use=0.7",
    "policy set {topic} max_segments=null split_msg_rate_in=Infinity",
    "policy set {topic} max_segments=9 --replace",
    "policy remove {topic}",
    "subscriptions create {topic} audit",
    "subscriptions set {topic} audit --no-parents-block --drain-consumers 3",
    "subscriptions seek {topic} audit earliest --release-seconds 0",
    "subscriptions delete {topic} audit",
    "topics delete {topic} --yes",
)
"""One after the other, on a topic of each way."""
CANCELLED = ("subscriptions cancel-seek",)
"""It needs a seek that waits, and has a test of its own."""
REFUSED = (
    "topics show acme/shop/none",
    *(
        line.format(topic=topic)
        for topic in ("acme/shop", f"{TOPIC}/more", "acme//orders", f"other://{TOPIC}")
        for line in (
            "topics show {topic}",
            "topics create {topic}",
            "layout {topic}",
            "lineage {topic}",
            "key {topic} k",
            "operations --topic {topic}",
            "segments split {topic} 0",
            "policy effective {topic}",
            "decide {topic}",
            "what-if {topic} --set max_segments=8",
            "decisions replay --all {topic}",
            "subscriptions list {topic}",
            "consumers why {topic}",
            "hot-keys {topic}",
            "approvals list --topic {topic}",
            "watch {topic}",
        )
    ),
    "topics create acme/shop/orders",
    "topics delete acme/shop/none --yes",
    "topics recover acme/shop/none",
    "topics recover acme/shop/none --data-plane embedded",
    "topics recover acme/shop/none --data-plane pulsar",
    "layout acme/shop/none",
    f"layout {TOPIC} --at 99",
    f"lineage {TOPIC} 99",
    "key acme/shop/none k",
    "operations --topic acme/shop/none",
    f"segments split {TOPIC} 0",
    f"segments split {TOPIC} 99",
    f"segments split {TOPIC} 1 --cut-points 0x9000 --parts 2",
    f"segments merge {TOPIC} 1 1",
    f"segments rebucket {TOPIC} 0 2",
    "segments split acme/shop/none 0",
    "policy get acme/shop/none",
    "policy set acme/shop/none max_segments=8",
    "policy set acme/shop max_segments=0",
    "policy set cluster no_such_parameter=1",
    "policy set acme/shop target_use=plenty",
    "policy set acme/shop target_use=NaN",
    "policy effective acme/shop/none",
    "decide acme/shop/none",
    "decide acme/shop/waits",
    "what-if acme/shop/none --set max_segments=8",
    f"what-if {TOPIC} --set max_segments=0",
    f"what-if {TOPIC} --set max_segments=null",
    f"what-if {TOPIC} --set target_use=NaN",
    "decisions list --topic acme/shop/none",
    "decisions refusals --topic acme/shop/none",
    "decisions replay 999",
    "decisions replay --all acme/shop/none",
    "subscriptions list acme/shop/none",
    f"subscriptions delete {TOPIC} nobody",
    f"subscriptions set {TOPIC} nobody --drain-consumers 2",
    "subscriptions create acme/shop/none billing",
    "consumers list acme/shop/none",
    "consumers why acme/shop/none",
    f"consumers why {TOPIC} --subscription nobody",
    f"consumers lag {TOPIC} nobody",
    f"subscriptions seek {TOPIC} nobody earliest",
    f"subscriptions seek {TOPIC} billing yesterday",
    f"subscriptions cancel-seek {TOPIC} billing",
    f"dead-letters list {TOPIC} nobody",
    "dead-letters redrive acme/shop/none billing",
    "hot-keys acme/shop/none",
    "backtests show 99",
    "approvals list --topic acme/shop/none",
    "approvals approve 99",
    "watch acme/shop/none",
)
"""What can never be done; segment 0 is sealed."""


@pytest.fixture
def fleet(cleave: CommandLine, database: str) -> None:
    """A topic of which segment 0 was split into 2 and 3, with a subscription, which was decided on; another one, whose split waits for
    a person; and one that nobody makes.
    """
    cleave.ok("topics", "create", TOPIC, "--segments", "2", "--properties", "team=blue")
    cleave.ok("subscriptions", "create", TOPIC, "billing")
    cleave.ok("segments", "split", TOPIC, "0", "--reason", "more room")
    cleave.ok("topics", "create", WAITING)
    cleave.ok("policy", "set", WAITING, "approval_min_segments=2", "split_cooldown_seconds=0")
    cleave.ok("policy", "set", TOPIC, "max_segments=3", "merge_window_seconds=600")
    cleave.ok("consumers", "register", TOPIC, "billing", "till-1")
    kept_backtest(cleave)
    with application(Settings(database_url=database)) as app:
        topic_id, other_id = (
            cleave.column(f"SELECT topic_id FROM cleave.topic WHERE name = 'topic://{name}'")[0]
            for name in (TOPIC, WAITING)
        )
        log = dead_letters.make(app.store, app.planes, topic_id, "billing")
        with closing(app.log_client(log.data_plane)) as logs:
            logs.append(log.backing_topic, [letter(number) for number in range(3)], producer="p", sequence=1)
        for rates in ({1: HOT, 2: WARM, 3: 1 / 3}, {1: WARM, 2: COLD, 3: COLD}):
            with app.store.transaction() as tx:
                report_load(tx, topic_id, rates)
                report_load(tx, other_id, {0: HOT})
            autoscaler.run_pass(app.store, app.planes, ALL_LANES, decided_by="tests", limit=100)
    cleave.ok("topics", "create", "acme/shop/waits", "--no-wait")


def letter(number: int) -> OutgoingMessage:
    """Of another program the last one, which says nothing of where it came from."""
    origin = Origin(
        topic=f"topic://{TOPIC}",
        subscription="billing",
        segment_id=0,
        position=(number,),
        published_at_ms=1_700_000_000_000,
        deliveries=3,
        error="ValueError: no account",
        consumer="till-1",
        parked_at_ms=1_700_000_001_000,
    )
    payload = f"order {number}".encode()
    return OutgoingMessage(payload if number == 2 else origin.written(payload), b"key")


def kept_backtest(cleave: CommandLine) -> None:
    """One of a policy on one load."""
    cleave.execute(
        """
        INSERT INTO cleave.backtest_run (request_key, asked_by, code_version, inputs, state, finished_at, engine)
        VALUES ('k', 'ada', '1', CAST(:inputs AS jsonb), 'done', clock_timestamp(), 'here')
        """,
        inputs='{"policies": [{"name": "adaptive"}], "loads": [{"name": "day", "start_ms": 0, "end_ms": 60000}], "prices": {}}',
    )
    figures = '{"segment_hours": 3, "excess_hours": 0.1, "overload_seconds": 0.0, "reshapes": 2, "rings_resealed": 0.5}'
    cleave.execute(
        """
        INSERT INTO cleave.backtest_result (run_id, load, policy, seed, cost, least_cost, figures)
        SELECT run_id, 'day', 'adaptive', 0, 1.5, 1, CAST(:figures AS jsonb) FROM cleave.backtest_run
        """,
        figures=figures,
    )


def test_each_verb_that_goes_both_ways_is_tried_both_ways() -> None:
    adoptions, backtests, bundles, candidates = (
        test_adoptions_both_ways,
        test_backtests_both_ways,
        test_bundles_both_ways,
        test_candidates_both_ways,
    )
    elsewhere = (
        *adoptions.CHANGED,
        *adoptions.MIRRORED,
        *backtests.ASKED,
        *bundles.LOOKS,
        *bundles.CHANGES,
        *candidates.LOOKS,
        *candidates.CHANGES,
    )
    lines = (*LOOKS, *MOMENTARY, *REHEARSALS, *CHANGES, *CANCELLED, *elsewhere)

    verbs = BOTH_WAYS | {action.name for action in all_actions() if action.is_command}
    assert {verb for verb in verbs for line in lines if f"{line} ".startswith(f"{verb} ")} == verbs


@pytest.mark.usefixtures("fleet")
def test_each_look_prints_the_same(cleave: CommandLine, http: OverHttp) -> None:
    def look(line: str) -> None:
        assert _ageless(http.ok(*line.split())) == _ageless(cleave.ok(*line.split()))
        there, here = http.ok(*line.split(), "--json"), cleave.ok(*line.split(), "--json")
        assert _without_age(json.loads(there)) == _without_age(json.loads(here))
        assert _keys(there) == _keys(here)

    assert unlike(LOOKS, look) == {}


@pytest.mark.usefixtures("fleet")
def test_each_look_of_a_moment_prints_the_same_but_its_figures(cleave: CommandLine, http: OverHttp) -> None:
    def look(line: str) -> None:
        for form in ((), ("--json",)):
            there, here = (_figureless(way.ok(*line.split(), *form)) for way in (http, cleave))
            assert there == here

    assert unlike(MOMENTARY, look) == {}


@pytest.mark.usefixtures("fleet")
def test_each_rehearsal_prints_the_same_and_changes_nothing(cleave: CommandLine, http: OverHttp) -> None:
    before = http.rows()

    def rehearse(line: str) -> None:
        asked = (*line.split(), "--dry-run")
        assert http.ok(*asked) == cleave.ok(*asked)
        there, here = http.json(*asked), cleave.json(*asked)
        assert _without(there, *_TELL_THE_WAY) == _without(here, *_TELL_THE_WAY)
        assert list(there) == list(here)

    assert unlike(REHEARSALS, rehearse) == {}
    assert http.rows() == before


def test_each_change_is_made_and_prints_the_same(cleave: CommandLine, http: OverHttp) -> None:
    for line in CHANGES:
        said = []
        for way, topic in ((cleave, "acme/shop/here"), (http, "acme/shop/hier")):
            document = way.json(*line.format(topic=topic).split())
            assert document.get("state", "done") == ("intended" if "--no-wait" in line else "done"), line
            assert document.get("actor", "ada") == "ada", line
            text = json.dumps(document).replace(topic, "TOPIC")
            said.append(re.sub(r'"(operation_id|origin)": [^,]+, ', "", text))
        assert said[0] == said[1], line
    origins = {row["topic"]: row["origin"] for row in cleave.json("operations")}
    assert origins == {"topic://acme/shop/here": "manual", "topic://acme/shop/hier": "api"}
    [actors] = cleave.column(
        "SELECT array_agg(DISTINCT actor) FROM inspect.policy_history WHERE level = 'topic'"
    )
    assert actors == ["ada"]


@pytest.mark.usefixtures("fleet")
def test_each_refusal_is_the_same_line(cleave: CommandLine, http: OverHttp) -> None:
    before = http.rows()

    def refuse(line: str) -> None:
        here = cleave(*line.split())
        assert http(*line.split()) == here
        assert (here.code, here.out, here.err.count("\n")) == (2, "", 1)

    assert unlike(REFUSED, refuse) == {}
    assert http.rows() == before


@pytest.mark.usefixtures("fleet")
def test_an_act_is_answered_over_http_once_and_in_the_name_of_the_token(
    cleave: CommandLine, http: OverHttp
) -> None:
    [answered] = http.json("approvals", "approve", "1", "--reason", "quiet week")["approvals"]

    assert (answered["state"], answered["answered_by"], answered["outcome"]) == (
        "approved",
        "ada",
        "quiet week",
    )
    again = cleave.json("approvals", "approve", "1")
    assert [answered] == again["approvals"], "the same answer again"
    assert "was approved by ada" in http.refused("approvals", "reject", "1")


_TELL_THE_WAY = ("origin", "answered_at")
"""Fields of a dry run that are others over HTTP, or at another moment."""


def unlike(lines: Sequence[str], check: Callable[[str], None]) -> dict[str, str]:
    """The lines that fail the check, each with how: all of them, since one round of them takes a while."""
    found = {}
    for line in lines:
        try:
            check(line)
        except AssertionError as error:
            found[line] = str(error)
    return found


def _ageless(table: str) -> str:
    """Without how old something was when it was asked for, and the widths that come of it."""
    return re.sub(r"[ \d.,]+", " ", table) if "age" in table else table


def _figureless(text: str) -> str:
    return re.sub(r"[ \d.,:+-]+", " ", text)


def _without_age(document: Any) -> Any:
    return [_without(one, "age_seconds") for one in document] if isinstance(document, list) else document


def _without(document: Any, *names: str) -> Any:
    """Without the fields, of the document and of those in it."""
    if isinstance(document, list):
        return [_without(one, *names) for one in document]
    if not isinstance(document, dict):
        return document
    return {name: _without(value, *names) for name, value in document.items() if name not in names}


def _keys(text: str) -> list[str]:
    """Of the document, in their order."""
    return re.findall(r'"(\w+)":', text)


@pytest.mark.usefixtures("fleet")
def test_dead_letters_are_put_back_over_http_call_by_call(
    http: OverHttp, cleave: CommandLine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question, "MOST_OF_A_PAGE", 2)
    some = ("dead-letters", "list", TOPIC, "billing", "--limit", "3")
    assert len(http.json(*some)["items"]) == 3
    assert http.json(*some) == cleave.json(*some)
    park(database, [letter(number) for number in range(3, 2 * PART_LIMIT + 3)])

    path = f"/api/v1/topics/{TOPIC}/subscriptions/billing/dead-letters/redrive"
    part = http.call("POST", path, {})
    assert (part["messages"], part["left"]) == (PART_LIMIT, PART_LIMIT + 3)
    document = http.json("dead-letters", "redrive", TOPIC, "billing")

    assert (document["messages"], document["left"]) == (PART_LIMIT + 3, 0)
    assert cleave.json("dead-letters", "list", TOPIC, "billing")["items"] == []
    assert http.json("dead-letters", "redrive", TOPIC, "billing")["messages"] == 0


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("over_http", [True, False], ids=["over-http", "beside-the-database"])
def test_as_many_dead_letters_are_put_back_as_the_limit_says(
    http: OverHttp, cleave: CommandLine, database: str, over_http: bool
) -> None:
    park(database, [letter(number) for number in range(3, +13)])
    way, limit = http if over_http else cleave, str(+5)

    rehearsed = way.json("dead-letters", "redrive", TOPIC, "billing", "--limit", limit, "--dry-run")
    document = way.json("dead-letters", "redrive", TOPIC, "billing", "--limit", limit)

    assert (document["messages"], document["left"]) == (+5, 8)
    assert {**document, "dry_run": True} == rehearsed


def park(database: str, letters: Sequence[OutgoingMessage]) -> None:
    """Append dead letters of the subscription `billing`."""
    with application(Settings(database_url=database)) as app:
        log = dead_letters.find(app.store, app.planes, f"topic://{TOPIC}", "billing")
        with closing(app.log_client(log.data_plane)) as logs:
            logs.append(log.backing_topic, letters, producer="other", sequence=1)


@pytest.mark.usefixtures("fleet")
def test_dead_letters_come_in_pages(http: OverHttp) -> None:
    path = f"/api/v1/topics/{TOPIC}/subscriptions/billing/dead-letters"
    whole = http.call("GET", path, None)
    paged, page = [], ""
    while page is not None:
        found = http.call("GET", f"{path}?limit=1&page={page}" if page else f"{path}?limit=1", None)
        assert (found["count"], len(found["items"])) == (3, 1)
        paged += found["items"]
        page = found["next"]

    assert paged == whole["items"]
    assert whole["next"] is None


def test_a_seek_that_waits_is_given_up_over_http(http: OverHttp, cleave: CommandLine, orders: str) -> None:
    cleave.ok("subscriptions", "create", orders, "billing")
    cleave.ok("subscriptions", "seek", orders, "billing", "latest", "--no-wait")

    assert "would cancel 1 seek" in http.rehearsed("subscriptions", "cancel-seek", orders, "billing")
    [given_up] = http.json("subscriptions", "cancel-seek", orders, "billing", "--reason", "the wrong one")[
        "operations"
    ]

    assert (given_up["kind"], given_up["state"]) == ("seek", "aborted")
    assert "nothing to cancel" in http.refused("subscriptions", "cancel-seek", orders, "billing")


@pytest.mark.usefixtures("fleet")
def test_a_list_of_many_pages_is_whole_and_ends_where_it_is_to(
    http: OverHttp, cleave: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_calls, "PAGE", 2)

    def look(line: str) -> None:
        assert _without_age(http.json(*line.split())) == _without_age(cleave.json(*line.split()))

    assert len(http.json("operations")) > 4
    assert len(http.json("topics", "list", "--limit", "3")) == 3
    assert unlike([line for line in LOOKS if "metadata" not in line], look) == {}
