"""Measurements on the machine at hand: kernels by shape. Only this package loads torch, and only when it measures."""
