"""Actions on a topic, as tasks."""
