"""Where to cut a segment, apart from whether."""
