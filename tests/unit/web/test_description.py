"""The description that the API gives of itself has an example of whatever is said to it and heard from it, and no example is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any, cast

from jsonschema import Draft202012Validator, FormatChecker

from controller.questions.question import PageRequest
from controller.web.app import app_for_people, routed_app
from controller.web.route_rights import Who
from controller.web.shared_parameters import PeopleServices

Schema = Mapping[str, Any]
JSON = "application/json"
NOTHING = {"type": "null"}
FORMATS = FormatChecker(())


@FORMATS.checks("date-time", ValueError)
def is_instant(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


@cache
def description() -> Schema:
    """With documents that allow no field that they do not have, so that a misspelt one in an example is seen."""
    found = routed_app().openapi()
    for schema in found["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return found


def calls() -> Iterator[tuple[str, Schema]]:
    for path, verbs in description()["paths"].items():
        for verb, call in verbs.items():
            yield f"{verb.upper()} {path}", call


def parameters() -> Iterator[tuple[str, Schema]]:
    for name, call in calls():
        for one in call.get("parameters", ()):
            yield f"{name}: {one['name']}", one["schema"]


def bodies() -> Iterator[tuple[str, Schema]]:
    for name, call in calls():
        for kind, content in call.get("requestBody", {"content": {}})["content"].items():
            yield f"{name}: {kind}", content["schema"]


def answers() -> Iterator[tuple[str, Schema]]:
    """Of calls that go well."""
    for name, call in calls():
        for status, answer in call["responses"].items():
            if status.startswith("2") and JSON in answer.get("content", {}):
                yield f"{name}: {status}", answer["content"][JSON]["schema"]


def referred_to(schema: Schema) -> tuple[str, Schema]:
    name = schema["$ref"].rpartition("/")[2]
    return name, description()["components"]["schemas"][name]


def documents_answered() -> Mapping[str, Schema]:
    """By name, those within others included."""
    found: dict[str, Schema] = {}
    left = [schema for _, schema in answers()]
    while left:
        for part in parts(left.pop()):
            if "$ref" in part:
                name, schema = referred_to(part)
                if name not in found:
                    found[name] = schema
                    left.append(schema)
    return found


def parts(schema: object) -> Iterator[Schema]:
    """The schema, and every one in it."""
    if isinstance(schema, Mapping):
        yield schema
        for name, one in schema.items():
            if name not in ("examples", "default"):
                yield from parts(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from parts(one)


def whole(schema: Schema) -> Schema:
    """What has the examples: itself, or what it refers to where that is one thing, or nothing."""
    if "examples" in schema:
        return schema
    if "$ref" in schema:
        return whole(referred_to(schema)[1])
    kinds = [one for one in schema.get("anyOf", ()) if one != NOTHING]
    return whole(kinds[0]) if len(kinds) == 1 else schema


def faults(schema: Schema) -> list[str]:
    """Of its examples; one is that it has none."""
    rules = {**schema, "components": description()["components"]}
    validator = Draft202012Validator(rules, format_checker=FORMATS)
    examples = schema.get("examples", [])
    found = [f"{one!r}: {fault.message}" for one in examples for fault in validator.iter_errors(one)]
    return found if examples else ["no example"]


def speaks_for_itself(schema: Schema) -> bool:
    """Its values are true and false, or a few words that it names; or they are described elsewhere."""
    kinds = [one for one in schema.get("anyOf", ()) if one != NOTHING]
    if kinds:
        return all(map(speaks_for_itself, kinds))
    within = schema.get("items", schema.get("additionalProperties"))
    if isinstance(within, Mapping):
        return speaks_for_itself(within)
    return schema.get("type") == "boolean" or bool(schema.keys() & {"$ref", "enum", "const"})


def test_each_body_has_a_whole_example() -> None:
    found = {name: faults(whole(schema)) for name, schema in bodies()}

    assert len(found) > 40
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_each_parameter_has_an_example() -> None:
    found = {name: faults(schema) for name, schema in parameters() if not speaks_for_itself(schema)}

    assert len(found) > 400
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_no_description_has_the_indentation_of_its_source() -> None:
    indented = {
        name: line
        for name, call in calls()
        for line in call["description"].splitlines()
        if line.startswith(" ")
    }

    assert indented == {}


def test_each_document_that_is_answered_has_an_example() -> None:
    found = documents_answered()
    without = [
        name
        for name, schema in found.items()
        for fields in [list(schema.get("properties", {}).values())]
        if not all(map(speaks_for_itself, fields)) and not any("examples" in one for one in (schema, *fields))
    ]

    assert len(found) >= 80
    assert without == []


def test_each_answer_that_is_no_document_has_an_example() -> None:
    assert [
        name for name, schema in answers() if not speaks_for_itself(schema) and "examples" not in schema
    ] == []


def test_each_stream_has_an_example() -> None:
    streams = [
        content
        for _, call in calls()
        for kind, content in call["responses"].get("200", {}).get("content", {}).items()
        if kind == "text/event-stream"
    ]

    assert [set(one) for one in streams] == [{"example"}] * 3


def test_each_refusal_has_the_same_document() -> None:
    found = {
        referred_to(answer["content"][JSON]["schema"])[0]
        for _, call in calls()
        for status, answer in call["responses"].items()
        if status >= "4"
    }

    assert found == {"Refusal"}


def test_whatever_is_referred_to_is_described_where_people_are_served_only_too() -> None:
    people_only = app_for_people(cast(PeopleServices, None), cast(Who, None), most_at_once=1).openapi()

    for said in (description(), people_only):
        names = {part["$ref"].rpartition("/")[2] for part in parts(said) if "$ref" in part}
        assert "Refusal" in names
        assert names - said["components"]["schemas"].keys() == set()


def test_no_example_is_wrong() -> None:
    found = [part for part in parts(description()) if isinstance(part.get("examples"), list)]

    assert [fault for part in found for fault in faults(part)] == []


def test_pages_of_the_examples_are_those_of_lists() -> None:
    [pages] = {tuple(schema["examples"]) for name, schema in parameters() if name.endswith(": page")}

    assert [PageRequest(page=page).keys([kind]) for page, kind in zip(pages, (int, str), strict=True)] == [
        [42],
        ["topic://acme/shop/orders"],
    ]
