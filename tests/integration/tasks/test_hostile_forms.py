"""Values that no form expects, in every field of every form, as a DAG's run or an operator passes them: a result, or
one line about the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import make_url

from controller import tasks
from controller.actions.action import find_action
from controller.domain.errors import CleaveError, InvalidInput
from controller.tasks.actions import form_of
from controller.tasks.forms import BacktestForm, TuningForm
from tests.support.bench import TOPIC, Bench
from tests.support.bundle_operator import LOW, NAMESPACE, bundle_operator

LONG = 10**5_000
HOSTILE: Mapping[str, object] = {
    "null": None,
    "empty": "",
    "blank": " ",
    "no such thing": "acme/shop/none",
    "NUL": "\0",
    "long": "9" * 5_000,
    "negative": -1,
    "huge": LONG,
    "NaN": math.nan,
    "infinite": math.inf,
    "truth": True,
    "no item": [],
    "items": [None, math.nan, LONG, "x"],
    "no key": {},
    "keys": {"max_segments": LONG, "max_topics": math.nan, "split_msg_rate_in": [math.nan]},
    "far": "99999999d",
    "not a number": "adaptive:target_use=NaN",
    "list of no number": "adaptive:target_use=[NaN]",
}
FORMS: Mapping[str, dict[str, object]] = {
    "topics create": {"topic": "acme/shop/new"},
    "topics delete": {"topic": TOPIC, "confirm": TOPIC},
    "subscriptions create": {"topic": TOPIC, "subscription": "audit"},
    "subscriptions set": {"topic": TOPIC, "subscription": "billing", "drain_consumers": 2},
    "segments split": {"topic": TOPIC, "segment_id": 0},
    "segments merge": {"topic": TOPIC, "first_id": 0, "second_id": 1},
    "segments rebucket": {"topic": TOPIC, "segment_id": 0, "bucket_count": 2},
    "policy set": {"level": TOPIC, "parameters": {"max_segments": 8}},
    "policy propose": {"topic": TOPIC, "parameters": {"max_segments": 8}},
    "policy promote": {"topic": TOPIC, "ask": True},
    "approvals approve": {"approvals": "1"},
    "approvals reject": {"approvals": "1"},
    "bundles split": {"bundle": LOW},
    "bundles unload": {"bundle": LOW},
    "bundles set-policy": {"namespace": NAMESPACE, "parameters": {"max_topics": 500}},
}


def fields_of(form: type[BaseModel]) -> list[str]:
    """The names that people give, and one that is none."""
    return [*(field.alias or name for name, field in form.model_fields.items()), "other"]


@pytest.fixture
def where(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """A topic and two brokers, as a connection names them."""
    monkeypatch.setenv("CLEAVE_HISTORY_URL", str(tmp_path / "history"))
    monkeypatch.setenv("SPARK_MASTER", "none")
    with bundle_operator(database, tmp_path, capsys, monkeypatch) as operator:
        operator.uneven()
        bench = Bench(database)
        bench.topic_with(2)
        bench.close()
        dsn = make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)
        yield {"dsn": dsn, "extras": {}}


def result_or_refusal(call: Callable[[], object]) -> None:
    """Make the call, which returns or raises an error of Cleave whose text does not repeat a long value."""
    line = ""
    try:
        call()
    except CleaveError as error:
        line = str(error)
    assert len(line) < 2_000


@pytest.mark.parametrize("name", FORMS)
def test_a_form_of_an_action(where: dict[str, Any], name: str) -> None:
    for field in fields_of(form_of(find_action(name))):
        for label, value in HOSTILE.items():
            params = {**FORMS[name], "dry_run": True, field: value}
            request = {"request_key": f"{field} {label}", "actor": "ada", "params": params}
            result_or_refusal(partial(tasks.perform, name, **where, **request))


def test_the_form_of_a_backtest(where: dict[str, Any]) -> None:
    for field in fields_of(BacktestForm):
        for label, value in HOSTILE.items():
            request = {
                "request_key": f"{field} {label}",
                "actor": "ada",
                "asked_at": "2026-11-29T00:00:00+00:00",
                "params": {"engine": "here", field: value},
            }
            result_or_refusal(partial(tasks.policy_backtest, **where, **request))


def test_the_form_of_a_tuning(where: dict[str, Any]) -> None:
    for field in fields_of(TuningForm):
        for label, value in HOSTILE.items():
            request = {"request_key": f"{field} {label}", "actor": "ada", "params": {field: value}}
            result_or_refusal(partial(tasks.tune_policies, **where, **request))


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_an_id_of_an_operation_and_the_days_of_decisions(where: dict[str, Any], value: Any) -> None:
    result_or_refusal(lambda: tasks.ended_operation(**where, operation_id=value))
    with pytest.raises(InvalidInput, match=r"^keep_days = .*; give a whole number from 1 to "):
        tasks.keep_partitions(**where, keep_days=value)
