"""Where to cut a bundle, apart from whether: one module an algorithm, chosen by name in `registry`."""
