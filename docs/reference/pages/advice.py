"""Advice for each reason of a refusal, in a sentence or two. Written by hand, because the code does not contain it."""

from __future__ import annotations

from collections.abc import Mapping

_NOTHING = "Nothing."
TOPICS: Mapping[str, str] = {
    "disabled": "Nothing if it is intended. Otherwise `cleave policy effective TOPIC` shows the level at which `enabled` is false; run "
    "`cleave policy set LEVEL enabled=true`. Actions by hand are possible in any case.",
    "invalid-policy": "Each level is valid, but together they are not. Find the level of the named parameter with `cleave policy effective TOPIC`, and "
    "correct the parameter there.",
    "foreign-controller": "The broker's own auto-scaler was switched on for the topic. Switch it off there, or give the topic "
    "back with `cleave topics detach`.",
    "topic-held": "`cleave topics recover TOPIC --dry-run` shows the state of the logs. After a restart of the database a worker compares the logs "
    "within seconds. If the topic stays held, see [CleaveTopicHeld](../runbook/CleaveTopicHeld.md).",
    "at-max-segments": "Raise `max_segments`. If brokers or consumers are the bottleneck, add them first.",
    "at-min-segments": "Nothing, or lower `min_segments`.",
    "at-max-buckets": "There are more consumers than the topic can serve at the same time. Stop some, or raise `entry_bucket_max_per_segment` "
    "(of the cluster; values above 64 admit no further consumer) or `max_segments`.",
    "enough-buckets": "Nothing: each consumer already has a bucket.",
    "merge-depth": "Nothing. `max_dag_depth` limits how often a range is merged; raise it if too many small segments remain.",
    "width-one": "One hash has the whole load, and no split divides a hash. Distribute the messages over more keys, or make their "
    "consumer faster.",
    "would-idle-consumer": "Nothing while the consumers are connected: after the action the segments would serve fewer consumers. "
    "For a hot segment, raise `max_segments` or `entry_bucket_max_per_segment`.",
    "would-split-again": "Nothing: the merged segment would be hot.",
    "no-load-record": "Wait two minutes after a topic is created. If the reason remains, run `cleave doctor`: the collector or the load aggregation "
    "is not running, or does not see this topic.",
    "stale-load": "Run `cleave doctor`: the collector or the load aggregation has stopped, or a broker does not answer. Meanwhile "
    "nothing is split or merged on old figures.",
    "not-cold": _NOTHING + " To merge sooner, raise the merge threshold of the metric.",
    "split-cooldown": "Wait until `not_before`. If bursts often arrive earlier, lower `split_cooldown_seconds`.",
    "merge-cooldown": "Wait until `not_before`, or lower `merge_cooldown_seconds`.",
    "rebucket-cooldown": "Wait until `not_before`, or lower `rebucket_cooldown_seconds`.",
    "bucket-idle-window": "Wait, or lower `bucket_idle_seconds`: buckets are removed when no consumer has joined or left for that time.",
    "consumers-joining": "Nothing: consumers that join after an action for consumers are collected. The wait ends half a second after the last "
    "consumer joined, at the latest ten seconds after the action.",
    "kept-apart": "Wait until `not_before`: the split by hand requested this (`--keep`). A merge by hand is possible.",
    "cold-window": "Wait: both neighbours must stay cold for `merge_window_seconds`. Lower the parameter to merge earlier.",
    "tolerated-overload": "Nothing: a split now would cost more than the overload has cost. Lower `overload_tolerance`, or "
    "`reseal_price_segment_seconds`, to split sooner.",
    "saving-below-price": "Nothing: fewer segments would not have been sufficient for long enough. Lower "
    "`reseal_price_segment_seconds` to merge sooner.",
    "unsplittable": "The load is on one key, or on several keys with the same slot. Salt a single key, or give its messages a "
    "topic of their own. Several keys can be distributed over more consumers: give the segment more entry buckets. For a single key, buckets "
    "change nothing.",
    "reconnection-budget": "Wait until `not_before`, or raise `reconnections_per_minute` (of the cluster: "
    "`cluster_reconnections_per_minute`).",
    "awaiting-approval": "Answer under Airflow's *Required Actions*, on the pages or with `cleave approvals`; `inspect.approvals` lists what waits. Without an answer "
    "`approval_default` applies after `approval_wait_seconds`.",
    "approval-refused": "Nothing: a person rejected the action. It is proposed again after `not_before`. Lower `approval_hold_seconds` to "
    "be asked sooner, or act by hand.",
    "in-flight": "Wait for the operation. If it does not end, `cleave operations --stuck` says why.",
    "lower-score": "Nothing: another segment had a higher score, and this one is evaluated again after that action.",
    "other-act": "Nothing: the segment is evaluated again after the action is done.",
}
MOVES: Mapping[str, str] = {
    "few-brokers": "Add a broker, or find out why a broker sends no report.",
    "no-load": _NOTHING,
    "hit-count": "Wait for the next cycles. Lower the count to act sooner.",
    "settling": "Wait: the broker's report does not include the latest move yet.",
    "within-target": "Nothing: the load is even enough. Lower the target for a more even load.",
    "move-limit": "Nothing: the remaining moves follow in the next cycles. Raise the limit if that takes too long, or if an exchange has more moves.",
    "no-report": "Check whether the broker is up and whether `cleave bundles collect` runs.",
    "stale-report": "Check whether the broker answers and whether `cleave bundles collect` runs.",
    "below-threshold": _NOTHING,
    "below-floor": "Nothing: such a small move costs more than it gains.",
    "no-bundles": "Nothing, or split the broker's bundles: none of them may be moved.",
    "sole-bundle": "Split the bundle (`cleave bundles split`): moved as a whole, it would overload the next broker.",
    "nothing-fits": "Split the broker's bundles, so that a part fits elsewhere, or add a broker.",
    "no-underloaded-broker": "Add a broker: all of them are busy.",
    "excluded": "Nothing if it is intended. Otherwise remove the namespace from `excluded_namespaces`.",
    "no-other-home": "Look at the namespace's isolation policy and anti-affinity group, or add a broker to it.",
    "same-broker": "Nothing: the present broker is the best one.",
    "unknown-usage": "Find out why the broker's report lacks the usage or the limit of a resource.",
    "waiting": "Nothing: moves from the broker wait or run. Approve or reject the waiting ones.",
}
SPLITS: Mapping[str, str] = {
    "disabled": "Nothing if it is intended. Otherwise enable splitting for the namespace.",
    "too-few-brokers": "Nothing: the parts would stay on the only broker.",
    "too-few-topics": "One topic has the load: give it partitions, or make it a scalable topic (`cleave topics adopt`).",
    "not-owner": "Nothing: the bundle has another owner and is evaluated there.",
    "not-splittable": "Nothing: its range has a single hash.",
    "no-cut": "Read the algorithm's own reason in the same row. Try another algorithm with `cleave bundles split --algorithm`.",
    "hit-count": "Wait: the bundle must be hot in several cycles in a row.",
    "cool-down": "Wait, or shorten the cool-down.",
    "in-flight": "Wait for the split or move in progress; approve or refuse a proposal that waits.",
    "at-max-bundles": "Raise the namespace's limit of bundles.",
    "cycle-limit": "Nothing: the split follows in the next cycle.",
}
CUTS: Mapping[str, str] = {
    "not-splittable": "Nothing: its range has a single hash.",
    "too-few-topics": "Give the topic partitions, or choose the algorithm that halves the range.",
    "one-hash": "Nothing: all its topics have the same hash and cannot be separated.",
    "at-max-bundles": "Raise the namespace's limit of bundles, or request fewer parts.",
    "no-load": "Choose an algorithm that counts topics, or wait for traffic.",
    "below-limit": "Nothing, or lower the limit: no part is above it.",
    "none-outstanding": "Nothing: no topic stands out. Choose another algorithm.",
    "no-position-inside": "Give at least one position inside the bundle.",
    "position-outside": "Give positions inside the bundle's range; `cleave bundles show` prints the range.",
    "topic-not-here": "Find the topic's bundle with `cleave bundles hash TOPIC`.",
    "inseparable": "Nothing: these topics have the same hash.",
    "above-limit-alone": "A single topic is above the limit: give it partitions.",
    "fewer-parts": "Nothing, or choose another algorithm: there are fewer possible cuts than requested parts.",
}
MERGES: Mapping[str, str] = {
    "not-reported": "Find out why its broker sends no report; silence does not mean cold.",
    "isolated": "Nothing: the bundle was isolated around one topic on purpose.",
    "cold-cycles": "Wait: the bundle must be cold in several cycles in a row.",
    "cool-down": "Wait: its range was split recently.",
    "in-flight": "Wait for the split or move in progress; approve or refuse a proposal that waits.",
    "no-cold-neighbour": "Nothing: the bundle has no cold neighbour.",
    "above-low-water": "Nothing: the merged bundle would have too much load.",
    "at-min-bundles": "Nothing: the namespace has its minimum number of bundles.",
}
