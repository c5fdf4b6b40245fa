"""How a refusal is told in a table, whether it was decided now or stands in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.entrypoints.output import cell


def figures(refusal: Mapping[str, Any]) -> str:
    """What a refusal was measured by, for a cell of a table: the metric, its value, and the value it needs."""
    value, needed = (refusal.get(f"{name}_at") or refusal.get(name) for name in ("value", "needed"))
    said = [str(refusal["metric"])] if refusal.get("metric") else []
    said += [cell(value)] if value is not None else []
    said += [f"needs {cell(needed)}"] if needed is not None else []
    return ", ".join([" ".join(said[:2]), *said[2:]]) if said else ""
