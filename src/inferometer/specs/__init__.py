"""What can be asked for: hardware, engines, plans and workloads, and the catalogue of their names."""
