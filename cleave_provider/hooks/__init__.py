"""Addresses of Cleave and Pulsar, from Airflow's connections."""
