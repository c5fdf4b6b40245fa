"""Which bundles leave which broker: one file for each shedder. All have the same question and answer."""
