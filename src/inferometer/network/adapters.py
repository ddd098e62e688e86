"""What changes a model's blocks: low-rank adapters (LoRA), and weights that stay in the host's memory.

An adapter is two thin products beside each target; every different adapter in a batch brings its own weights along.
"""

from __future__ import annotations

import msgspec

from ..base.errors import UnknownName
from ..base.symbols import evaluate, minimum, total
from ..base.symbols import names as s
from ..specs.structs import Lora
from .graph import Block, Model
from .operators import Op, Work, linear

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
FUSED = {"qkv_proj": 3, "gate_up_proj": 2, "qkv_a_proj": 2}  # products that engines join
DEFAULT_TARGETS = (  # what adapters are trained on: attention, dense MLP, shared experts; never routed experts
    "qkv_proj",
    "qkv_a_proj",
    "q_b_proj",
    "q_proj",
    "kv_a_proj",
    "kv_b_proj",
    "o_proj",
    "gate_up_proj",
    "down_proj",
    "shared_experts",
)


def with_lora(model: Model, lora: Lora) -> Model:
    """``adapted(model, Lora(rank=16, targets=("qkv_proj", "o_proj"), adapters=4))``"""
    names = {op.name for block in model.blocks for op in block.ops if op.kind == "linear"}
    for target in lora.targets:
        if target not in names:
            raise UnknownName("LoRA target", target, names)
    return msgspec.structs.replace(model, blocks=tuple(_block_with_lora(b, lora) for b in model.blocks))


def _block_with_lora(block: Block, lora: Lora) -> Block:
    if not any(op.name in lora.targets for op in block.ops):
        return block
    ops: list[Op] = []
    for index, op in enumerate(block.ops):
        if op.name in lora.targets and op.kind == "linear":
            before = next((o.name for o in reversed(block.ops[:index]) if o.kind not in ("kv_write", *COLLECTIVES)), "")
            ops += [
                *_adapter(op, _joined_products(op, block), op.inputs if op.inputs is not None else (before,)),
                _with_adapter_input(op, before),
            ]
        else:
            ops.append(op)
    dims = {**block.dims, "lora_rank": lora.rank, "lora_adapters": lora.adapters}
    return msgspec.structs.replace(block, ops=tuple(ops), dims=dims)


def _with_adapter_input(op: Op, before: str) -> Op:
    """The target itself, adding the output of its adapter."""
    inputs = op.inputs if op.inputs is not None else (before,)
    return msgspec.structs.replace(op, inputs=(*inputs, f"{op.name}_lora_b"))


def _joined_products(op: Op, block: Block) -> int:
    """How many products an engine has joined into this one; the shared experts' first one is gate and up, if gated."""
    if op.name == "shared_experts" and next(o for o in block.ops if o.name == op.name) is op:
        width = evaluate(op.dims["n"], {**block.dims, "tp": 1})
        return round(float(width) / block.dims["shared_expert_intermediate_size"])
    return FUSED.get(op.name, 1)


def _adapter(op: Op, parts: int, inputs: tuple[str, ...]) -> list[Op]:
    """Down to the rank and up again; a fused product (q, k and v; gate and up) has a way down for each of its parts."""
    inner = parts * s.lora_rank
    down = linear(f"{op.name}_lora_a", op.dims["k"], inner, m=op.dims["m"], role="router", inputs=inputs)
    up = linear(f"{op.name}_lora_b", s.lora_rank, op.dims["n"], m=op.dims["m"], role="router")
    return [_per_adapter(down), _per_adapter(up)]


def _per_adapter(op: Op) -> Op:
    """A product whose weights are stored once per adapter, and read once per adapter that some sequence uses."""
    used = minimum(s.lora_adapters, s.seqs)
    w = op.work
    work = msgspec.structs.replace(w, weights=w.weights * used, stored=w.stored * s.lora_adapters, params=0, active=0)
    return msgspec.structs.replace(op, work=work)


# ------------------------------------------------------------------ offload


def with_offload(model: Model) -> Model:
    """The model with a read over the host's link in every block: a share of the weights and of the cache it reads.

    Those stay in the host's memory (``offload_share``, ``kv_offload_share``) and are copied whenever they are read.
    """
    return msgspec.structs.replace(model, blocks=tuple(_block_with_offload(b) for b in model.blocks))


def _block_with_offload(block: Block) -> Block:
    weights, cache = total(op.work.weights for op in block.ops), total(op.work.kv_reads for op in block.ops)
    sent = s.offload_share * weights + s.kv_offload_share * cache
    op = Op("host_copy", "host_copy", Work(sent=sent, hops=1), {"bytes": sent, "ranks": 2}, inputs=(), axis="host")
    return msgspec.structs.replace(block, ops=(*block.ops, op))
