"""How the answers of the bundle balancer are shown to people: rows, tables and a picture."""
