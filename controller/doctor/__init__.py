"""What Cleave needs, checked: the database, brokers, Airflow, the path of load, and the state of the control plane."""
