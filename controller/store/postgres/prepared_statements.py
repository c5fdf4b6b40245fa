"""Prepares statements once per connection, for the few statements whose planning costs more than their execution.

PostgreSQL plans a statement of many parts in milliseconds and executes it in a fraction of a millisecond. Such a statement has
`:name` parameters with declared types. Its first use on a connection prepares it, with one plan for all values (the sessions of
the store set `plan_cache_mode`). The plan is made for large tables, even if the tables are small at that time: it finds rows by
index and joins by nested loops. PostgreSQL plans the statement again if statistics or tables change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, CursorResult

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_UNWANTED = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")
"""Settings of plan nodes that read a whole table. For an empty table such a plan is the cheapest, and PostgreSQL keeps the plan
until the table has been analyzed.
"""

_FAILED = "prepare_failed"
"""Key in the `info` of a connection. The value is True while a statement is being prepared, and after that failed."""


class Prepared:
    """A statement that each connection prepares at its first use."""

    def __init__(self, name: str, statement: str, types: Mapping[str, str]) -> None:
        """Declare the statement, whose parameters have the form `:name`. `types` holds the PostgreSQL type of each
        parameter. `name` must be unique among the prepared statements of the program. Raises ValueError unless `types`
        has exactly the parameters of the statement.
        """
        self.parameters = tuple(types)
        used = set(_PARAMETER.findall(statement))
        if used != set(types):
            raise ValueError(
                f"statement {name} uses parameters {sorted(used)}, but types are given for {sorted(types)}"
            )
        numbered = _PARAMETER.sub(lambda match: f"${self.parameters.index(match[1]) + 1}", statement)
        self.name = f"cleave_{name}"
        self.statement = statement
        self._prepare = "; ".join(
            [
                f"PREPARE {self.name} ({', '.join(types.values())}) AS {numbered}",
                *(f"SET {setting} = off" for setting in _UNWANTED),
                f"EXPLAIN EXECUTE {self.name} ({', '.join('NULL' for _ in types)})",  # this makes the plan
                *(f"RESET {setting}" for setting in _UNWANTED),
            ]
        )
        self._execute = f"EXECUTE {self.name} ({', '.join(f'%({parameter})s' for parameter in types)})"

    def execute(self, tx: Connection, parameters: Mapping[str, object]) -> CursorResult[*tuple[Any, ...]]:
        """Execute the statement with the values in `parameters`, by name, and return its result. Values without a parameter are ignored.

        The first call on a connection prepares the statement. Raises KeyError for a parameter without a value.
        """
        if self.name not in _prepared_on(tx):
            self._prepare_on(tx)
        return tx.exec_driver_sql(self._execute, {name: parameters[name] for name in self.parameters})

    def _prepare_on(self, tx: Connection) -> None:
        """Prepare the statement on the connection. If an earlier attempt of any statement failed there, first drop all
        prepared statements.

        PREPARE is not undone with its transaction, so a failed attempt may have left its statement behind.
        """
        if tx.info.get(_FAILED):
            _prepared_on(tx).clear()
            tx.exec_driver_sql("DEALLOCATE ALL")
        tx.info[_FAILED] = True
        tx.exec_driver_sql(self._prepare.replace("%", "%%"))
        tx.info[_FAILED] = False
        _prepared_on(tx).add(self.name)


def _prepared_on(tx: Connection) -> set[str]:
    """Return the names of the statements that are prepared on the connection."""
    names: set[str] = tx.info.setdefault("prepared", set())
    return names
