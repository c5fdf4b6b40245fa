"""Mirrored topics, whose layout a broker keeps (Pulsar 5), stored in the same tables as other topics."""
