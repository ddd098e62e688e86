"""Weights (and cache) that stay in the host's memory and come over its link whenever they are read."""

from __future__ import annotations

import msgspec

from .graph import Block, Model
from .operators import Op, Work
from .symbols import names as s
from .symbols import total


def offloaded(model: Model) -> Model:
    """The model with a read over the host link in every block: a share of the weights and of the cache it reads."""
    return msgspec.structs.replace(model, blocks=tuple(_block(b) for b in model.blocks))


def _block(block: Block) -> Block:
    weights, cache = total(op.work.weights for op in block.ops), total(op.work.kv_reads for op in block.ops)
    sent = s.offload_share * weights + s.kv_offload_share * cache
    op = Op("host_copy", "host_copy", Work(sent=sent, hops=1), {"bytes": sent, "ranks": 2}, inputs=(), axis="host")
    return msgspec.structs.replace(block, ops=(*block.ops, op))
