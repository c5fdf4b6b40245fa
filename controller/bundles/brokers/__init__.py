"""Bundles of real brokers over their admin API: `BundleReader` reads, `BundleActions` splits and unloads.

They support Pulsar from version 3.0 on, with either load manager, and take a session with certificates and token. `controller.bundles.domain`
decides about splits and moves.
"""

from controller.bundles.brokers.checked_changes import ActOutcome, BundleActions, SplitResult, UnloadResult
from controller.bundles.brokers.reader import BundleReader

__all__ = ["ActOutcome", "BundleActions", "BundleReader", "SplitResult", "UnloadResult"]
