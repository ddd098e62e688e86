"""What a model computes: operators, blocks, families, the graph."""
