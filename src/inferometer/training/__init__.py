"""Training from the same graph: gradients as operators, what they keep, an iteration on a layout, its memory."""
