"""Replays a stored cycle from its text, and compares the outcomes byte by byte."""

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
    """Result of a replay: `is_same` is True if the inputs gave the same text; `difference` is the first difference, or None.

    If the code version differs from the stored version, a difference is expected and not an error.
    """

    cycle_id: int
    is_same: bool
    stored_version: str
    version: str
    difference: str | None


def replay(cycle: StoredCycle) -> Replay:
    """Decide the cycle again from its stored inputs. Compare the inputs, written again, and then the outcome with the stored texts, and
    return the result with the first difference, None if both are equal byte for byte. If the inputs differ, nothing is decided. Writes
    nothing.

    Raises NotFound if the texts were deleted, InvalidInput for inputs that cannot be read, and InvalidPolicy for settings that this version
    does not accept.
    """
    if cycle.inputs is None or cycle.outcome is None:
        raise NotFound(
            f"the inputs of cycle {cycle.cycle_id} have been deleted; replay a newer cycle, or keep more days "
            "(CLEAVE_BUNDLE_INPUTS_KEEP_DAYS)"
        )
    inputs = cycle_from_json(cycle.inputs)
    difference = difference_of("inputs", cycle.inputs, cycle_to_json(inputs)) or difference_of(
        "outcome", cycle.outcome, outcome_to_json(run_cycle(inputs))
    )
    return Replay(cycle.cycle_id, difference is None, cycle.code_version, CODE_VERSION, difference)


def difference_of(name: str, stored: str, replayed: str) -> str | None:
    """Return the first difference of two JSON texts as a sentence: the path and both values, or, if the values are
    equal and only the spelling differs, the position of the first differing character. None if the texts are equal
    byte for byte. The path begins with `name`. Raises ValueError if the texts differ and one of them is not JSON.
    """
    if stored.encode() == replayed.encode():
        return None
    difference = _first(name, json.loads(stored), json.loads(replayed))
    if difference is not None:
        return difference
    at = next(
        (index for index, pair in enumerate(zip(stored, replayed, strict=False)) if pair[0] != pair[1]),
        min(len(stored), len(replayed)),
    )
    parts = f"{stored[at : at + 40]!r}, {replayed[at : at + 40]!r}"
    return f"{name}: the same values are written differently from character {at}: {parts}"


def _first(path: str, stored: Any, replayed: Any) -> str | None:
    """Return the first difference of two JSON values, as a sentence that begins with the path; keys in sorted order. None if the values are
    equal. Values of different types, as 1 and 1.0, differ.
    """
    if isinstance(stored, dict) and isinstance(replayed, dict):
        for key in sorted(stored.keys() | replayed.keys()):
            if (key in stored) != (key in replayed):
                return f"{path}.{key}: only {'stored' if key in stored else 'replayed'}"
            if difference := _first(f"{path}.{key}", stored[key], replayed[key]):
                return difference
        return None
    if isinstance(stored, list) and isinstance(replayed, list):
        for index, (stored_item, replayed_item) in enumerate(zip(stored, replayed, strict=False)):
            if difference := _first(f"{path}[{index}]", stored_item, replayed_item):
                return difference
        if len(stored) != len(replayed):
            return f"{path}: {len(stored)} stored, {len(replayed)} replayed"
        return None
    if type(stored) is type(replayed) and stored == replayed:
        return None
    return f"{path}: {json.dumps(stored)[:200]} stored, {json.dumps(replayed)[:200]} replayed"
