"""The page of reasons: every enum of "why not", read from its source with the comments in it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from enum import StrEnum

from controller.bundles.domain.balancing.moves import MoveRefusalReason
from controller.bundles.domain.merging import MergeRefusalReason
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusalReason
from controller.bundles.domain.splitting.triggers import SplitRefusalReason
from controller.domain.decision import RefusalReason
from docs.reference.pages import advice
from docs.reference.pages.markdown import code, page, table

BUNDLES: tuple[tuple[type[StrEnum], str, str, Mapping[str, str]], ...] = (
    (
        MoveRefusalReason,
        "Bundles that stay where they are",
        "`rule` in `inspect.bundles_why_not` and in `cleave bundles propose` is the shedder's name.",
        advice.MOVES,
    ),
    (SplitRefusalReason, "Hot bundles that are not split", "`rule` is `split`.", advice.SPLITS),
    (
        CutRefusalReason,
        "Bundles that cannot be cut, and what a cut leaves undone",
        "`cleave bundles split` and the `rule` `split` give these as a sentence with the figures.",
        advice.CUTS,
    ),
    (MergeRefusalReason, "Cold bundles that stay apart", "From `cleave bundles merges`.", advice.MERGES),
)
"""Each enum of bundle balancing, its heading, where its reasons are read, and what to do about each."""


def reasons() -> str:
    """Every reason of a refusal: topics first, then bundles."""
    bundles = [
        part
        for kind, title, where, what in BUNDLES
        for part in (f"## {title}", where, *_of(kind, what, heading="###"))
    ]
    return page(
        "Reasons",
        "Why something was not done: `cleave decide`, `cleave decisions refusals` and `inspect.why_not` give one for "
        "everything that was left alone; for bundles `cleave bundles propose` and `inspect.bundles_why_not` do. Most "
        "need nothing: they say that the rules do their work. How to set a parameter: [set policies](../how-to/set-policies.md).",
        *_of(RefusalReason, advice.TOPICS, heading="##"),
        *bundles,
    )


def _of(kind: type[StrEnum], what: Mapping[str, str], *, heading: str) -> list[str]:
    """A heading and a table for each group of an enum's members, as its comments group them."""
    parts: list[str] = []
    rows: list[tuple[str, str, str]] = []
    for line in [*inspect.getsource(kind).splitlines(), "    # end."]:
        if group := re.match(r"    # ([^:]+)(?:: (.+))?\.$", line):
            parts += [table(("reason", "`value`; `needed`", "what to do"), rows)] if rows else []
            rows = []
            said = [f"{group[2][0].upper()}{group[2][1:]}."] if group[2] else []
            parts += [f"{heading} {group[1]}", *said]
        elif member := re.match(r'    [A-Z_]+ = "([\w-]+)"(?:  # (.+))?$', line):
            rows.append((code(member[1]), member[2] or "", what.get(member[1], "")))
    return parts[:-1]
