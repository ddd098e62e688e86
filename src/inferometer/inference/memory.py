"""What a plan keeps in a device's memory: weights, cache, the peak of live activations, and the engine's own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from ..base.cache import cache_by_identity
from ..base.symbols import (
    Expr,
    Program,
    Value,
    constant,
    evaluate,
    lift,
    maximum,
    maximum_of,
    minimum_of,
    scalar,
    where,
)
from ..base.symbols import names as s
from ..costs.binding import BoundPlan, stage_plans, step_env
from ..costs.step import Group, Images, Step
from ..network.graph import Block, Span
from ..network.operators import Op
from ..specs.structs import Engine
from . import latency, speculation
from .cache_size import cache_bytes
from .latency import vision_step
from .report import Memory
from .weights import expert_kernel, weight_bytes
from .workload import BatchShape


def kv_bytes_per_token(bound_plan: BoundPlan) -> Value:
    """What one more token of a short sequence takes (windows not full yet, states not counted)."""
    return cache_bytes(bound_plan, 1) - cache_bytes(bound_plan, 0)


def live_peak(block: Block) -> Expr:
    """The largest sum of tensors that are alive at once while the block runs, as a formula.

    A tensor lives from the operator that writes it to the last one that reads it; the residual stream throughout.
    """
    return _live_peak(block.ops, block.stage == "vision", block.residual)


@cache_by_identity(2000)
def _live_peak(ops: tuple[Op, ...], is_vision: bool, residual: bool) -> Expr:
    last: dict[int, int] = {}  # producer -> last reader
    where: dict[str, int] = {}
    previous = -1
    for index, op in enumerate(ops):
        read = [previous] if op.inputs is None else [where[w] for w in op.inputs if w in where]
        for producer in read:
            last[producer] = index
        where[op.name] = index
        if not _zero(op.output):
            previous = index
    rows = s.patches if is_vision else s.tokens
    stream = rows / s.sp * s.hidden_size * s.act_bytes if residual else constant(0)
    peak = constant(0)
    for index in range(len(ops)):
        alive = [op.output for i, op in enumerate(ops[: index + 1]) if i == index or last.get(i, -1) >= index]
        total = stream
        for size in alive:
            total = total + size
        peak = maximum(peak, total)
    return peak


@cache_by_identity(2000)
def _peak(block: Block) -> Program:
    return Program([live_peak(block), expert_workspace(block)])


def expert_workspace(block: Block) -> Expr:
    """Rows of tokens at their experts: what goes in and out, and between the products, each as wide as the wider."""
    for op in block.ops:
        if op.kind == "moe":
            rows, hidden, inner, matrices = (op.dims[name] for name in ("rows", "hidden", "inner", "matrices"))
            return lift(rows) * (maximum(hidden, inner) + maximum(hidden, (matrices - 1) * inner)) * s.act_bytes
    return constant(0)


class Peak(NamedTuple):
    """Activations that are alive at once, by what runs: ``Peak(layers=9e8, head=3e8, workspace=5e8).bytes  # 9e8``"""

    layers: Value = 0.0  # the largest layer, with its experts' workspace
    head: Value = 0.0  # hidden states, logits and what sampling makes of them
    workspace: Value = 0.0  # of experts, where the engine keeps it: it is still there when tokens are sampled

    def joined(self, other: Peak) -> Peak:
        """Of two parts of a model."""
        return Peak(*(maximum_of(a, b) for a, b in zip(self, other, strict=True)))

    @property
    def bytes(self) -> Value:
        """The highest."""
        return maximum_of(self.layers, self.head + self.workspace)


def activation_peak(bound_plan: BoundPlan, step: Step) -> Peak:
    """Peaks of live activations while a step runs."""
    env, engine, kernel = step_env(bound_plan, step), bound_plan.engine, expert_kernel(bound_plan)
    streams, keeps_workspace = engine.live_streams - 1, kernel.workspace if kernel else engine.expert_workspace
    layers: Value = 0.0
    head: Value = 0.0
    workspace: Value = 0.0
    for block in bound_plan.model.blocks:
        names = env | block.dims if block.dims else env
        alive, rows_at_experts = _peak(block)(names)
        held = streams if block.residual else min(streams, 1) if block.stage == "head" else 0
        if held:
            rows = names["patches" if block.stage == "vision" else "tokens"]
            alive = alive + held * rows / names["sp"] * names.get("hidden_size", 0.0) * names["act_bytes"]
        if block.stage == "head":
            head = maximum_of(head, alive + engine.sampler_bytes * names["logits"] * names.get("vocab_size", 0.0))
        else:
            layers = maximum_of(layers, alive)
            if keeps_workspace:
                workspace = maximum_of(workspace, rows_at_experts)
    return Peak(layers, head, workspace)


def activation_bytes(bound_plan: BoundPlan, step: Step) -> Value:
    """Peak of live activations while a step runs."""
    return activation_peak(bound_plan, step).bytes


def profiling_step(bound_plan: BoundPlan) -> Step:
    """The step that an engine tries out when it starts: its whole token budget, in as many sequences as it may have."""
    plan = bound_plan.plan
    seqs = min(plan.max_num_seqs, plan.max_num_batched_tokens)
    return Step((Group(seqs, plan.max_num_batched_tokens / seqs, 0, 1),))


def longest_step(batch: Value, new: Value, cached: Value = 0, *, budget: Value) -> Step:
    """The largest step of a workload's prefill: as many tokens as the budget lets through, at the prompts' ends."""
    total = minimum_of(batch * new, budget)
    piece = minimum_of(new, total)
    return Step((Group(total / piece, piece, cached + new - piece),))


def max_total_tokens(bound_plan: BoundPlan, room: float, length: int) -> float:
    """Tokens that the cache can hold, for sequences of up to ``length`` tokens."""
    each = float(cache_bytes(bound_plan, length) + drafter(bound_plan, length)[1])
    if not each:
        return float("inf")
    if bound_plan.engine.kv_cache_groups and bound_plan.plan.speculation is None:
        layers = _cached_layers(bound_plan)
        if layers and (layers.states or any(span.kind in ("window", "chunk") for span in layers.by_span)):
            return _tokens_in_groups(bound_plan, layers, max(room, 0.0), length)
    return max(room, 0.0) / each * length


class CachedLayers(NamedTuple):
    """Layers that keep something, by what they attend to."""

    by_span: dict[Span, int]
    states: int  # layers with a recurrent state instead
    per_token: float  # bytes of an attention layer
    per_state: float  # bytes of a state


def _cached_layers(bound_plan: BoundPlan) -> CachedLayers | None:
    """What blocks of one size can hold; None where attention layers differ in size, or keep something else, too."""
    by_span: dict[Span, int] = {}
    states, per_state = 0, 0.0
    sizes: set[float] = set()
    for block in bound_plan.model.blocks:
        caches = [op.cache for op in block.ops if op.cache is not None]
        env = {**bound_plan.env, **block.dims}
        held = [(float(evaluate(c.per_token, env)), float(evaluate(c.per_sequence, env))) for c in caches]
        kept = [state for token, state in held if not token]  # convolution and state of a layer lie together
        if kept:
            states, per_state = states + block.count, max(per_state, sum(kept))
        attending = [(cache, token, state) for cache, (token, state) in zip(caches, held, strict=True) if token]
        for cache, token, state in attending:
            span = bound_plan.model.spans[cache.span]
            if len(attending) > 1 or span.ratio != 1 or state:
                return None
            by_span[span] = by_span.get(span, 0) + block.count
            sizes.add(token)
    return CachedLayers(by_span, states, sizes.pop(), per_state) if len(sizes) == 1 else None


def _tokens_in_groups(bound_plan: BoundPlan, layers: CachedLayers, room: float, length: int) -> float:
    """What vLLM prints as the size of its KV cache where layers differ: concurrency × max_model_len.

    Layers of one kind are split into groups of equal size, the last one padded; a block belongs to one group. A window
    needs room for its own tokens and for those of a step beside it. A recurrent state takes one block, which is made
    large enough for it: so many tokens of an attention layer.
    """
    plan = bound_plan.plan
    block_size = plan.block_size * max(1, math.ceil(layers.per_state / (plan.block_size * layers.per_token)))
    counts = [*layers.by_span.values(), *([layers.states] if layers.states else [])]
    group_size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    num_blocks = int(room // (group_size * block_size * layers.per_token))
    blocks = -(-layers.states // group_size)
    for span, count in layers.by_span.items():
        held, more = length, 0
        if span.kind == "window":
            held, more = min(int(span.size) - 1 + plan.max_num_batched_tokens, length), 1
        elif span.kind == "chunk":
            held = min(int(span.size) + plan.max_num_batched_tokens, length)
        blocks += -(-count // group_size) * (-(-held // block_size) + more)
    return num_blocks / blocks * length


def _zero(value: object) -> bool:
    return not isinstance(value, Expr) and value == 0


# ------------------------------------------------------------------ what a workload takes of the fullest GPU


def usable_bytes(bound_plan: BoundPlan, weights: Value, aside: Value) -> Value:
    """Bytes of a GPU that weights, KV cache and ``aside`` (activations and the engine's own) may take together.

    ``gpu_memory_utilization`` is a share of the *device* (vLLM); of it for *static* things, weights and KV cache, so
    that the rest is there for what comes and goes (SGLang's ``mem_fraction_static``); or of what is *free* once weights
    and the profiling run have theirs, which the KV cache gets (TensorRT-LLM's ``free_gpu_memory_fraction``).
    """
    return usable_share(
        bound_plan.engine, bound_plan.device.memory, bound_plan.plan.gpu_memory_utilization, weights, aside
    )


def usable_share(engine: Engine, memory: float, share: Value, weights: Value, aside: Value) -> Value:
    """`usable_bytes` of a device with so much memory, under one share or under an array of them."""
    if engine.memory_share_of == "static":
        return share * memory + minimum_of(aside, (1 - share) * memory)
    if engine.memory_share_of == "free":
        return share * memory + (1 - share) * minimum_of(weights + aside, memory)  # nothing is free where those fill it
    return share * memory


def needed_memory(engine: Engine, share: float, held: Memory) -> float:
    """The least memory of a device on which a plan fits: `usable_bytes` the other way round."""
    aside = held.activation_bytes + held.overhead_bytes
    if engine.memory_share_of == "static":
        return max((held.total_bytes - aside) / share, held.total_bytes)
    if engine.memory_share_of == "free":
        return (held.total_bytes - (1 - share) * (held.weights_bytes + aside)) / share
    return held.total_bytes / share


class Footprint(NamedTuple):
    """Bytes on one GPU, of one workload or of an array of them."""

    weights: Value
    cache: Value
    live: Value  # activations
    reserve: float  # the engine's own
    usable: Value

    @property
    def total(self) -> Value:
        """All of it."""
        return self.weights + self.cache + self.live + self.reserve


def footprint(bound_plan: BoundPlan, batch_shape: BatchShape) -> Footprint:
    """Of the pipeline stage whose GPUs are fullest: ``footprint(bound_plan, batch_shape).total``"""
    parts = [_stage(stage, batch_shape) for stage in stage_plans(bound_plan)]
    fullest = parts[0]
    for part in parts[1:]:
        more = part.total > fullest.total
        fullest = Footprint(*(where(more, a, b) for a, b in zip(part, fullest, strict=True)))
    return fullest


def _stage(bound_plan: BoundPlan, batch_shape: BatchShape) -> Footprint:
    more_weights, more_cache = drafter(bound_plan, batch_shape.length)
    cache = (
        replica_kv_bytes(bound_plan, batch_shape, batch_shape.output_len) * (1 - bound_plan.env["kv_offload_share"])
        + batch_shape.sequences * more_cache
    )
    weights, reserve = weight_bytes(bound_plan) + more_weights, bound_plan.engine.memory_reserve
    steps = prompt_peaks(bound_plan, batch_shape) + answer_peaks(bound_plan, batch_shape)
    live = peak(bound_plan, steps, reserved(bound_plan))
    return Footprint(weights, cache, live, reserve, usable_bytes(bound_plan, weights, live + reserve))


def reserved(bound_plan: BoundPlan) -> Value:
    """Activations that an engine sets aside by trying out its largest step, if it does."""
    return activation_bytes(bound_plan, profiling_step(bound_plan)) if bound_plan.engine.profile_run else 0.0


def cache_of(bound_plan: BoundPlan, batch_shape: BatchShape, length: Value) -> Value:
    """Cache of one sequence of ``length`` tokens, layer by layer where tokens are pruned."""
    if isinstance(batch_shape.input_len, tuple):
        more = length - batch_shape.context
        return sum(cache_bytes(bound_plan, n + more, (i,)) for i, n in enumerate(batch_shape.input_len))
    return cache_bytes(bound_plan, length)


def replica_kv_bytes(bound_plan: BoundPlan, batch_shape: BatchShape, answered: Value) -> Value:
    """Cache of a replica's sequences after some answer tokens; beams share the prompt's."""
    first, whole = (
        cache_of(bound_plan, batch_shape, batch_shape.context),
        cache_of(bound_plan, batch_shape, batch_shape.context + answered),
    )
    return batch_shape.batch_per_replica * first + batch_shape.sequences * (whole - first)


def memory_table(bound_plan: BoundPlan, batch_shape: BatchShape) -> Memory:
    """Of the pipeline stage whose GPUs are fullest; what fits must fit on every stage.

    Batch sizes are of all replicas, tokens of one.
    """
    parts = [stage_memory(stage, batch_shape) for stage in stage_plans(bound_plan)]
    fullest = max(parts, key=lambda m: m.total_bytes)
    for word in ("max_batch_size", "max_batch_size_prefill", "max_batch_size_decode"):
        setattr(fullest, word, min(getattr(m, word) for m in parts))
    held = [m for m in parts if m.max_total_tokens is not None]
    if held:
        tightest = min(held, key=lambda m: m.max_total_tokens or 0)
        for word in ("max_total_tokens", "kv_bytes_per_token", "kv_capacity_bytes"):
            setattr(fullest, word, getattr(tightest, word))
    return fullest


def prompt_peaks(bound_plan: BoundPlan, batch_shape: BatchShape) -> list[Step]:
    """The steps of the prompts that may need the most memory: the largest one, and the images'."""
    if isinstance(batch_shape.input_len, tuple):
        largest = Step((Group(batch_shape.batch_per_replica, max(batch_shape.input_len), 0),))
    else:
        budget = latency.prefill_budget(bound_plan, batch_shape.batch_per_replica * batch_shape.new_tokens)
        largest = longest_step(
            batch_shape.batch_per_replica, batch_shape.new_tokens, batch_shape.cached_tokens, budget=budget
        )
    return [largest, vision_step(batch_shape)] if batch_shape.images.count else [largest]


def answer_peaks(bound_plan: BoundPlan, batch_shape: BatchShape) -> list[Step]:
    """The last step of the answers, if there are any."""
    if scalar(batch_shape.output_len) and batch_shape.output_len < 2:
        return []
    spec = bound_plan.plan.speculation
    new = spec.num_speculative_tokens + 1 if spec else 1
    each = (
        batch_shape.sequences / latency.micro_batches(bound_plan, batch_shape.sequences) * (batch_shape.output_len > 1)
    )
    return [Step((Group(each, new, maximum_of(batch_shape.length - new, 0), new, True),))]


def peak(bound_plan: BoundPlan, steps: list[Step], aside: Value = 0.0) -> Value:
    """The largest peak of some steps, or what is set aside anyway."""
    for step in steps:
        aside = maximum_of(aside, activation_bytes(bound_plan, step))
    return aside


def cache_offloaded(bound_plan: BoundPlan, batch_shape: BatchShape) -> BoundPlan:
    """The plan with part of the cache in host memory: what the offload budget leaves when all weights are there."""
    room = bound_plan.env.get("host_cache_bytes", 0.0)
    if not room:
        return bound_plan
    cache: Value = 0.0
    for stage in stage_plans(bound_plan):
        cache = maximum_of(cache, replica_kv_bytes(stage, batch_shape, batch_shape.output_len))
    return bound_plan._replace(
        env={**bound_plan.env, "kv_offload_share": minimum_of(1.0, room / maximum_of(cache, 1.0))}
    )


def stage_memory(bound_plan: BoundPlan, batch_shape: BatchShape) -> Memory:
    """Of one pipeline stage: ``stage_memory(stage_plans(bound_plan)[0], batch_shape).kv_capacity_bytes``"""
    replicas = bound_plan.plan.data_parallel_size
    fullest, aside = _stage(bound_plan, batch_shape), float(reserved(bound_plan))
    _, more_cache = drafter(bound_plan, batch_shape.length)
    per_prompt, per_sequence = (
        cache_of(bound_plan, batch_shape, batch_shape.context),
        cache_of(bound_plan, batch_shape, batch_shape.length) + more_cache,
    )
    each = per_prompt + batch_shape.beams * (per_sequence - per_prompt)  # beams share the prompt's

    @functools.cache
    def prompts(batch: int) -> float:
        return float(peak(bound_plan, prompt_peaks(bound_plan, _scaled(batch_shape, batch)), aside))

    @functools.cache
    def answers(batch: int) -> float:
        return float(peak(bound_plan, answer_peaks(bound_plan, _scaled(batch_shape, batch)), aside))

    def both(batch: int) -> float:
        return max(prompts(batch), answers(batch))

    def room(live: Value) -> float:
        """Bytes for the KV cache beside activations of ``live`` bytes."""
        usable = usable_bytes(bound_plan, fullest.weights, live + fullest.reserve)
        cache_on_host = bound_plan.env.get("host_cache_bytes", 0.0)
        return float(usable - fullest.weights - fullest.reserve - live + cache_on_host)

    limit = int(bound_plan.plan.max_model_len or batch_shape.length)
    per_token = float(kv_bytes_per_token(bound_plan) + drafter(bound_plan, 1)[1] - drafter(bound_plan, 0)[1])
    capacity = max(0.0, room(aside or fullest.live))  # an engine that profiles goes by that run alone
    tokens = max_total_tokens(bound_plan, capacity, limit) if per_token else None
    return Memory(
        weights_bytes=float(fullest.weights),
        kv_cache_bytes=float(fullest.cache),
        activation_bytes=float(fullest.live),
        overhead_bytes=fullest.reserve,
        total_bytes=float(fullest.total),
        capacity_bytes=bound_plan.device.memory,
        usable_bytes=float(fullest.usable),
        kv_bytes_per_token=per_token,
        kv_capacity_bytes=capacity,
        max_batch_size=_most(lambda batch: room(both(batch)), each) * replicas,
        max_batch_size_prefill=_most(lambda batch: room(prompts(batch)), per_prompt) * replicas,
        max_batch_size_decode=_most(lambda batch: room(answers(batch)), each) * replicas,
        max_total_tokens=_round_down_to_block(bound_plan, tokens) if tokens is not None and tokens < 1e18 else None,
    )


def _scaled(batch_shape: BatchShape, batch: int) -> BatchShape:
    """The same batch shape with another number of sequences on this replica."""
    return batch_shape._replace(
        batch_per_replica=batch, images=Images(*(x * batch / batch_shape.batch_per_replica for x in batch_shape.images))
    )


def drafter(bound_plan: BoundPlan, length: Value) -> tuple[Value, Value]:
    """Weights of the model that drafts, and its cache of a sequence of ``length`` tokens."""
    spec = bound_plan.plan.speculation
    if spec is None or spec.method == "ngram":
        return 0.0, 0.0
    small = speculation.draft_plan(bound_plan)
    if spec.method == "mtp":  # embedding and head are the model's own
        only = tuple(b for b in small.model.blocks if b.stage == "mtp")
        small = small._replace(model=latency.only(small.model, only))
    return weight_bytes(small), cache_bytes(small, length)


def _most(room: Callable[[int], float], each: float) -> int:
    """The largest batch whose caches fit into the room beside it, by halving, because activations stop growing."""
    free = room(1)
    low, high = 0, max(0, min(10**9, int(free // each))) if each > 0 else 10**9 if free >= 0 else 0
    if high and high * each <= room(high):  # the common case: activations that do not depend on it
        return high
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle * each <= room(middle) else (low, middle - 1)
    return low


def _round_down_to_block(bound_plan: BoundPlan, tokens: float) -> int:
    """Engines hand out the cache in blocks; a rest that is less than one is no use."""
    engine = bound_plan.engine
    block = bound_plan.plan.block_size if engine.profile_run or engine.memory_share_of != "device" else 1
    return int(tokens // block) * block
