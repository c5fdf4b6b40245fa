"""Assets for layout changes."""
