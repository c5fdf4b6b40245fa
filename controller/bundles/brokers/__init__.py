"""Bundles of real brokers over their admin API: `BundleReader` reads, `BundleActs` splits and unloads.

Any Pulsar from 3.0 on, with either load manager. Both take a session that is already configured (certificates, token).
Neither decides what to split or move; `controller.bundles.domain` does.
"""

from controller.bundles.brokers.acts import ActOutcome, BundleActs, SplitResult, UnloadResult
from controller.bundles.brokers.reader import BundleReader

__all__ = ["ActOutcome", "BundleActs", "BundleReader", "SplitResult", "UnloadResult"]
