"""The parts of the reference, read off the code."""
