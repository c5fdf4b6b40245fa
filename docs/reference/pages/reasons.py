"""The page of reasons: every enum of refusal reasons, read from its source with the comments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from enum import StrEnum

from controller.bundles.domain.balancing.moves import MoveRefusalReason
from controller.bundles.domain.merging import MergeRefusalReason
from controller.bundles.domain.splitting.algorithms.base import CutRefusalReason
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
        "Bundles that cannot be cut, and requests that a cut does not fulfil",
        "`cleave bundles split` and the `rule` `split` show these reasons as a sentence with the figures.",
        advice.CUTS,
    ),
    (
        MergeRefusalReason,
        "Cold bundles that stay apart",
        "`cleave bundles merges` shows these reasons.",
        advice.MERGES,
    ),
)
"""Each enum of bundle balancing with its heading, the place where its reasons are shown, and the advice for each reason."""


def reasons() -> str:
    """Return the page of every reason of a refusal: topics first, then bundles."""
    bundles = [
        part
        for kind, title, where, what in BUNDLES
        for part in (f"## {title}", where, *_of(kind, what, heading="###"))
    ]
    return page(
        "Reasons",
        "This page is for operators who want to know why Cleave took no action, and what to do about it. `cleave decide`, `cleave decisions refusals` and `inspect.why_not` show a reason for "
        "every segment without an action; for bundles `cleave bundles propose` and `inspect.bundles_why_not` do. The figures "
        "in `inspect.why_not` are those of `decided_at`, because the same refusal with another value is not written again. Most "
        "reasons need no reaction. [Set policies](../how-to/set-policies.md) explains how to set a parameter.",
        *_of(RefusalReason, advice.TOPICS, heading="##"),
        *bundles,
    )


def _of(kind: type[StrEnum], what: Mapping[str, str], *, heading: str) -> list[str]:
    """Return a heading and a table for each group of an enum's members, as its comments group them."""
    parts: list[str] = []
    rows: list[tuple[str, str, str]] = []
    for line in [*inspect.getsource(kind).splitlines(), "    # end."]:
        if group := re.match(r"    # ([^:]+)(?:: (.+))?\.$", line):
            parts += [table(("reason", "`value`; `needed`", "what to do"), rows)] if rows else []
            rows = []
            introduction = [f"{group[2][0].upper()}{group[2][1:]}."] if group[2] else []
            parts += [f"{heading} {group[1]}", *introduction]
        elif member := re.match(r'    [A-Z_]+ = "([\w-]+)"(?:  # (.+))?$', line):
            rows.append((code(member[1]), member[2] or "", what.get(member[1], "")))
    return parts[:-1]
