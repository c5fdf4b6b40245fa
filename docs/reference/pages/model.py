"""Pages about the model: policy parameters and errors."""

from __future__ import annotations

import inspect

from controller.commands.cli import exit_code
from controller.domain import errors, policy
from controller.domain.errors import CleaveError
from docs.reference.pages.markdown import code, page, table

PARAMETERS = {
    "enabled": "False stops every automatic act on the topic; what a person asks for is done all the same.",
    "max_segments": "Automatic splits stop here. A topic may be created with more.",
    "min_segments": "Automatic merges stop here.",
    "max_dag_depth": "Merges in a segment's ancestry, pruned segments included; a side that has as many is not merged again.",
    "split_cooldown_seconds": "Time between two automatic splits of a topic.",
    "rebucket_cooldown_seconds": "Time between two automatic rebuckets of a topic.",
    "bucket_idle_seconds": "Entry buckets that nobody needs are given up when no consumer has come or gone for so long.",
    "merge_cooldown_seconds": "Time between two automatic merges of a topic.",
    "merge_window_seconds": "Both neighbours must have been cold for this long.",
    "split_vs_rebucket_min_msg_rate_in": "More consumers than segments: split the busiest segment from this rate on, "
    "below it give it more entry buckets (PIP-486).",
    "entry_bucket_budget": "Entry buckets a new topic deals out over its segments. Cluster only.",
    "entry_bucket_max_per_segment": "Most entry buckets of one segment. Cluster only.",
    "split_msg_rate_in": "Messages published a second above which a segment is hot.",
    "split_byte_rate_in": "Bytes published a second above which a segment is hot.",
    "split_msg_rate_out": "Messages delivered a second above which a segment is hot.",
    "split_byte_rate_out": "Bytes delivered a second above which a segment is hot.",
    "merge_msg_rate_in": "Cold: below all four merge rates. This one is messages published a second.",
    "merge_byte_rate_in": "Bytes published a second.",
    "merge_msg_rate_out": "Messages delivered a second.",
    "merge_byte_rate_out": "Bytes delivered a second.",
    "load_stale_after_seconds": "A reading whose source was not heard of for so long is neither hot nor cold.",
    "load_change_threshold": "Relative change of a rate that rewrites a segment's load record, if the rate also moved by more "
    "than 1 % of its merge threshold. A rate that crosses a threshold rewrites the record in any case.",
    "target_use": "`adaptive`: what a segment should carry, as a share of its split threshold.",
    "overload_tolerance": "`adaptive`: a segment above its split threshold by more than this share is relieved at once, "
    "below it when the overload has cost as much as a reshape.",
    "reseal_price_segment_seconds": "`adaptive`: what sealing the whole ring and starting anew counts for, in segments kept "
    "for a second. The one dial: higher means fewer reshapes and more segments.",
    "reconnection_price_segment_seconds": "`adaptive`: added to that price for each producer and consumer connected to a sealed segment, as far as they can be counted.",
    "load_memory_seconds": "`adaptive`: how far back it looks for what a reshape would have saved; 45 ticks, of a second at "
    "least.",
    "reconnections_per_minute": "`adaptive`: clients of the topic that may be made to reconnect.",
    "cluster_reconnections_per_minute": "`adaptive`: the same for all topics together. Cluster only.",
    "approval_merges": "Acts that leave fewer segments wait until a person approves them; what waits is in `inspect.approvals`.",
    "approval_min_segments": "So does an act that seals or makes at least so many segments; 0: none for its size.",
    "approval_wait_seconds": "How long such an act waits for an answer.",
    "approval_default": "What holds when nobody has answered by then.",
    "approval_hold_seconds": "An act that was refused is not proposed again for so long.",
    "profile": "The rule set of the evaluator: `adaptive` plans the whole ring by what waiting has cost, `pip483` decides as "
    "Pulsar 5. New installations start with `adaptive`.",
    "strict_pulsar": "True decides and keeps load records by Pulsar 5's rules, known defects included: for comparison and "
    "migration. What remains different: [set policies](../how-to/set-policies.md#as-pulsar-5-would).",
}
"""A sentence for each parameter: its declaration has no room for one."""


def policy_page() -> str:
    """Every parameter with default and bounds."""
    bounds: dict[str, list[str]] = {}
    for parameter, sign, bound in policy._RULES:
        bounds.setdefault(parameter, []).append(f"{sign} {bound}")
    bounds |= {parameter: [f"one of {', '.join(choices)}"] for parameter, choices in policy.CHOICES.items()}
    defaults = policy.AutoScalePolicy().to_document()
    rows = [
        (
            code(parameter),
            code(str(defaults[parameter]).lower() if kind is bool else defaults[parameter]),
            " and ".join(bounds.get(parameter, [])),
            PARAMETERS[parameter],
        )
        for parameter, kind in policy.PARAMETERS.items()
    ]
    return page(
        "Policy",
        "Stored in PostgreSQL at three levels and resolved parameter by parameter: the topic's value, else the namespace's, "
        "else the cluster's, else the default. A change holds from the next evaluation on, without a restart. "
        "A level is checked together with those above it. How to set them: "
        "[set policies](../how-to/set-policies.md).",
        table(("parameter", "default", "bounds", "what it does"), rows),
        "Rates are per segment and second. The defaults are those of PIP-483 and PIP-486 where Pulsar has the parameter.",
    )


def errors_page() -> str:
    """The tree as it is drawn, and what each error is at the edges."""
    drawn = (errors.__doc__ or "").split("The tree::")[1].split("\n\nErrors carry")[0]
    rows = [
        (code(name), exit_code(kind), " ".join((inspect.getdoc(kind) or "").split()))
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, CleaveError)
    ]
    return page(
        "Errors",
        "One tree for all floors, in `controller/domain/errors.py`. A message names the thing, the value and the "
        "next move.",
        f"```text\n{inspect.cleandoc(drawn)}\n```",
        table(("error", "exit code", "meaning"), rows),
    )
