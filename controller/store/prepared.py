"""Statements that are planned once a connection: for the few whose planning costs more than their execution.

A statement of many parts takes PostgreSQL milliseconds to plan and a fraction of one to execute. Such a one is
written like any other, with ``:name`` parameters, and given the types of those; the first use on a connection
prepares it, with one plan for all values. That plan is made anew when statistics or tables change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlalchemy import Connection, CursorResult

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_ONE_PLAN = "SET plan_cache_mode = force_generic_plan;"
"""For prepared statements only: what is planned each time is planned for its values, as ever."""


class Prepared:
    """One statement; ``types`` by parameter, in PostgreSQL's words. Give each name to one statement only."""

    def __init__(self, name: str, statement: str, types: Mapping[str, str]) -> None:
        order = tuple(types)
        used = set(_PARAMETER.findall(statement))
        if used != set(order):
            raise ValueError(f"statement {name} uses {sorted(used)}, types are given for {sorted(order)}")
        numbered = _PARAMETER.sub(lambda found: f"${order.index(found[1]) + 1}", statement)
        self.name = f"cleave_{name}"
        self.statement = statement
        self._order = order
        self._prepare = f"{_ONE_PLAN} PREPARE {self.name} ({', '.join(types.values())}) AS {numbered}"
        self._execute = f"EXECUTE {self.name} ({', '.join(f'%({one})s' for one in order)})"

    def execute(self, tx: Connection, parameters: Mapping[str, object]) -> CursorResult[tuple[object, ...]]:
        """The statement's result. Raises KeyError for a parameter that is not given."""
        known: set[str] = tx.info.setdefault("prepared", set())
        if self.name not in known:
            tx.exec_driver_sql(self._prepare.replace("%", "%%"))
            known.add(self.name)
        return tx.exec_driver_sql(self._execute, {one: parameters[one] for one in self._order})
