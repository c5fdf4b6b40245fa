"""Ways in: the `cleave` command, the worker, the Airflow tasks. Each is thin over the services."""
