"""Copies Arrow tables to and from PostgreSQL by COPY.

`fetch` reads a control table, and `append` adds the rows of a run to a staging table. Both convert a column that ends in `_ms`
(milliseconds since the Unix epoch) to and from a timestamp column whose name lacks that ending. `copy_out` and `copy_in` do not
convert. Lists of integers are arrays in PostgreSQL in all cases. A transfer of more than 64 MiB uses a temporary file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from controller.postgres.connection import WatchedConnection

_MEMORY_BYTES = 64 * 1024 * 1024
_NO_PARTS = pa.scalar([], pa.list_(pa.string()))


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of merging a run. `written`: rows that were inserted or changed. `outrun`: rows skipped because their records were written
    since the run read them, or because their segments were pruned. `applied`: False if the run was not merged; then both are 0.
    """

    written: int
    outrun: int
    applied: bool


def fetch(tx: Connection, relation: str, schema: pa.Schema) -> pa.Table:
    """Return all rows of a table or view, in no order, with the columns of `schema`. A column `x_ms` (milliseconds since the Unix epoch)
    is computed from the timestamp column `x`.
    """
    columns = ", ".join(
        f"floor(extract(epoch FROM {name.removesuffix('_ms')}) * 1000)::bigint AS {name}"
        if name.endswith("_ms")
        else name
        for name in schema.names
    )
    return copy_out(tx, f"SELECT {columns} FROM {relation}", schema)  # noqa: S608  # our own names


def append(tx: Connection, relation: str, run_id: str, rows: pa.Table, schema: pa.Schema) -> None:
    """Append the rows to a staging table, in the caller's transaction. `run_id` goes into the column `run_id` of each
    row. The columns of `schema` go into the columns of the same names; but a column `x_ms` (milliseconds since the
    Unix epoch) goes into the timestamp column `x`. Other columns of `rows` are ignored.

    Raises KeyError if `rows` lacks a column of `schema`, ArrowInvalid if a value does not fit the type in `schema`,
    and DBAPIError.
    """
    rows = rows.select(schema.names).cast(schema)
    for position, name in enumerate(schema.names):
        if name.endswith("_ms"):
            instants = rows.column(position).cast(pa.timestamp("ms", tz="UTC"))
            rows = rows.set_column(position, name.removesuffix("_ms"), instants)
    keyed = rows.add_column(0, "run_id", pa.array([run_id] * rows.num_rows, pa.string()))
    copy_in(tx, f"{relation} ({', '.join(keyed.column_names)})", keyed.to_batches())


def copy_out(tx: Connection, query: str, schema: pa.Schema) -> pa.Table:
    """Return the result of a query in the types of `schema`. The query must return the columns of `schema` in the
    order of `schema`, which is not checked. The text of the query must not contain input of a user, because the query
    has no parameters. Raises DBAPIError.
    """
    with SpooledTemporaryFile(_MEMORY_BYTES) as file:
        _copy(tx, f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER)", file)
        file.seek(0)
        types = {f.name: pa.string() if pa.types.is_list(f.type) else f.type for f in schema}
        # COPY writes NULL as an empty field, an empty text as a pair of quotes, and a boolean as one letter.
        options = csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        )
        rows = csv.read_csv(file, convert_options=options)
    for position, field in enumerate(schema):
        if pa.types.is_list(field.type):
            inner = pc.utf8_trim(rows.column(position), "{}")
            parts = pc.if_else(pc.equal(inner, ""), _NO_PARTS, pc.split_pattern(inner, ","))
            rows = rows.set_column(position, field.name, parts.cast(field.type))
    return rows


def copy_in(tx: Connection, target: str, batches: Iterable[pa.RecordBatch]) -> None:
    """Append the batches to `target` in the caller's transaction. `target` is the name of a relation, followed by a
    list of columns in parentheses unless the batches have all columns of the relation in order. Columns are matched
    by position, not by name. Raises DBAPIError.
    """
    with SpooledTemporaryFile(_MEMORY_BYTES) as file:
        for batch in batches:
            if batch.num_rows:  # pyarrow 26 writes the bytes of an unused buffer for an empty batch
                csv.write_csv(_with_arrays(batch), file, csv.WriteOptions(include_header=False))
        file.seek(0)
        _copy(tx, f"COPY {target} FROM STDIN (FORMAT csv)", file)


def _with_arrays(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with each column of lists converted to text of PostgreSQL arrays, such as `{1,2}`. A null, and a list with a null
    element, become null.
    """
    for position, field in enumerate(batch.schema):
        if pa.types.is_list(field.type):
            joined = pc.binary_join(batch.column(position).cast(pa.list_(pa.string())), ",")
            batch = batch.set_column(position, field.name, pc.binary_join_element_wise("{", joined, "}", ""))
    return batch


def _copy(tx: Connection, statement: str, file: IO[Any]) -> None:
    """Execute COPY on a cursor of the driver.

    Raises DBAPIError for errors of the driver, and invalidates a connection that cannot be used afterwards, as any other statement
    does.
    """
    driver = cast("psycopg2.extensions.connection", tx.connection.driver_connection)
    try:
        with driver.cursor() as cursor:
            cursor.copy_expert(statement, file)
    except psycopg2.Error as error:
        if isinstance(driver, WatchedConnection) and driver.is_spoilt_by(error):
            tx.invalidate(error)
        raise DBAPIError(statement, None, error) from error
