"""Operators: one small decorated function per kind, from shapes (formulas) to work (formulas).

A name such as ``s.hidden_size`` is bound by the block the operator stands in, ``s.tokens`` by the step, ``s.tp`` by
the plan, ``s.attn_weight_bytes`` by the precision. Parallelism is in the formulas, never in branches: at tp = 1 the
all-reduce sends (tp-1)/tp = 0 bytes. All figures are of one device and one call of the operator.
"""

from ...base.symbols import Formula
from .attention import attention, chunk_scan, conv1d, kv_write, local_kv_heads, scan, state_update
from .communication import all_gather, all_reduce, all_to_all, reduce_scatter, send
from .dense import elementwise, embedding, linear, norm, sampler
from .moe import experts
from .op import KINDS, MEMORY_FIELDS, WORK_FIELDS, Cache, Op, Work, operator

__all__ = [
    "KINDS",
    "MEMORY_FIELDS",
    "WORK_FIELDS",
    "Cache",
    "Formula",
    "Op",
    "Work",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "attention",
    "chunk_scan",
    "conv1d",
    "elementwise",
    "embedding",
    "experts",
    "kv_write",
    "linear",
    "local_kv_heads",
    "norm",
    "operator",
    "reduce_scatter",
    "sampler",
    "scan",
    "send",
    "state_update",
]
