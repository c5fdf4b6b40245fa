"""Where a bundle goes: who may take it, and which of them does; one rule a file."""
