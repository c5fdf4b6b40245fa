"""Bundles of real brokers over their admin API: `BundleReader` reads, `BundleActs` splits and unloads.

They support Pulsar from version 3.0 on, with either load manager, and take a session with certificates and token. `controller.bundles.domain`
decides about splits and moves.
"""

from controller.bundles.brokers.acts import ActOutcome, BundleActs, SplitResult, UnloadResult
from controller.bundles.brokers.reader import BundleReader

__all__ = ["ActOutcome", "BundleActs", "BundleReader", "SplitResult", "UnloadResult"]
