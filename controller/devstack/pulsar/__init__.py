"""Real Pulsar brokers as child processes: one process that contains all parts, or a cluster of several brokers.

For tests, benchmarks and people; production uses its own brokers. The brokers are the jars of Maven Central on the
installed Java, so Maven is required (`apt install maven`), and the first use of a version takes some minutes to fetch
them. Import the classes from their modules: `standalone`, `cluster`, `jars`.
"""
