"""Kernels that engines run, by shape: one decorated function per kind gives calls that do the work once.

vLLM's own kernels where they can be imported, PyTorch's where not; every row says which. A case prepares buffers for a
shape and returns one call per buffer set, enough of them that together they are larger than the device's cache.
"""

from . import elementwise, fused_moe, gemm, launch, mla, nccl, paged_attention
from .runner import CASES, Bench, Library, Missing, Ready, case, reason

__all__ = [
    "CASES",
    "Bench",
    "Library",
    "Missing",
    "Ready",
    "attention",
    "case",
    "elementwise",
    "experts",
    "host",
    "latent",
    "links",
    "products",
    "reason",
]
