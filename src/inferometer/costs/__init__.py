"""How long one step takes: names bound, roofline, measured kernels, collectives, the host."""
