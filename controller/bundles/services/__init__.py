"""Services: collect reports, aggregate them, balance a cluster (`balancer`), and perform manual splits and unloads."""
