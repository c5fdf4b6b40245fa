"""Actions on namespace bundles. They stand above the composition root of bundles, and are loaded by name."""
