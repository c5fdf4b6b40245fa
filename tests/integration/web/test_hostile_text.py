"""Text and bytes of a caller in every place of every call: whatever stands there, a real worker answers with a refusal of its own."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from controller.devstack.postgres import PostgresServer
from controller.devstack.serving import serving_worker
from controller.domain.names import MOST_TOPIC_BYTES
from tests.support.bench import Bench
from tests.support.fuzzing import REAL, STREAMS, authorization

pytestmark = pytest.mark.timeout(600)
_PLAIN = itertools.cycle(range(0x4E00, 0x9FA0, 7))
HALF_A_PAIR, NUL = "\ud800", "\0"


def letters(count: int) -> str:
    """Letters of three bytes each that no compression makes shorter."""
    return "".join(map(chr, itertools.islice(_PLAIN, count)))


Call = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="module")
def http(
    postgres_server: PostgresServer, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    name = "cleave_hostile_text"
    bench = Bench(postgres_server.create_database(name, template=migrated_template))
    bench.topic_with(segments=2)
    landing: Path = tmp_path_factory.mktemp("landing")
    with (
        serving_worker(postgres_server.url(name), landing_url=str(landing)) as running,
        httpx.Client(base_url=running.address, timeout=60.0) as http,
    ):
        yield http
    bench.close()
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def described(http: httpx.Client) -> dict[str, Any]:
    return dict(http.get("/openapi.json").json())


@pytest.fixture(scope="module")
def calls(described: dict[str, Any]) -> list[Call]:
    """Of every path that ends: its verb, and what is described of it."""
    return [
        (verb.upper(), path, call)
        for path, verbs in described["paths"].items()
        for verb, call in verbs.items()
        if not re.search(STREAMS, path)
    ]


def resolved(described: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The object that a schema is about."""
    for one in schema.get("anyOf", ()):
        if "$ref" in one or one.get("type") == "object":
            schema = one
            break
    if "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def resolved_body(described: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    """The schema of the call's body; empty where it has none."""
    content = call.get("requestBody", {}).get("content", {}).get("application/json", {})
    return resolved(described, content.get("schema", {}))


def bodies(described: dict[str, Any], call: dict[str, Any], hostile: str) -> Iterator[Any]:
    """The example with the text in place of each field, of each text within it, and of each name."""
    schema = resolved_body(described, call)
    example = next(iter(schema.get("examples", [{}])))
    yield hostile
    if isinstance(example, dict):
        for name in {*schema.get("properties", {}), *example}:
            for value in (hostile, [hostile], {hostile: "a"}, {"a": hostile}, {"profile": hostile}):
                yield {**example, name: value}
    yield from replaced(example, hostile)


def replaced(value: Any, hostile: str) -> Iterator[Any]:
    """The value with one text or name in it replaced."""
    if isinstance(value, str):
        yield hostile
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in replaced(one, hostile))
    elif isinstance(value, dict):
        for name, one in value.items():
            yield {hostile if held == name else held: at for held, at in value.items()}
            yield from ({**value, name: other} for other in replaced(one, hostile))


def real(path: str, **instead: str) -> str:
    """The path with what is there, or what is given instead."""
    values = {name: str(value) for name, value in REAL.items()} | instead
    return re.sub(r"{(\w+)}", lambda name: quote(values.get(name[1], "0"), safe=""), path)


def test_a_body_that_is_not_utf8_is_refused_as_one(http: httpx.Client, calls: list[Call]) -> None:
    for verb, path, call in calls:
        if "requestBody" in call:
            headers = {**authorization(path), "Content-Type": "application/json"}
            for content in (b'{"reason": "\xff"}', b'\xff\xfe{"a": 1}', "{}".encode("utf-16")):
                answer = http.request(verb, real(path), content=content, headers=headers)
                assert answer.status_code in (400, 412), (verb, path, answer.text)
                assert "UTF-8" in answer.json()["reason"], (verb, path, answer.text)


HOSTILE = {
    "half a pair": HALF_A_PAIR,
    "nul": NUL,
    "wide": letters(500),
    "wider": letters(3000),
    "long": "x" * 100_000,
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_no_text_in_a_body_is_a_failure_of_the_server(
    http: httpx.Client, calls: list[Call], described: dict[str, Any], hostile: str
) -> None:
    failed = []
    for verb, path, call in calls:
        if "requestBody" in call:
            headers = {**authorization(path), "Content-Type": "application/json"}
            for body in bodies(described, call, hostile):
                answer = http.request(verb, real(path), content=json.dumps(body), headers=headers)
                if (
                    answer.status_code >= 500
                    or not answer.json()
                    or (hostile == HALF_A_PAIR and "surrogate" not in answer.json()["reason"])
                ):
                    failed.append((verb, path, f"{body!r:.150}", answer.text[:200]))
    assert not failed


IN_PATHS = {
    "wide": letters(280),
    "wider": letters(500),
    "nul": NUL,
    "none": "\ufffd",
    "quoted": "%2F",
    "dots": "..",
}


@pytest.mark.parametrize("hostile", IN_PATHS.values(), ids=IN_PATHS)
def test_no_text_in_an_address_is_a_failure_of_the_server(
    http: httpx.Client, calls: list[Call], described: dict[str, Any], hostile: str
) -> None:
    failed = []
    for verb, path, call in calls:
        names = re.findall(r"{(\w+)}", path)
        other = {name: letters(len(hostile)) if len(hostile) > 10 else hostile for name in names}
        addresses = [real(path, **{name: hostile}) for name in names] + [real(path, **other)]
        if verb != "DELETE":  # what is there stays
            queries = [one["name"] for one in call.get("parameters", ()) if one["in"] == "query"]
            addresses += [f"{real(path)}?{name}={quote(hostile)}" for name in queries]
        for address in addresses:
            example = next(iter(resolved_body(described, call).get("examples", [None])))
            answer = http.request(verb, address, headers=authorization(path), json=example)
            if answer.status_code >= 500:
                failed.append((verb, path, address[:150], answer.text[:200]))
    assert not failed


@pytest.mark.parametrize("path", ["/api/v1/topics", "/admin/v2/scalable"])
def test_the_longest_name_of_a_topic_is_stored_and_a_longer_one_refused(
    http: httpx.Client, path: str
) -> None:
    """Every index takes it, also where no compression makes it shorter."""
    headers, namespace = authorization(path), f"{letters(100)}/{letters(100)}"
    longest = MOST_TOPIC_BYTES - len(f"topic://{namespace}/".encode())
    body = {"json": {"data_plane": "embedded"}} if path.startswith("/api") else {}
    kept = http.put(f"{path}/{namespace}/{letters(longest // 3)}", headers=headers, **body)
    refused = http.put(f"{path}/{namespace}/{letters(longest // 3 + 1)}", headers=headers, **body)

    assert kept.is_success, kept.text
    assert (refused.status_code, f"{MOST_TOPIC_BYTES} bytes" in refused.text) == (412, True), refused.text


def test_the_longest_name_of_a_namespace_has_a_policy_and_a_longer_one_is_refused(http: httpx.Client) -> None:
    path = "/api/v1/policies/namespaces"
    parameters = {"json": {"parameters": {"max_segments": 9}}, "headers": authorization(path)}
    tenant = letters(100)
    longest = (MOST_TOPIC_BYTES - len(f"{tenant}/".encode())) // 3
    kept = http.post(f"{path}/{tenant}/{letters(longest)}", **parameters)
    refused = http.post(f"{path}/{tenant}/{letters(longest + 1)}", **parameters)

    assert kept.is_success, kept.text
    assert (refused.status_code, f"{MOST_TOPIC_BYTES} bytes" in refused.text) == (412, True), refused.text
