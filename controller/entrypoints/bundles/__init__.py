"""What people ask of the bundle balancer, and how its answers are shown."""
