"""Where Cleave and Pulsar are, from Airflow's connections."""
