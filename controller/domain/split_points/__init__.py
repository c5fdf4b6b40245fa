"""Where to cut a segment, apart from whether: one module a way, chosen by name in ``registry``."""
