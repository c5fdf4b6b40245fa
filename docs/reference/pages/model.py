"""Pages about the model: policy parameters and errors."""

from __future__ import annotations

import inspect

from controller.commands.exit_codes import exit_code
from controller.domain import errors, policy
from controller.domain.errors import CleaveError
from docs.reference.pages.markdown import code, page, table

PARAMETERS = {
    "enabled": "False stops every automatic action on the topic. Requests by people are still performed.",
    "max_segments": "Automatic splits stop at this number of segments. A topic may be created with more.",
    "min_segments": "Automatic merges stop at this number of segments.",
    "max_dag_depth": "Maximum number of merges in a segment's ancestry, pruned segments included. A segment that has reached it is not merged again.",
    "split_cooldown_seconds": "Time between two automatic splits of a topic.",
    "rebucket_cooldown_seconds": "Time between two automatic rebuckets of a topic.",
    "bucket_idle_seconds": "Unneeded entry buckets are removed when no consumer has joined or left for this time.",
    "merge_cooldown_seconds": "Time between two automatic merges of a topic.",
    "merge_window_seconds": "Both neighbours must have been cold for this long.",
    "split_vs_rebucket_min_msg_rate_in": "If there are more consumers than segments, the busiest segment is split from this rate on, "
    "and gets more entry buckets below it (PIP-486).",
    "entry_bucket_budget": "Entry buckets that a new topic distributes over its segments. Cluster only.",
    "entry_bucket_max_per_segment": "Maximum number of entry buckets of a segment. Cluster only.",
    "split_msg_rate_in": "Messages published a second above which a segment is hot.",
    "split_byte_rate_in": "Bytes published a second above which a segment is hot.",
    "split_msg_rate_out": "Messages delivered a second above which a segment is hot.",
    "split_byte_rate_out": "Bytes delivered a second above which a segment is hot.",
    "merge_msg_rate_in": "A segment is cold below all four merge rates. This one: messages published a second.",
    "merge_byte_rate_in": "Bytes published a second.",
    "merge_msg_rate_out": "Messages delivered a second.",
    "merge_byte_rate_out": "Bytes delivered a second.",
    "load_stale_after_seconds": "A load record whose source has been silent for this time is neither hot nor cold.",
    "load_change_threshold": "Relative change of a rate that rewrites a segment's load record, if the rate also moved by more "
    "than 1 % of its merge threshold. A rate that crosses a threshold rewrites the record in any case.",
    "target_use": "`adaptive`: load that a segment should carry, as a share of its split threshold.",
    "overload_tolerance": "`adaptive`: a segment above its split threshold by more than this share is split at once; below it, "
    "a segment is split when the overload has cost as much as a reshape.",
    "reseal_price_segment_seconds": "`adaptive`: price of sealing and replacing the whole ring, in segment-seconds (one segment, kept for a second). "
    "The main parameter: a higher value means fewer reshapes and more segments.",
    "reconnection_price_segment_seconds": "`adaptive`: addition to that price for each producer and consumer connected to a sealed segment, as far as they can be counted.",
    "load_memory_seconds": "`adaptive`: time over which the savings of a reshape are computed; 45 ticks, each of at least a "
    "second.",
    "reconnections_per_minute": "`adaptive`: maximum number of the topic's clients that are made to reconnect in a minute.",
    "cluster_reconnections_per_minute": "`adaptive`: maximum number of clients of all topics that are made to reconnect in a minute. Cluster only.",
    "approval_merges": "Actions that leave fewer segments wait until a person approves them; `inspect.approvals` lists them.",
    "approval_min_segments": "Actions that seal or create at least this number of segments wait for approval too; 0: none because of its size.",
    "approval_wait_seconds": "Time for which such an action waits for an answer.",
    "approval_default": "Answer that applies after this time.",
    "approval_hold_seconds": "Time for which a rejected action is not proposed again.",
    "profile": "Decision rules: `adaptive` plans the whole ring by the cost of waiting, `pip483` decides as "
    "Pulsar 5 does. New installations start with `adaptive`.",
    "subscription_consumers": "Consumers of a new stream subscription whose request names none: `cleave`, or `stock` for "
    "[standard Pulsar consumers](../how-to/consume-with-stock-clients.md). Existing subscriptions do not change.",
    "strict_pulsar": "True decides and keeps load records by Pulsar 5's rules, known defects included: for comparison and "
    "migration. What remains different: [set policies](../how-to/set-policies.md#as-pulsar-5-would).",
}
"""Description of each policy parameter; its declaration has no room for one."""


def policy_page() -> str:
    """Return the page of every policy parameter, with default and bounds."""
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
        "This page is for operators who look up a policy parameter. [Set policies](../how-to/set-policies.md) explains how to set them. "
        "A policy is stored in PostgreSQL at three levels and resolved parameter by parameter: the topic's value, else the namespace's, "
        "else the cluster's, else the default. A change takes effect with the next evaluation, without a restart. "
        "A level is checked together with the levels above it.",
        table(("parameter", "default", "bounds", "meaning"), rows),
        "Rates are per segment and second. The defaults are those of PIP-483 and PIP-486 where Pulsar has the parameter.",
    )


def errors_page() -> str:
    """Return the page of errors: the tree as drawn in the module, and the exit code and meaning of each error."""
    drawn = (errors.__doc__ or "").split("The tree::")[1].split("\n\nErrors carry")[0]
    rows = [
        (code(name), exit_code(kind), " ".join((inspect.getdoc(kind) or "").split()))
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, CleaveError)
    ]
    return page(
        "Errors",
        "This page is for developers and operators who look up an error of the client, a command or the HTTP API. All errors form one tree, in "
        "`controller/domain/errors.py`. A message names the object, the value and the next step.",
        f"```text\n{inspect.cleandoc(drawn)}\n```",
        table(("error", "exit code", "meaning"), rows),
    )
