"""Bytes on every pipeline stage of a training run, and what would make it fit.

Activations follow from what each operator keeps for its gradient (`backward.stash`) and from the recomputation policy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ..base.symbols import Expr, Program, constant
from ..base.symbols import names as s
from ..base.units import ceil_div, size
from ..costs.binding import step_env
from ..costs.step import Step
from ..inference import memory
from ..inference.request import Request
from ..network.graph import Block
from ..specs.arguments import flag
from ..specs.plan_args import short_flag
from .backward import stashed_bytes
from .passes import RECOMPUTE, Recipe, training_constants
from .schedule import pass_order
from .training_setup import (
    Training,
    bind_training,
    has_master_weights,
    illegal_reason,
    micro_batch_steps,
    rank_parameters,
)


class StageMemory(NamedTuple):
    """Bytes on a GPU of one pipeline stage."""

    weights: float
    gradients: float
    optimizer: float
    activations: float  # kept from the forward to the backward pass
    working: float  # alive only while one block runs: what is recomputed, and gradients of activations
    overhead: float

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(self))


def rank_memory(training: Training, rank: int) -> StageMemory:
    """A pipeline rank's bytes under the recipe's ZeRO stage, optimizer and recomputation."""
    recipe, env, counts = training.recipe, training.bound_plan.env, rank_parameters(training, rank)
    eight_bit = recipe.precision not in ("bf16", "fp16", "fp32")  # keeps 8-bit copies of the weights, both ways
    optimizer = training_constants().optimizers[recipe.optimizer]
    states = optimizer.states + (optimizer.master if has_master_weights(training) else 0)
    shards = counts.sharded(training)
    held = counts.total
    if recipe.zero == 3:
        held = min(held, shards + training_constants().zero.gathered_layers * counts.largest)
    accumulates = training.micro_batches > 1 and not recipe.reduce_every_microbatch
    return StageMemory(
        weights=held * (env["param_bytes"] + 2 * eight_bit),
        gradients=(shards if recipe.zero >= 2 and not accumulates else counts.total) * env["grad_bytes"],
        optimizer=(shards if recipe.zero >= 1 else counts.total) * states,
        activations=activation_bytes(training, rank),
        working=max(working_bytes(training, index) for index in training.chunks(rank)),
        overhead=training.bound_plan.engine.memory_reserve,
    )


def activation_bytes(training: Training, rank: int) -> float:
    """What a pipeline rank keeps of all micro-batches in flight, where it is most."""
    kept = [kept_bytes(training, index) for index in training.chunks(rank)]
    ranks = min(training.layout.pp, len(training.stages))
    now = most = 0.0
    for _, chunk, is_backward in pass_order(rank, ranks, len(kept), min(training.micro_batches, 2 * ranks)):
        now += -kept[chunk] if is_backward else kept[chunk]
        most = max(most, now)
    return most


def kept_bytes(training: Training, index: int) -> float:
    """What a virtual stage keeps of one micro-batch from its forward to its backward pass."""
    mode = training.recipe.recompute
    return sum(sum(_per_layer(training, b, _stashed(b, mode))) for b in training.passes[index].forward)


def working_bytes(training: Training, index: int) -> float:
    """The block that needs most while it runs: what it computes again, and tensors that live only inside it."""
    mode = training.recipe.recompute
    peaks = [0.0]
    for block in training.passes[index].forward:
        recomputed = stashed_bytes(block.ops) - _stashed(block, mode) if block.stage == "layer" else constant(0)
        peaks += _per_layer(training, block, recomputed + memory.live_peak(block))
    return max(peaks)


def _stashed(block: Block, recompute: str) -> Expr:
    if block.stage != "layer" or recompute == "none":
        return _as_formula(stashed_bytes(block.ops))
    if recompute == "selective":
        return _as_formula(stashed_bytes(block.ops, core=False))
    return s.tokens / s.sp * s.hidden_size * s.act_bytes


def _per_layer(training: Training, block: Block, formula: Expr) -> list[float]:
    """A formula's value in every layer of a block."""
    steps = micro_batch_steps(training.recipe)
    program = _program(formula)

    def value(step: Step) -> float:
        return float(program({**step_env(training.bound_plan, step), **block.dims})[0])

    if isinstance(steps, Step):
        return [value(steps)] * block.count
    if block.layers:
        return [value(steps[i]) for i in block.layers]
    return [value(steps[-1 if block.stage == "head" else 0])]


@functools.lru_cache(2000)
def _program(formula: Expr) -> Program:
    return Program([formula])


def _as_formula(value: object) -> Expr:
    return value if isinstance(value, Expr) else constant(float(value))  # type: ignore[arg-type]


def fullest_stage(training: Training) -> tuple[StageMemory, int]:
    """The bytes of the pipeline stage that needs most, and its index."""
    ranks = [rank_memory(training, rank) for rank in range(min(training.layout.pp, len(training.stages)))]
    index = max(range(len(ranks)), key=lambda i: ranks[i].total)
    return ranks[index], index


# ------------------------------------------------------------------ what would fit


def fits_with(request: Request, recipe: Recipe, held: StageMemory, usable: float) -> str:
    """``needs 130 GB of 83.3 GB usable per GPU …; fits with --recompute full or --zero 1``"""
    needs = f"needs {size(held.total)} of {size(usable)} usable per GPU"
    ways: dict[str, str] = {}  # the smallest change of each kind, by its flag
    for flags, other, changed in _single_changes(request, recipe):
        if _fits(other, changed, usable):
            ways.setdefault(flags.split()[0], flags)
    if ways:
        return f"{needs}; fits with {' or '.join(ways.values())}"
    best = _combined_changes(request, recipe, usable)
    return f"{needs}; no single change makes it fit" + (f", but {best} together do" if best else "")


def _single_changes(request: Request, recipe: Recipe) -> Iterator[tuple[str, Request, Recipe]]:
    """Plans one change away, the mildest of each kind first."""
    plan = request.plan
    for mode in RECOMPUTE[RECOMPUTE.index(recipe.recompute) + 1 :]:
        yield f"{flag('recompute')} {mode}", request, msgspec.structs.replace(recipe, recompute=mode)
    if plan.data_parallel_size > 1:
        for stage in range(recipe.zero + 1, 4):
            yield f"{flag('zero')} {stage}", request, msgspec.structs.replace(recipe, zero=stage)
    for micro in (m for m in range(recipe.micro_batch_size - 1, 0, -1) if recipe.micro_batch_size % m == 0):
        yield f"{flag('micro_batch_size')} {micro}", request, msgspec.structs.replace(recipe, micro_batch_size=micro)
    for field in ("tensor_parallel_size", "pipeline_parallel_size"):
        most = (
            request.plan.gpus_per_node if field == "tensor_parallel_size" else 64
        )  # tensor parallelism does not pay across nodes
        for ranks in (r for r in (2, 4, 8, 16, 32, 64) if r <= most):
            wider = _with_ranks(request, recipe, field, ranks)
            if wider is not None:
                yield f"{short_flag(field)} {ranks}", wider, recipe


def _with_ranks(request: Request, recipe: Recipe, field: str, ranks: int) -> Request | None:
    """The request on more ranks, on as many nodes as they need; None if it has as many, or they are illegal."""
    if ranks <= getattr(request.plan, field):
        return None
    plan = msgspec.structs.replace(request.plan, **{field: ranks})
    plan = msgspec.structs.replace(plan, nodes=max(plan.nodes, ceil_div(plan.gpus, plan.gpus_per_node)))
    other = request._replace(plan=plan)
    each = recipe.micro_batch_size * (plan.data_parallel_size // recipe.context_parallel_size)
    return None if illegal_reason(other, recipe, recipe.global_batch_size // each) else other


def _combined_changes(request: Request, recipe: Recipe, usable: float) -> str:
    """Everything that costs no GPUs at once, then more and more tensor-parallel ranks and stages with it."""
    flags, other = [f"{flag('recompute')} full"], msgspec.structs.replace(recipe, recompute="full", micro_batch_size=1)
    if recipe.micro_batch_size > 1:
        flags.append(f"{flag('micro_batch_size')} 1")
    if request.plan.data_parallel_size > 1:
        flags, other = [*flags, f"{flag('zero')} 3"], msgspec.structs.replace(other, zero=3)
    if _fits(request, other, usable):
        return " and ".join(flags)
    for tp in (2, 4, 8):
        wide = _with_ranks(request, other, "tensor_parallel_size", tp) or request
        for pp in (1, 2, 4, 8, 16, 32, 64):
            deep = wide if pp == 1 else _with_ranks(wide, other, "pipeline_parallel_size", pp)
            if deep is not None and _fits(deep, other, usable):
                sizes = [f"-tp {deep.plan.tensor_parallel_size}"] + ([f"-pp {pp}"] if pp > 1 else [])
                return " and ".join([*flags, *sizes])
    return ""


def _fits(request: Request, recipe: Recipe, usable: float) -> bool:
    return fullest_stage(bind_training(request, recipe))[0].total <= usable
