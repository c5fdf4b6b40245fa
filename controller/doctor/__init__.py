"""Checks of everything that Cleave needs: the database, brokers, Airflow, the load aggregation, and the state of the control plane."""
