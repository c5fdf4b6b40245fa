"""The page of the calls over HTTP, from the description that the app gives of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi.routing import APIRoute

from controller.entrypoints.web.app import routed_app
from controller.entrypoints.web.demands import rights_of
from docs.reference.pages.markdown import code, page, table

_VERBS = ("get", "put", "post", "delete")


def rest() -> str:
    """Every call by subject, then the documents that are said and answered."""
    app = routed_app()
    description: Mapping[str, Any] = app.openapi()
    rights = {
        (method.lower(), route.path): rights_of(route)[0].value
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    by_tag: dict[str, list[tuple[str, ...]]] = {}
    for path, calls in description["paths"].items():
        for verb in _VERBS:
            if verb in calls:
                row = _row(verb, path, calls[verb], rights[verb, path])
                by_tag.setdefault(calls[verb]["tags"][0], []).append(row)
    head = ("call", "right", "what it does", "asked with", "body", "answer")
    parts = [part for tag, rows in by_tag.items() for part in (f"## {_title(tag)}", table(head, rows))]
    return page(
        "Calls over HTTP",
        "Every worker answers them where `CLEAVE_API_SECRET` is set; with a token, whose role gives the "
        '[right](access.md) that is named. Bodies and answers are JSON. A page is `{"items": […], "next": …}`; `next` is the `page` to ask for next, null at the end. An error is `{"reason": …, "kind": …}`, `kind` a name '
        "of [errors](errors.md). `GET /openapi.json` says all this to programs, with examples. How to "
        "[operate over HTTP](../how-to/operate-over-http.md).",
        *parts,
        "## Documents",
        *_documents(description["components"]["schemas"]),
    )


def _row(verb: str, path: str, call: Mapping[str, Any], right: str) -> tuple[str, ...]:
    asked = [_parameter(one) for one in call.get("parameters", ()) if one["in"] != "path"]
    body = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    return (
        f"`{verb.upper()} {path}`",
        right,
        " ".join(call.get("description", "").split()),
        ", ".join(asked),
        _type(body) if body else "",
        _answer(call["responses"]),
    )


def _parameter(one: Mapping[str, Any]) -> str:
    said = f": {one['description']}" if one.get("description") else ""
    return f"{code(one['name'])}{said}".rstrip(".")


def _answer(responses: Mapping[str, Any]) -> str:
    status = next(status for status in responses if status.startswith("2"))
    content = responses[status].get("content", {})
    if "text/event-stream" in content:
        return "events"
    schema = content.get("application/json", {}).get("schema", {})
    return f"{status} {_type(schema)}".strip() if schema else status


def _documents(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items(), key=lambda one: _title(one[0])):
        if not schema.keys() & {"properties", "enum"}:
            continue
        if "enum" in schema:
            yield f"### {_name(name)}"
            yield f"{' '.join(schema.get('description', '').split())} One of {_type(schema)}."
            continue
        rows = [
            (code(field), _type(one), " ".join(one.get("description", "").split()))
            for field, one in schema["properties"].items()
        ]
        yield f"### {_name(name)}"
        yield " ".join(schema.get("description", "").split())
        yield table(("field", "type", "what it is"), rows)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        found = schema["$ref"].rpartition("/")[2]
        if found == "OneRow":
            return "row"
        name = _name(found)
        return f"[{name}](#{re.sub(r'[^a-z0-9 -]', '', name.lower()).replace(' ', '-')})"
    if "anyOf" in schema:
        kinds = [_type(one) for one in schema["anyOf"] if one.get("type") != "null"]
        may_be_null = len(kinds) < len(schema["anyOf"])
        return " or ".join(dict.fromkeys(kinds)) + (", or null" if may_be_null else "")
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "enum" in schema:
        return ", ".join(code(one) for one in schema["enum"])
    if "const" in schema:
        return code(repr(schema["const"]))
    if schema.get("format") == "date-time":
        return "instant"
    return str(schema.get("type", "any"))


def _name(schema: str) -> str:
    """Return the heading of a schema."""
    return schema.rstrip("_")


def _title(tag: str) -> str:
    return tag[0].upper() + tag[1:]
