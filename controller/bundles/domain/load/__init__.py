"""Load as brokers report it: figures of a bundle, their averages, the order of bundles, and how full a broker is."""
