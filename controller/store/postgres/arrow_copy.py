"""Arrow tables in and out of PostgreSQL by COPY: what the loader reads as a baseline and appends to its inbox.

Columns that end in `_ms` are milliseconds since the Unix epoch here and instants there; lists of integers are
arrays there. No memory beyond one table's worth: long transfers go through a temporary file.
"""

from __future__ import annotations

from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

_MEMORY_BYTES = 64 * 1024 * 1024  # beyond it a transfer goes through a temporary file


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Rows written, rows left because their record moved meanwhile, and whether the run counted at all."""

    written: int
    outrun: int
    applied: bool


def fetch(tx: Connection, relation: str, schema: pa.Schema) -> pa.Table:
    """The rows of a relation of ours in the columns of `schema`."""
    columns = ", ".join(
        f"floor(extract(epoch FROM {name.removesuffix('_ms')}) * 1000)::bigint AS {name}"
        if name.endswith("_ms")
        else name
        for name in schema.names
    )
    statement = f"COPY (SELECT {columns} FROM {relation}) TO STDOUT (FORMAT csv, HEADER)"  # noqa: S608  # our names
    with SpooledTemporaryFile(_MEMORY_BYTES) as file:
        _copy(tx, statement, file)
        file.seek(0)
        types = {f.name: pa.string() if pa.types.is_list(f.type) else f.type for f in schema}
        # COPY writes null as nothing at all, an empty text in quotes
        options = csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        )
        rows = csv.read_csv(file, convert_options=options)
    for position, field in enumerate(schema):
        if pa.types.is_list(field.type):
            inner = pc.utf8_trim(rows.column(position), "{}")
            rows = rows.set_column(position, field.name, pc.split_pattern(inner, ",").cast(field.type))
    return rows


def append(tx: Connection, relation: str, run_id: str, rows: pa.Table) -> None:
    """COPY the rows with the run's id as first column."""
    for position, field in enumerate(rows.schema):
        name, column = field.name, rows.column(position)
        if name.endswith("_ms"):
            instants = column.cast(pa.timestamp("ms", tz="UTC"))
            rows = rows.set_column(position, name.removesuffix("_ms"), instants)
        elif pa.types.is_list(field.type):
            joined = pc.binary_join(column.cast(pa.list_(pa.string())), ",")
            rows = rows.set_column(position, name, pc.binary_join_element_wise("{", joined, "}", ""))
    keyed = rows.add_column(0, "run_id", pa.array([run_id] * rows.num_rows, pa.string()))
    with SpooledTemporaryFile(_MEMORY_BYTES) as file:
        # An empty chunk makes pyarrow 26 write the bytes of an unused buffer.
        csv.write_csv(keyed.combine_chunks(), file, csv.WriteOptions(include_header=False))
        file.seek(0)
        _copy(tx, f"COPY {relation} ({', '.join(keyed.column_names)}) FROM STDIN (FORMAT csv)", file)


def _copy(tx: Connection, statement: str, file: IO[Any]) -> None:
    """Runs COPY on the driver's own cursor; its errors take the way of all others."""
    driver = cast("psycopg2.extensions.connection", tx.connection.driver_connection)
    try:
        with driver.cursor() as cursor:
            cursor.copy_expert(statement, file)
    except psycopg2.Error as error:
        raise DBAPIError(statement, None, error) from error
