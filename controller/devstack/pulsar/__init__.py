"""Real Pulsar brokers as child processes: one process with everything in it, or a cluster of several brokers.

For tests, benchmarks and people; production brings its own. The brokers are the jars of Maven Central on
the Java that is here, so it takes Maven (`apt install maven`) and, at the first use of a version, some
minutes to fetch them. The classes are imported from their modules: `standalone`, `cluster`, `jars`.
"""
