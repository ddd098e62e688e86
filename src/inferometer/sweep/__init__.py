"""Many plans and workloads at once: axes as a grid, its points priced in pieces, and the table that they make."""
