"""Assets that stand for layouts."""
