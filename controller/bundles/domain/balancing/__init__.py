"""Balancing: selects the bundles that leave their broker (`shedding`) and their destinations (`placement`), decided together."""
