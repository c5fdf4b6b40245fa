"""What the forms take, and the one line for what they do not."""

from __future__ import annotations

import pytest

from controller.actions.action import find_action
from controller.actions.fields import fill_in
from controller.domain.errors import InvalidInput
from controller.tasks.actions import Form, form_fields, form_of
from controller.tasks.forms import BacktestForm, TuningForm

SplitForm, DeleteForm, CreateForm = (
    form_of(find_action(name)) for name in ("segments split", "topics delete", "topics create")
)
TOPIC = "topic://acme/shop/orders"


def test_a_form_as_airflow_gives_it_is_filled_in() -> None:
    params = {
        "topic": " acme/shop/orders ",
        "segment_id": 3,
        "cut_points": ["0x4000", "32768", 49152],
        "parts": None,
        "reason": "hot",
        "timeout_seconds": 5,
        "dry_run": True,
    }

    form = fill_in(SplitForm, params)

    assert (form.topic, form.cut_points) == (TOPIC, (0x4000, 0x8000, 0xC000))
    assert (form.timeout_seconds, form.dry_run, form.parts) == (5.0, True, None)


def test_an_enumeration_is_a_choice_of_its_values() -> None:
    """Airflow resolves no references in a form's schema."""
    create, change = form_fields("subscriptions create"), form_fields("subscriptions set")

    assert create["kind"]["enum"] == ["STREAM", "QUEUE", "CHECKPOINT"]
    assert (create["kind"]["type"], create["kind"]["default"]) == ("string", "STREAM")
    for consumers in (create["consumers"], change["consumers"]):
        assert (consumers["enum"], consumers["default"]) == (["cleave", "stock", None], None)
        assert consumers["type"] == ["null", "string"]
    assert "$ref" not in str([*create.values(), *change.values()])


def test_fields_with_another_name_keep_their_place() -> None:
    names = list(form_fields("subscriptions create"))

    assert names.index("kind") < names.index("from") < names.index("consumers") < names.index("dry_run")


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("0x8000", (0x8000,)),
        ("0x4000, 32768,49152", (0x4000, 0x8000, 0xC000)),
        (" 0x4000\n0x8000 \n", (0x4000, 0x8000)),
        ("16384 32768; 49152", (0x4000, 0x8000, 0xC000)),
        ("  ", None),
        (None, None),
    ],
)
def test_cut_points_are_a_text_as_people_write_it(text: str | None, points: tuple[int, ...] | None) -> None:
    assert fill_in(SplitForm, {"topic": TOPIC, "segment_id": 0, "cut_points": text}).cut_points == points


def test_the_confirmation_may_leave_the_scheme_out() -> None:
    assert fill_in(DeleteForm, {"topic": TOPIC, "confirm": "acme/shop/orders"}).confirm == "acme/shop/orders"
    assert fill_in(DeleteForm, {"topic": TOPIC}).confirm == ""


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"segment_id": 0}, "topic: is missing"),
        ({"topic": TOPIC}, "segment_id: is missing"),
        ({"topic": TOPIC, "segment_id": -1}, "segment_id=-1: input should be greater than or equal to 0"),
        (
            {"topic": TOPIC, "segment_id": 2**63},
            "segment_id=9223372036854775808: input should be less than or equal",
        ),
        ({"topic": TOPIC, "segment_id": "9" * 5000}, "(5002 characters): unable to parse"),
        ({"topic": TOPIC, "segment_id": 10**5000}, "segment_id=an integer of 16610 bits:"),
        (
            {"topic": TOPIC, "segment_id": 0, "cut_points": [10**5000]},
            "cut_points.0=an integer of 16610 bits:",
        ),
        (
            {"topic": TOPIC, "segment_id": 0, "parts": 1},
            "parts=1: input should be greater than or equal to 2",
        ),
        ({"topic": TOPIC, "segment_id": 0, "at": 1}, "at: there is no such parameter; use one of topic,"),
        ({"topic": TOPIC, "segment_id": 0, "cut_points": [70000]}, "hash '70000' is not on the ring"),
        (
            {"topic": TOPIC, "segment_id": 0, "cut_points": "0x8000 ninety"},
            "cut_points.1='ninety': 'ninety' is not a hash",
        ),
        (
            {"topic": TOPIC, "segment_id": 0, "timeout_seconds": 0},
            "timeout_seconds=0: input should be greater",
        ),
        ({"topic": 7, "segment_id": 0}, "topic=7: input should be a valid string"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said_in_one_line(params: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        fill_in(SplitForm, params)

    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("form", "params", "where"),
    [
        (SplitForm, {"topic": "a/b/\ud800", "segment_id": 0}, "topic"),
        (SplitForm, {"topic": TOPIC, "segment_id": 0, "reason": "\ud800"}, "reason"),
        (DeleteForm, {"topic": TOPIC, "confirm": "\ud800"}, "confirm"),
        (CreateForm, {"topic": TOPIC, "data_plane": "\ud800"}, "data_plane"),
        (CreateForm, {"topic": TOPIC, "properties": {"\ud800": "x"}}, "properties"),
        (CreateForm, {"topic": TOPIC, "properties": {"x": "\ud800"}}, "properties"),
    ],
)
def test_text_without_a_utf8_form_is_refused_before_anything_is_done(
    form: type[Form], params: dict[str, object], where: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"^{where} .*surrogate"):
        fill_in(form, params)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        fill_in(CreateForm, {"topic": TOPIC, "segments": 0, "planes": "embedded"})

    assert str(caught.value).count("; ") >= 1
    assert "segments=0" in str(caught.value)
    assert "planes: there is no such parameter" in str(caught.value)


@pytest.mark.parametrize("form", [BacktestForm, TuningForm])
def test_an_empty_text_selects_all_topics_and_an_empty_list_is_refused(
    form: type[BacktestForm | TuningForm],
) -> None:
    """A list comes from another task, and is empty if that task found no topics."""
    assert fill_in(form, {"topics": " "}).topics is None
    with pytest.raises(
        InvalidInput, match=r"^topics=\[\]: give at least one topic, or nothing for all topics$"
    ):
        fill_in(form, {"topics": []})
