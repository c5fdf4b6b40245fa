"""Actions on namespace bundles. They use the composition root of bundles, and are loaded by name."""
