"""Many plans and workloads at once: axes as a grid, its points evaluated in chunks, and the table that they make."""
