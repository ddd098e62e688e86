"""Kernels that engines run, by shape: one decorated function per kind gives calls that do the work once.

vLLM's own kernels where they can be imported, PyTorch's where not; every row says which. A case prepares buffers for a
shape and returns one call per buffer set, enough of them that together they are larger than the device's cache.
"""

from . import elementwise, fused_moe, gemm, mla, nccl, paged_attention, ssm
from .runner import CASES, KernelBench, Library, Missing, Ready, case, reason

__all__ = [
    "CASES",
    "KernelBench",
    "Library",
    "Missing",
    "Ready",
    "case",
    "elementwise",
    "fused_moe",
    "gemm",
    "mla",
    "nccl",
    "paged_attention",
    "reason",
    "ssm",
]
