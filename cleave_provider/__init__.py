"""Cleave as a provider of Airflow: connection types, hooks, operators, a sensor, triggers and assets for
users' own DAGs.

All modules here are thin. The work is in `controller.tasks`, which Cleave's own DAGs call too. Airflow finds
the package through `get_provider_info`, an entry point of the wheel.
"""
