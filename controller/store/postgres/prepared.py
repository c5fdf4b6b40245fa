"""Statements that are planned once a connection: for the few whose planning costs more than their execution.

A statement of many parts takes PostgreSQL milliseconds to plan and a fraction of one to execute. Such a one is written
like any other, with `:name` parameters, and given the types of those; the first use on a connection prepares it, with
one plan for all values (the store's sessions ask for that: `plan_cache_mode`). That plan is made for tables that will
be large, however small they are now: it finds rows by index, and joins by lookups. When statistics or tables change,
PostgreSQL plans the statement anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlalchemy import Connection, CursorResult

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_UNWANTED = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")
"""Ways to read a whole table. For an empty table the planner takes this for the cheapest way, and keeps the plan until
the table has been analyzed.
"""


class Prepared:
    """One statement; `types` by parameter, in PostgreSQL's words. Give each name to one statement only."""

    def __init__(self, name: str, statement: str, types: Mapping[str, str]) -> None:
        self.parameters = tuple(types)
        used = set(_PARAMETER.findall(statement))
        if used != set(types):
            raise ValueError(f"statement {name} uses {sorted(used)}, types are given for {sorted(types)}")
        numbered = _PARAMETER.sub(lambda found: f"${self.parameters.index(found[1]) + 1}", statement)
        self.name = f"cleave_{name}"
        self.statement = statement
        self._prepare = "; ".join(
            [
                f"PREPARE {self.name} ({', '.join(types.values())}) AS {numbered}",
                *(f"SET {one} = off" for one in _UNWANTED),
                f"EXPLAIN EXECUTE {self.name} ({', '.join('NULL' for _ in types)})",  # which plans it
                *(f"RESET {one}" for one in _UNWANTED),
            ]
        )
        self._execute = f"EXECUTE {self.name} ({', '.join(f'%({one})s' for one in types)})"

    def execute(self, tx: Connection, parameters: Mapping[str, object]) -> CursorResult[tuple[object, ...]]:
        """The statement's result. Raises KeyError for a parameter that is not given."""
        known: set[str] = tx.info.setdefault("prepared", set())
        if self.name not in known:
            tx.exec_driver_sql(self._prepare.replace("%", "%%"))
            known.add(self.name)
        return tx.exec_driver_sql(self._execute, {one: parameters[one] for one in self.parameters})
