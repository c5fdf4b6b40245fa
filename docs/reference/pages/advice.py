"""What to do about each reason for leaving something alone, in a sentence or two; by hand, since no code knows it."""

from __future__ import annotations

from collections.abc import Mapping

_NOTHING = "Nothing."
TOPICS: Mapping[str, str] = {
    "disabled": "Nothing if it is meant. Else `cleave policy effective TOPIC` says at which level `enabled` is false; "
    "`cleave policy set LEVEL enabled=true`. Acts by hand work all the same.",
    "invalid-policy": "The levels fit apart and not together. Look at `cleave policy effective TOPIC` and correct the parameter that is "
    "named, at the level that sets it.",
    "foreign-controller": "The broker's own auto-scaler was switched on for the topic. Switch it off there, or give the topic "
    "back with `cleave topics detach`.",
    "topic-held": "`cleave topics recover TOPIC --dry-run` says what the logs show. After a restart of the database a worker compares them "
    "within seconds; a topic that stays held has a page, [CleaveTopicHeld](../runbook/CleaveTopicHeld.md).",
    "at-max-segments": "Raise `max_segments`, or add brokers or consumers first if they are what is short.",
    "at-min-segments": "Nothing, or lower `min_segments`.",
    "at-max-buckets": "More consumers than the topic can serve side by side: stop some, or raise `entry_bucket_max_per_segment` "
    "(of the cluster; above 64 it lets nobody else in) or `max_segments`.",
    "enough-buckets": "Nothing: each consumer finds a bucket already.",
    "merge-depth": "Nothing. `max_dag_depth` bounds how often a range is merged; raise it if too many small segments stay.",
    "width-one": "One key has the whole load, and no split divides a key. Give that key's messages more keys, or make what "
    "reads them faster.",
    "would-idle-consumer": "Nothing while the consumers are there: merged, the segments would serve fewer of them.",
    "would-split-again": "Nothing: merged, the segment would be hot. The thresholds are doing what they are for.",
    "no-load-record": "Wait two minutes after a topic is made. If it stays, `cleave doctor`: the collector or the aggregation "
    "is not running, or cannot see this topic.",
    "stale-load": "`cleave doctor`: the collector or the aggregation stopped, or a broker does not answer. Until then "
    "nothing is split or merged on old figures.",
    "not-cold": _NOTHING + " To merge sooner, raise the merge threshold of the metric.",
    "split-cooldown": "Wait until `not_before`. If a burst is always ahead of it, lower `split_cooldown_seconds`.",
    "merge-cooldown": "Wait until `not_before`, or lower `merge_cooldown_seconds`.",
    "rebucket-cooldown": "Wait until `not_before`, or lower `rebucket_cooldown_seconds`.",
    "bucket-idle-window": "Wait, or lower `bucket_idle_seconds`: buckets are given up when no consumer has come or gone for so long.",
    "consumers-joining": "Nothing: consumers that come after an act for consumers are counted together. It ends half a second after the last "
    "one, ten seconds after the act at the latest.",
    "kept-apart": "Wait until `not_before`: whoever split the segment by hand asked for it (`--keep`). A merge by hand is not held back.",
    "cold-window": "Wait: both neighbours must stay cold for `merge_window_seconds`. Lower it if you would rather merge early.",
    "tolerated-overload": "Nothing: relief now would cost more than the overload has. Lower `overload_tolerance`, or "
    "`reseal_price_segment_seconds`, to have it sooner.",
    "saving-below-price": "Nothing: fewer segments have not been enough for long enough. Lower "
    "`reseal_price_segment_seconds` to give capacity back sooner.",
    "unsplittable": "The load is on one key, or on several that share a slot. Give a single key's messages more keys (a salt), or a "
    "topic of their own. Several keys can be dealt over more consumers: give the segment more entry buckets. For one key those "
    "change nothing.",
    "reconnection-budget": "Wait until `not_before`, or raise `reconnections_per_minute` (of the cluster: "
    "`cluster_reconnections_per_minute`).",
    "awaiting-approval": "Answer it, under Airflow's *Required Actions*, on the pages or by `cleave approvals`; what waits is in `inspect.approvals`. Without an answer "
    "`approval_default` holds after `approval_wait_seconds`.",
    "approval-refused": "Nothing: somebody said no. It is proposed again after `not_before`; lower `approval_hold_seconds` to "
    "be asked sooner, or act by hand.",
    "in-flight": "Wait for the operation. If it does not end, `cleave operations --stuck` says why.",
    "lower-score": "Nothing: another segment needed it more, and this one is looked at again after that act.",
    "other-act": "Nothing: it is looked at again once the act is done.",
}
MOVES: Mapping[str, str] = {
    "few-brokers": "Add a broker, or see why one sends no report.",
    "no-load": _NOTHING,
    "hit-count": "Wait for the next cycles. Lower the count if they come too late.",
    "settling": "Wait: what was moved a moment ago is not in the broker's report yet.",
    "within-target": "Nothing: the brokers are even enough. Lower the target to have them evener.",
    "move-limit": "Nothing: the rest follows in the next cycles. Raise the limit if that takes too long.",
    "no-report": "See whether the broker is up and whether `cleave bundles collect` runs.",
    "stale-report": "See whether the broker answers and whether `cleave bundles collect` runs.",
    "below-threshold": _NOTHING,
    "below-floor": "Nothing: moving so little costs more than it brings.",
    "no-bundles": "Nothing, or split the broker's bundles: nothing on it may be moved.",
    "sole-bundle": "Split the bundle (`cleave bundles split`); moved whole, it would overload the next broker.",
    "nothing-fits": "Split the broker's bundles, so that a part fits elsewhere, or add a broker.",
    "no-underloaded-broker": "Add a broker: all of them are busy.",
    "excluded": "Nothing if it is meant; else take the namespace out of `excluded_namespaces`.",
    "no-other-home": "Look at the namespace's isolation policy and anti-affinity group, or add a broker to it.",
    "same-broker": "Nothing: it is best where it is.",
    "unknown-usage": "See why the broker's report lacks the usage or the limit of a resource.",
    "waiting": "Nothing: moves off the broker wait or run. Approve or refuse those that wait for a person.",
}
SPLITS: Mapping[str, str] = {
    "disabled": "Nothing if it is meant; else switch splitting on for the namespace.",
    "too-few-brokers": "Nothing: with one broker the parts would stay on it.",
    "too-few-topics": "The load is one topic's: give it partitions, or make it a scalable topic (`cleave topics adopt`).",
    "not-owner": "Nothing: the bundle changed hands. It is looked at where it is now.",
    "not-splittable": "Nothing: its range has a single hash.",
    "no-cut": "Read the algorithm's own reason beside it; try another with `cleave bundles split --algorithm`.",
    "hit-count": "Wait: it must be hot in several cycles in a row.",
    "cool-down": "Wait, or shorten the cool-down.",
    "in-flight": "Wait for the split that is under way.",
    "at-max-bundles": "Raise the cap on bundles of the namespace.",
    "cycle-limit": "Nothing: it is the next cycle's.",
}
CUTS: Mapping[str, str] = {
    "not-splittable": "Nothing: its range has a single hash.",
    "too-few-topics": "Give the topic partitions, or choose the algorithm that halves the range.",
    "one-hash": "Nothing: its topics have one hash and stay together wherever it is cut.",
    "at-max-bundles": "Raise the cap on bundles of the namespace, or ask for fewer parts.",
    "no-load": "Choose an algorithm that counts topics, or wait for traffic.",
    "below-limit": "Nothing, or lower the limit: no part is above it.",
    "none-outstanding": "Nothing: no topic stands out. Choose another algorithm.",
    "no-position-inside": "Give at least one position inside the bundle.",
    "position-outside": "Give positions between the bundle's edges; `cleave bundles show` has them.",
    "topic-not-here": "Look where the topic is: `cleave bundles hash TOPIC`.",
    "inseparable": "Nothing: these topics have one hash.",
    "above-limit-alone": "One topic is above the limit by itself: give it partitions.",
    "fewer-parts": "Nothing, or choose another algorithm: there are fewer places to cut than parts asked for.",
}
MERGES: Mapping[str, str] = {
    "not-reported": "See why its broker sends no report; silence is not cold.",
    "isolated": "Nothing: it was cut around one topic on purpose.",
    "cold-cycles": "Wait: it must be cold in several cycles in a row.",
    "cool-down": "Wait: its range was split a short while ago.",
    "in-flight": "Wait for the split that is under way.",
    "no-cold-neighbour": "Nothing: there is no cold neighbour to merge it with.",
    "above-low-water": "Nothing: together they would be too busy.",
    "at-min-bundles": "Nothing: the namespace has as few as it may have.",
}
