"""What holds for every page: what it refuses, what it shows of errors, and who may have it."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import text

from controller.pages.app import pages_app
from controller.pages.context import PageContext
from tests.support.app_client import AppClient
from tests.support.bench import TOPIC, Bench

pytestmark = pytest.mark.integration
NAME = quote(TOPIC, safe="")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/topic?name=acme/shop/none", 404, "does not exist"),
        ("/topic", 400, "name: Field required"),
        (f"/topic?name={NAME}&hours=nan", 400, "hours"),
        (f"/topic?name={NAME}&hours=0", 400, "hours"),
        (f"/segment?name={NAME}&segment_id=99", 404, "no segment 99"),
        (f"/segment?name={NAME}&segment_id=-1", 400, "segment_id"),
        ("/operation?operation_id=9999", 404, "operation 9999 is not in the journal"),
        ("/operation?operation_id=99999999999999999999", 400, "operation_id"),
        ("/backtest?run_id=9999", 404, "backtest 9999 does not exist"),
        ("/static/app.py", 404, "app.py"),
        ("/?after=-1", 400, "after"),
    ],
)
def test_what_is_not_there_is_a_page_with_one_sentence(
    bench: Bench, pages: AppClient, path: str, status: int, words: str
) -> None:
    bench.create(1)

    answer = pages.get(path)

    assert (answer.status_code, words in answer.text) == (status, True)


def test_what_people_wrote_is_shown_and_never_run(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    bench.execute(
        "UPDATE cleave.operation SET reason = :r, actor = :r", r="</script><script>alert(1)</script>"
    )

    for page in (pages.get("/operations").text, pages.get("/topic", params={"name": TOPIC}).text):
        assert "alert(1)" in page
        assert "<script>alert" not in page


def test_a_database_that_is_away_is_said_in_one_sentence_without_its_address() -> None:
    context = PageContext(lambda: {"dsn": "postgresql://somebody:secret@127.0.0.1:1/cleave", "extras": {}})

    answer = AppClient(pages_app(context)).get("/")

    assert answer.status_code == 503
    assert "secret" not in answer.text


def test_a_page_that_takes_too_long_says_so_and_is_given_up(bench: Bench) -> None:
    context = PageContext(lambda: {"dsn": bench.url, "extras": {}}, patience_seconds=0.5)
    with bench.store.transaction() as tx:
        tx.execute(text("LOCK TABLE cleave.backtest_run IN ACCESS EXCLUSIVE MODE"))
        answer = AppClient(pages_app(context)).get("/backtests")
    context.close()

    assert answer.status_code == 503
    assert "did not answer within the time limit" in answer.text


def test_nothing_is_answered_but_by_leave_of_whoever_mounts_them(bench: Bench) -> None:
    from fastapi import Depends, HTTPException

    def refuse() -> None:
        raise HTTPException(401)

    app = pages_app(PageContext(lambda: {"dsn": bench.url, "extras": {}}), [Depends(refuse)])
    client = AppClient(app)
    paths = [
        (method, route.path)
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    ]

    assert len(paths) >= 13
    for method, path in paths:
        assert client.request(method, path.replace("{name}", "pages.js")).status_code == 401


@pytest.mark.parametrize(
    "path", ["/", "/operations", "/static/pages.js", "/nothing", "/operation?operation_id=no"]
)
def test_every_answer_says_which_scripts_may_run_and_who_may_frame_it(
    bench: Bench, pages: AppClient, path: str
) -> None:
    said = pages.get(path).headers

    policy = dict(one.split(" ", 1) for one in said["Content-Security-Policy"].split("; "))
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'self'"
    assert "unsafe" not in said["Content-Security-Policy"]
    assert said["X-Frame-Options"] == "SAMEORIGIN"


def test_no_redirect_leads_where_the_request_says_its_host_is(pages: AppClient) -> None:
    assert pages.get("/operations/", headers={"Host": "evil.example"}).status_code == 404
