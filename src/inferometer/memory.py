"""What a plan keeps in a device's memory: weights, cache, the peak of live activations, and the engine's own."""

from __future__ import annotations

from .cost import weight_sum
from .evaluate import Setup, bound
from .graph import Block, Model, once_per
from .steps import Group, Step, kept
from .symbols import Expr, Program, Value, constant, evaluate, least, maximum, most
from .symbols import names as s

ALONE = {"tp": 1, "ep": 1, "moe_tp": 1, "sp": 1, "dp": 1, "dcp": 1, "a2a": 1, "gathered": 0}


def weight_bytes(setup: Setup) -> Value:
    """Weights kept on one device; what is offloaded to the host is not."""
    return weight_sum(setup.model.blocks, setup.env, "stored") * (1 - setup.env["offload_share"])


def parameters(model: Model, field: str = "params") -> float:
    """Parameters of the whole network, or with ``field="active"`` those that one token multiplies by."""
    return float(weight_sum(model.blocks, ALONE, field))


def parameters_by_op(model: Model) -> dict[str, float]:
    """Parameters of every operator by name, over all layers: ``parameters_by_op(model)["down_proj"]``"""
    found: dict[str, float] = {}
    for block in model.blocks:
        env = {**ALONE, **block.dims}
        for op in block.ops:
            amount = float(evaluate(op.work.params, env)) * block.count
            if amount:
                found[op.name] = found.get(op.name, 0.0) + amount
    return found


def cache_bytes(setup: Setup, length: Value, layers: tuple[int, ...] | None = None) -> Value:
    """Cache of one sequence of ``length`` tokens: latents, windows and recurrent states included."""
    found: Value = 0.0
    for block in setup.model.blocks:
        env = {**setup.env, **block.dims}
        times = block.count if layers is None else len(set(block.layers) & set(layers))
        for op in block.ops:
            if op.cache is not None:
                held = kept(setup.model.spans[op.cache.span], length)
                each = evaluate(op.cache.per_token, env) * held + evaluate(op.cache.per_sequence, env)
                found = found + times * each
    return found


def kv_bytes_per_token(setup: Setup) -> Value:
    """What one more token of a short sequence takes (windows not full yet, states not counted)."""
    return cache_bytes(setup, 1) - cache_bytes(setup, 0)


def live_peak(block: Block) -> Expr:
    """The largest sum of tensors that are alive at once while the block runs, as a formula.

    A tensor lives from the operator that writes it to the last one that reads it; the residual stream throughout.
    """
    last: dict[int, int] = {}  # producer -> last reader
    where: dict[str, int] = {}
    previous = -1
    for index, op in enumerate(block.ops):
        read = [previous] if op.inputs is None else [where[w] for w in op.inputs if w in where]
        for producer in read:
            last[producer] = index
        where[op.name] = index
        if not _zero(op.output):
            previous = index
    rows = s.patches if block.stage == "vision" else s.tokens
    stream = rows / s.sp * s.hidden_size * s.act_bytes if block.residual else constant(0)
    peak = constant(0)
    for index in range(len(block.ops)):
        alive = [op.output for i, op in enumerate(block.ops[: index + 1]) if i == index or last.get(i, -1) >= index]
        total = stream
        for size in alive:
            total = total + size
        peak = maximum(peak, total)
    return peak


@once_per(2000)
def _peak(block: Block) -> Program:
    return Program([live_peak(block)])


def activation_bytes(setup: Setup, step: Step) -> Value:
    """Peak of live activations while a step runs."""
    env = bound(setup, step)
    peak: Value = 0.0
    for block in setup.model.blocks:
        peak = most(peak, _peak(block)({**env, **block.dims})[0])
    return peak


def profiling_step(setup: Setup) -> Step:
    """The step that an engine tries out when it starts: its whole token budget, in as many sequences as it may have."""
    plan = setup.plan
    seqs = min(plan.max_num_seqs, plan.max_num_batched_tokens)
    return Step((Group(seqs, plan.max_num_batched_tokens / seqs, 0, 1),))


def longest_step(batch: Value, new: Value, cached: Value = 0, *, budget: Value) -> Step:
    """The largest step of a workload's prefill: as many tokens as the budget lets through, at the prompts' ends."""
    total = least(batch * new, budget)
    piece = least(new, total)
    return Step((Group(total / piece, piece, cached + new - piece),))


def max_total_tokens(setup: Setup, room: Value, length: Value) -> Value:
    """Tokens that the cache can hold, for sequences of up to ``length`` tokens."""
    each = cache_bytes(setup, length)
    return most(room, 0) / each * length if each else float("inf")


def _zero(value: object) -> bool:
    return not isinstance(value, Expr) and value == 0
