"""What a request is made of: hardware, engines, plans and workloads, and the catalogue of their names."""
