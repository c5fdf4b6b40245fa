"""Acts on a topic, as tasks."""
