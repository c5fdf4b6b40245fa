"""Ways in: the `cleave` command, the worker, the Airflow tasks. Each calls the services and does little else."""
