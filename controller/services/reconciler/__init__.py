"""Reconciler: compares the logs of a data plane with the logs that the metadata expects, topic by topic.

The order makes the comparison safe: the logs are listed first, and the metadata is read afterwards under the
topic's row lock. So a log that is listed but not in the metadata was not reserved when it was listed.
Differences are repaired by creating, terminating or replacing logs. Only orphaned logs are deleted, through
deletion entries, and only if this journal created them. Logs of segments in a live operation are left to its
runner. If the logs are ahead of the journal (after a restore or an asynchronous fail-over), the layout is
rebuilt from the logs, or the topic is held until a person decides.
"""

from __future__ import annotations

from controller.services.reconciler.broken_log_reports import Suspects
from controller.services.reconciler.log_differences import Finding, FindingKind
from controller.services.reconciler.reconcile import reconcile, reconcile_topics, verify_topics
from controller.services.reconciler.recover import Recovery, recover
from controller.services.reconciler.verifier import Verifier

__all__ = [
    "Finding",
    "FindingKind",
    "Recovery",
    "Suspects",
    "Verifier",
    "reconcile",
    "reconcile_topics",
    "recover",
    "verify_topics",
]
