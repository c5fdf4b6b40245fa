"""Mirrors: topics whose layout a broker keeps (Pulsar 5), written into the same tables as those that Cleave keeps."""
