"""The ring on which a namespace's topics lie: names, hashes, one bundle, and the boundaries of all bundles."""
