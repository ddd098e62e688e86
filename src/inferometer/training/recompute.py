"""Activation recomputation by module, with Megatron-LM's names: what a layer keeps, and which operators run again.

    recomputed = recomputed_ops(block.ops, ("mlp",))
    [block.ops[i].name for i in sorted(recomputed.again)]        # gate_up_proj, act_fn, down_proj …
    kept_tensors(block.ops, recomputed)                          # what is left to be kept for the backward pass

A module keeps its inputs and runs its forward pass again before its backward pass. Modules that discard their output
(`DISCARDING`) leave nothing to their readers either: what they wrote is computed again when it is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.symbols import Expr, constant
from ..base.symbols import names as s
from ..network.graph import Block
from ..network.operators import Formula, Op, Work
from ..network.operators.op import role_bytes
from .backward import is_attention_core, qkv_bytes, stash

RECOMPUTE_MODULES = ("core_attn", "mlp_act", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
DISCARDING = frozenset({"mlp_act", "moe_act", "layernorm", "mla_up_proj"})
_LATENT = frozenset({"q_b_proj", "kv_b_proj", "rope"})  # the up-projections of MLA, and RoPE
_DENSE, _MIXTURE = frozenset({"mlp"}), frozenset({"router", "experts", "shared"})
_ENDS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "copy", "all_to_all"})


class Recomputed(NamedTuple):
    """Operators of a block, by their index, that run again before the backward pass."""

    again: frozenset[int] = frozenset()
    discarded: frozenset[int] = frozenset()  # of `again`, those whose output is not kept either
    partly: frozenset[int] = frozenset()  # operators of which a part runs again: the activation of experts


class KeptTensor(NamedTuple):
    """A tensor that is kept for the backward pass."""

    name: str  # the operator that wrote it, or that needs it
    reader: int  # index of the first operator whose gradient needs it, the last one in the backward pass
    size: Formula


def recomputed_ops(ops: tuple[Op, ...], modules: tuple[str, ...]) -> Recomputed:
    """Which operators of a layer its recomputed modules are: ``recomputed_ops(block.ops, ("layernorm",)).again``"""
    sets = {module: _module(ops, module) for module in modules}
    return Recomputed(
        again=frozenset().union(*(members for module, members in sets.items() if module != "moe_act")),
        discarded=frozenset().union(*(sets[module] for module in modules if module in DISCARDING - {"moe_act"})),
        partly=sets.get("moe_act", frozenset()),
    )


def _module(ops: tuple[Op, ...], module: str) -> frozenset[int]:
    """The operators of one module."""
    if module == "core_attn":
        return frozenset(i for i, op in enumerate(ops) if is_attention_core(op))
    if module == "mlp_act":
        return frozenset(i for i, op in enumerate(ops) if op.name in ("act_fn", "shared_experts_act"))
    if module == "moe_act":
        return frozenset(i for i, op in enumerate(ops) if op.kind == "moe")
    if module == "layernorm":
        return frozenset(i for i, op in enumerate(ops) if _is_layer_norm(ops, i))
    if module == "mla_up_proj":
        latent = any(op.name == "kv_b_proj" for op in ops)
        return frozenset(i for i, op in enumerate(ops) if latent and op.name in _LATENT)
    if module == "shared_experts":
        return frozenset(i for i, op in enumerate(ops) if op.name.startswith("shared_expert"))
    is_mixture = any(op.kind == "moe" for op in ops)
    if is_mixture != (module == "moe"):
        return frozenset()
    return _span(ops, _MIXTURE if is_mixture else _DENSE)


def _is_layer_norm(ops: tuple[Op, ...], index: int) -> bool:
    """Whether an operator is a norm of the residual stream whose output only products read."""
    op = ops[index]
    follower = ops[index + 1] if index + 1 < len(ops) else None
    return (
        op.kind == "norm"
        and op.name.endswith("layernorm")
        and "hidden_size" in str(op.output)
        and follower is not None
        and follower.kind not in ("norm", *_ENDS)
    )


def _span(ops: tuple[Op, ...], roles: frozenset[str]) -> frozenset[int]:
    """From the first to the last product of some roles behind attention, with the collectives that end them."""
    behind = max((i for i, op in enumerate(ops) if op.role == "attn"), default=-1) + 1
    members = [i for i, op in enumerate(ops) if i >= behind and op.role in roles]
    if not members:
        return frozenset()
    end = max(members)
    while end + 1 < len(ops) and (ops[end + 1].kind in _ENDS or ops[end + 1].name == "dropout"):
        end += 1
    return frozenset(range(min(members), end + 1))


def kept_tensors(ops: tuple[Op, ...], recomputed: Recomputed | None = None) -> list[KeptTensor]:
    """What a sequence of operators keeps for its backward pass, a tensor that several of them need counted once.

    A norm leaves its output in shards under sequence parallelism, and in shards it is kept for those that read it.
    """
    recomputed = recomputed or Recomputed()
    makers: dict[str, int] = {}  # name -> operator that writes the tensor
    tensors: dict[str, KeptTensor] = {}
    before = ""
    for index, op in enumerate(ops):
        held = stash(op)
        sources = [before] if op.inputs is None else [name for name in op.inputs if name in makers]
        source = (sources[0] if sources else "") or f"into {op.name}"
        maker = makers.get(source)
        runs_again = index in recomputed.again
        if not is_zero(held.input) and not (
            maker in recomputed.discarded or (runs_again and maker in recomputed.again)
        ):
            size = _input_bytes(op, held.input, None if maker is None else ops[maker])
            tensors.setdefault(source, KeptTensor(source, index, size))
        if not is_zero(held.output) and not runs_again:
            tensors.setdefault(op.name, KeptTensor(op.name, index, held.output))
        extra = _extra_bytes(ops, index, recomputed)
        if not is_zero(extra):
            tensors[f"{op.name} {index}"] = KeptTensor(op.name, index, extra)
        makers[op.name] = index
        if not is_zero(op.output):
            before = op.name
    return list(tensors.values())


def _input_bytes(op: Op, size: Formula, maker: Op | None) -> Formula:
    if maker is not None and maker.kind == "norm" and op.kind == "linear":
        return maker.output * role_bytes(op.role)[1] / s.act_bytes
    return size


def _extra_bytes(ops: tuple[Op, ...], index: int, recomputed: Recomputed) -> Formula:
    """What no other operator keeps: less what recomputation gives up; of what runs again only inputs of the module."""
    op = ops[index]
    held = stash(op)
    if op.kind == "prefill_attention":
        discards = any(ops[i].name in _LATENT for i in recomputed.discarded)  # q, k and v are computed again
        kept = held.extra - (qkv_bytes(op) if discards else 0)
        return kept - held.core if index in recomputed.again else kept
    if index in recomputed.partly:
        return held.extra - held.core
    if index in recomputed.again and op.kind != "norm":
        return constant(0)
    return held.extra


def kept_bytes_of(ops: tuple[Op, ...], recomputed: Recomputed | None = None) -> Expr:
    """The bytes of all kept tensors, as a formula."""
    total = constant(0)
    for tensor in kept_tensors(ops, recomputed):
        total = total + tensor.size
    return total


def is_zero(value: Formula) -> bool:
    """Whether a formula is the number 0."""
    return value.op == "const" and value.args[0] == 0 if isinstance(value, Expr) else value == 0


# ------------------------------------------------------------------ which layers, and what runs again


def recomputed_layers(blocks: tuple[Block, ...], method: str | None, num_layers: int | None) -> frozenset[int]:
    """Layers of a stage that full recomputation runs again: all of them, or with ``block`` the first ``num_layers``."""
    layers = sorted(i for block in blocks if block.stage == "layer" for i in block.layers)
    return frozenset(layers if method != "block" or num_layers is None else layers[:num_layers])


def recomputed_block(block: Block, modules: tuple[str, ...]) -> Block | None:
    """What a layer runs again for its recomputed modules; None if nothing."""
    ops = _ops_again(block.ops, modules)
    return msgspec.structs.replace(block, ops=ops) if ops else None


@cache_by_identity(2000)
def _ops_again(ops: tuple[Op, ...], modules: tuple[str, ...]) -> tuple[Op, ...]:
    recomputed = recomputed_ops(ops, modules)
    return tuple(
        op if i in recomputed.again else _expert_activation(op)
        for i, op in enumerate(ops)
        if i in recomputed.again | recomputed.partly
    )


def _expert_activation(op: Op) -> Op:
    """The activation inside the experts as an operator of its own."""
    rows, inner = op.shape["input"][0], op.dims["inner"]
    wide = (op.dims["matrices"] - 1) * inner
    return Op(
        f"{op.name}_act",
        "elementwise",
        Work(flops=4 * rows * inner, reads=rows * wide * s.act_bytes, writes=rows * inner * s.act_bytes),
        {"m": rows, "n": inner},
        output=rows * inner * s.act_bytes,
        shape={"input": (rows, wide), "output": (rows, inner)},
    )
