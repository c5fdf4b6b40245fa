"""Reconciler: compares the logs a data plane has with those the books say it should have, topic by topic.

The order makes it safe: the listing comes first, the books are read afterwards under the topic's row lock. So a log
that is in the listing and not in the books was not reserved when it was listed. Faults are put right by making, closing
or healing logs. Only orphans are deleted, through tombstones. Logs of segments in a live operation are left to its
runner.
"""

from __future__ import annotations

from controller.services.reconciler.findings import Finding, FindingKind
from controller.services.reconciler.reconcile import reconcile, reconcile_topics

__all__ = ["Finding", "FindingKind", "reconcile", "reconcile_topics"]
