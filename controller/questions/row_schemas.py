"""Returns the columns of views as JSON schemas: names, types and comments from the catalog of the database."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection

from controller.store.postgres import inspection

Schema = dict[str, Any]
_COLUMNS = """
    SELECT 'inspect.' || c.relname AS view, a.attname AS name, format_type(a.atttypid, NULL) AS type,
           col_description(c.oid, a.attnum) AS comment
      FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
     WHERE c.relnamespace = 'inspect'::regnamespace AND c.relkind = 'v' ORDER BY c.relname, a.attnum
"""
_TYPES: Mapping[str, Schema] = MappingProxyType(
    {
        "bigint": {"type": "integer"},
        "integer": {"type": "integer"},
        "smallint": {"type": "integer"},
        "numeric": {"type": "number"},
        "double precision": {"type": "number"},
        "boolean": {"type": "boolean"},
        "timestamp with time zone": {"type": "string", "format": "date-time"},
        "text": {"type": "string"},
        "name": {"type": "string"},
    }
)


def row_schemas(tx: Connection) -> dict[str, Schema]:
    """Return the JSON schema of a row of each view of schema `inspect`, by the view's full name such as `inspect.topics`.
    A column's comment, if any, is its description. Every column may be null; a column has no type if its PostgreSQL type
    is neither in `_TYPES` nor an array.
    """
    schemas: dict[str, Schema] = {}
    for column in inspection.rows(tx, _COLUMNS):
        row = schemas.setdefault(column["view"], {"type": "object", "properties": {}})
        description = {"description": column["comment"]} if column["comment"] else {}
        row["properties"][column["name"]] = _schema_of(column["type"]) | description
    return schemas


def _schema_of(type_name: str) -> Schema:
    """Return the JSON schema of a PostgreSQL type, which allows null. An array becomes a list of its item type; the schema
    of any other type that is not in `_TYPES` is empty.
    """
    if type_name.endswith("[]"):
        return {"type": ["array", "null"], "items": _schema_of(type_name.removesuffix("[]"))}
    schema = _TYPES.get(type_name)
    return {} if schema is None else {**schema, "type": [schema["type"], "null"]}
