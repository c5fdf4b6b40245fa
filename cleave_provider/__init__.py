"""Cleave as a provider of Airflow: connection types, hooks, operators, a sensor, triggers and assets for people's own DAGs.

Everything here is thin. The work is in `controller.tasks`, which Cleave's own DAGs call too. Airflow learns of
the package from `get_provider_info`, an entry point of the wheel.
"""
