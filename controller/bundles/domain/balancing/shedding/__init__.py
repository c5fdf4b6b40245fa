"""Which bundles leave which broker: one rule a file, the same question and answer for each."""
