"""Reconciler: compares the logs a data plane has with those the books say it should have, topic by topic.

The order makes it safe: the listing comes first, the books are read afterwards under the topic's row lock. So a log
that is in the listing and not in the books was not reserved when it was listed. Faults are put right by making, closing
or healing logs. Only orphans are deleted, through tombstones, and only logs that this journal created. Logs of segments in
a live operation are left to its runner. Where the logs are ahead of the journal (a restore, an asynchronous fail-over), the
layout is rebuilt from the logs, or the topic is held until a person decides.
"""

from __future__ import annotations

from controller.services.reconciler.findings import Finding, FindingKind
from controller.services.reconciler.reconcile import reconcile, reconcile_topics, verify_topics
from controller.services.reconciler.recover import Recovery, recover
from controller.services.reconciler.suspects import Suspects
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
