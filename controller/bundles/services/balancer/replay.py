"""Decides a stored cycle again from its own text, and compares the answers byte by byte."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from controller.bundles.domain.cycle import CODE_VERSION, run_cycle
from controller.bundles.domain.cycle_text import cycle_from_json, cycle_to_json, outcome_to_json
from controller.bundles.store.cycles import StoredCycle
from controller.domain.errors import NotFound


@dataclass(frozen=True, slots=True)
class Replay:
    """Whether the same inputs gave the same text, and where the first difference is (None: there is none).

    If the code version differs from the stored one, a difference is expected and no error.
    """

    cycle_id: int
    is_same: bool
    stored_version: str
    version: str
    difference: str | None


def replay(cycle: StoredCycle) -> Replay:
    """Decide it again. Raises NotFound where the texts are forgotten, and InvalidInput for a text that cannot be read."""
    if cycle.inputs is None or cycle.outcome is None:
        raise NotFound(
            f"what cycle {cycle.cycle_id} was decided on is no longer kept; replay a newer one, or keep more days "
            "(CLEAVE_BUNDLE_INPUTS_KEEP_DAYS)"
        )
    inputs = cycle_from_json(cycle.inputs)
    difference = difference_of("inputs", cycle.inputs, cycle_to_json(inputs)) or difference_of(
        "outcome", cycle.outcome, outcome_to_json(run_cycle(inputs))
    )
    return Replay(cycle.cycle_id, difference is None, cycle.code_version, CODE_VERSION, difference)


def difference_of(name: str, stored: str, replayed: str) -> str | None:
    """Where two texts differ first, as a path with both values; None if their bytes are equal."""
    if stored.encode() == replayed.encode():
        return None
    found = _first(name, json.loads(stored), json.loads(replayed))
    if found is not None:
        return found
    at = next(
        (place for place, pair in enumerate(zip(stored, replayed, strict=False)) if pair[0] != pair[1]),
        min(len(stored), len(replayed)),
    )
    parts = f"{stored[at : at + 40]!r}, {replayed[at : at + 40]!r}"
    return f"{name}: the same values are written differently from character {at}: {parts}"


def _first(path: str, stored: Any, replayed: Any) -> str | None:
    if isinstance(stored, dict) and isinstance(replayed, dict):
        for key in sorted(stored.keys() | replayed.keys()):
            if (key in stored) != (key in replayed):
                return f"{path}.{key}: only {'stored' if key in stored else 'replayed'}"
            if found := _first(f"{path}.{key}", stored[key], replayed[key]):
                return found
        return None
    if isinstance(stored, list) and isinstance(replayed, list):
        for place, (one, other) in enumerate(zip(stored, replayed, strict=False)):
            if found := _first(f"{path}[{place}]", one, other):
                return found
        if len(stored) != len(replayed):
            return f"{path}: {len(stored)} stored, {len(replayed)} replayed"
        return None
    if type(stored) is type(replayed) and stored == replayed:
        return None
    return f"{path}: {json.dumps(stored)[:200]} stored, {json.dumps(replayed)[:200]} replayed"
