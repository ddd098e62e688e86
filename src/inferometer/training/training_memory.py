"""Bytes on every pipeline stage of a training run, and what would make it fit.

Activations follow from what each operator keeps for its gradient (`recompute.kept_tensors`), less what is recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.symbols import Expr, Program, constant, evaluate, maximum
from ..base.symbols import names as s
from ..base.units import ceil_div, size
from ..costs.binding import step_env
from ..costs.step import Step
from ..inference.request import Request
from ..network.graph import Block
from ..network.operators import Op
from ..specs.arguments import flag
from ..specs.plan_args import short_flag
from .backward import FUSED_LOSS, backward_workspace, stash, weight_shapes
from .passes import RECOMPUTE, Recipe, training_constants
from .recompute import is_zero, kept_bytes_of, kept_tensors, recomputed_layers, recomputed_ops
from .schedule import pass_order
from .training_setup import (
    ParameterCounts,
    Training,
    bind_training,
    has_master_weights,
    illegal_reason,
    micro_batch_steps,
    rank_kind,
    rank_parameters,
)


class StageMemory(NamedTuple):
    """Bytes on a GPU of one pipeline stage."""

    weights: float
    gradients: float
    optimizer: float
    activations: float  # kept from the forward to the backward pass
    working: float  # alive beside them at the peak: what is recomputed, gradients of activations, workspaces
    buffers: float  # that the engine keeps: placeholders of weight gradients
    overhead: float

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(self))


def rank_memory(training: Training, rank: int) -> StageMemory:
    """A pipeline rank's bytes under the recipe's ZeRO stage, optimizer and recomputation."""
    states = rank_states(training, rank_parameters(training, rank))
    peak = activation_peak(training, rank)
    return StageMemory(
        *states,
        activations=peak.kept,
        working=peak.working,
        buffers=weight_gradient_buffers(training, rank),
        overhead=training.bound_plan.engine.memory_reserve,
    )


class RankStates(NamedTuple):
    """Bytes of a rank that do not depend on its micro-batches."""

    weights: float
    gradients: float
    optimizer: float


def rank_states(training: Training, counts: ParameterCounts) -> RankStates:
    """What a rank holds of so many parameters: ``rank_states(training, rank_parameters(training, 0)).optimizer``"""
    recipe, env = training.recipe, training.bound_plan.env
    rounded = recipe.precision not in ("bf16", "fp16", "fp32") and not recipe.fp8_param_gather
    copies = 2 * env["mlp_weight_bytes"] if rounded else 0  # of the weights in the products' format, both ways
    optimizer = training_constants().optimizers[recipe.optimizer]
    states = optimizer.states + (optimizer.master if has_master_weights(training) else 0)
    shards = counts.sharded(training)
    held = counts.total
    if recipe.zero == 3:
        held = min(held, shards + training_constants().zero.gathered_layers * counts.largest)
    trained = counts.trained
    accumulates = training.micro_batches > 1 and not recipe.reduce_every_microbatch
    return RankStates(
        weights=held * (env["param_bytes"] * (2 if recipe.fp8_param_gather else 1) + copies),
        gradients=(trained.sharded(training) if recipe.zero >= 2 and not accumulates else trained.total)
        * env["grad_bytes"],
        optimizer=(trained.sharded(training) if recipe.zero >= 1 else trained.total) * states,
    )


class ActivationPeak(NamedTuple):
    """Activations of a pipeline rank where they need most."""

    kept: float  # bytes of all micro-batches in flight
    working: float  # bytes alive beside them
    in_flight: tuple[int, ...]  # micro-batches that each of its virtual stages keeps when `kept` is reached


def activation_peak(training: Training, rank: int) -> ActivationPeak:
    """What a pipeline rank keeps of all micro-batches in flight, and how much more is alive, where it needs most."""
    parts = [stage_activations(training, index) for index in training.chunks(rank)]
    ranks = min(training.layout.pp, len(training.stages))
    now = most = peak = 0.0
    flying, in_flight = [0] * len(parts), (0,) * len(parts)
    for _, chunk, is_backward in pass_order(rank, ranks, len(parts), min(training.micro_batches, 2 * ranks)):
        if not is_backward:
            now, flying[chunk] = now + parts[chunk].kept, flying[chunk] + 1
        if now > most:
            most, in_flight = now, tuple(flying)
        peak = max(peak, now + is_backward * parts[chunk].working)
        if is_backward:
            now, flying[chunk] = now - parts[chunk].kept, flying[chunk] - 1
    return ActivationPeak(most, peak - most, in_flight)


class StageActivations(NamedTuple):
    """Bytes of one micro-batch on a virtual stage."""

    kept: float  # from its forward to its backward pass
    working: float  # alive beside them while its backward pass runs, where that is most


def stage_activations(training: Training, index: int) -> StageActivations:
    """What a virtual stage keeps of a micro-batch, and what its backward pass needs beside that.

    The backward pass goes through the layers from the last one, each of which frees what it kept when it is done.
    """
    layers = sorted(_layer_activations(training, index))
    away = offloaded_layers(training, index)
    freed = working = 0.0
    for place, kept, beside in reversed(layers):
        working = max(working, beside - freed)
        freed += 0.0 if place in away else kept
    return StageActivations(freed, working)


def offloaded_bytes(training: Training, index: int) -> float:
    """Activations of a micro-batch that a virtual stage keeps in the host's memory."""
    away = offloaded_layers(training, index)
    return sum(kept for place, kept, _ in _layer_activations(training, index) if place in away)


def offloaded_layers(training: Training, index: int) -> frozenset[float]:
    """Layers of a virtual stage whose activations are in the host's memory; the last ones are needed again at once."""
    number = training.recipe.cpu_offloading_num_layers
    if not number:
        return frozenset()
    layers = sorted(i for block in training.passes[index].forward if block.stage == "layer" for i in block.layers)
    alive = training_constants().offload.layers_alive
    return frozenset(float(i) for i in layers[: max(0, min(number, len(layers) - alive))])


def _layer_activations(training: Training, index: int) -> Iterator[tuple[float, float, float]]:
    """Of every layer of a virtual stage: its place, what it keeps, and what its backward pass needs beside that."""
    recipe, blocks = training.recipe, training.passes[index].forward
    chosen = recomputed_layers(blocks, recipe.recompute_method, recipe.recompute_num_layers)
    first, unit = min(chosen, default=0), recipe.recompute_num_layers or 1
    unit = unit if recipe.recompute_method == "uniform" else 1
    for block in blocks:
        places: tuple[float, ...] = block.layers or (-1.0 if block.stage == "embed" else math.inf,)
        whole = block.stage == "layer" and recipe.recompute == "full"
        plain = _values(training, block, False) if not whole or unit > 1 or set(places) - chosen else []
        again = _values(training, block, True) if whole else plain
        for place, (kept, beside), (kept_again, beside_again) in zip(places, plain or again, again, strict=True):
            if place not in chosen or unit == 1:
                yield place, *((kept_again, beside_again) if place in chosen else (kept, beside))
            else:  # the first layer of a unit keeps the unit's input; the last one begins with all of the unit again
                position = int(place - first) % unit
                last = position == unit - 1 or place == max(chosen)
                yield place, 0.0 if position else kept_again, (beside_again + position * kept if last else beside)


def _values(training: Training, block: Block, full: bool) -> list[tuple[float, float]]:
    """Bytes that each layer of a block keeps and needs beside that, perhaps with the whole of it recomputed."""
    steps = micro_batch_steps(training.recipe)
    modules = training.recipe.modules if block.stage == "layer" else ()
    program = _block_program(block.ops, block.residual, modules, full)

    def value(step: Step) -> tuple[float, float]:
        kept, beside = program({**step_env(training.bound_plan, step), **block.dims})
        return float(kept), float(beside)

    if isinstance(steps, Step):
        return [value(steps)] * block.count
    if block.layers:
        return [value(steps[i]) for i in block.layers]
    return [value(steps[-1 if block.stage == "head" else 0])]


@cache_by_identity(2000)
def _block_program(ops: tuple[Op, ...], residual: bool, modules: tuple[str, ...], full: bool) -> Program:
    return Program(list(block_activations(Block("", ops, {}, residual=residual), modules, full)))


def block_activations(block: Block, modules: tuple[str, ...] = (), full: bool = False) -> tuple[Expr, Expr]:
    """What a block keeps for its backward pass, and what is alive beside that while it runs, as formulas.

    At each operator, from the last one, are alive: gradients of the tensors between those that are done and those to
    come, what the operators to come keep, and what recomputed modules have computed again.
    """
    recomputed = recomputed_ops(block.ops, modules)
    kept = _input_of_layer() if full else kept_bytes_of(block.ops, recomputed)
    tensors = kept_tensors(block.ops)
    left = {tensor.name: tensor.reader for tensor in kept_tensors(block.ops, recomputed)}
    again = max(recomputed.again | recomputed.partly, default=-1)
    peak = constant(0)
    for index, gradients in enumerate(_gradients(block)):
        alive = gradients
        for tensor in tensors:
            ready = full or tensor.name in left or index <= max(again, tensor.reader)
            if tensor.reader <= index and ready:
                alive = alive + tensor.size
        peak = maximum(peak, alive)
    return kept, maximum(peak - kept, 0)


def _input_of_layer() -> Expr:
    return s.tokens / s.sp * s.hidden_size * s.act_bytes


def _gradients(block: Block) -> list[Expr]:
    """Gradients of activations that are alive while each operator of a block runs backward, with its workspaces."""
    last: dict[int, int] = {}  # operator -> the last one that reads its output
    reads: list[int] = []  # the operator whose output each reads first
    where: dict[str, int] = {}
    previous = -1
    for index, op in enumerate(block.ops):
        writers = [previous] if op.inputs is None else [where[name] for name in op.inputs if name in where]
        last |= dict.fromkeys(writers, index)
        reads.append(writers[0] if writers else -1)
        where[op.name] = index
        previous = previous if is_zero(op.output) else index
    stream = _input_of_layer() if block.residual else constant(0)
    in_place = {i for i, reader in last.items() if block.ops[reader].name == FUSED_LOSS}  # written over what is kept
    alive = []
    for index, op in enumerate(block.ops):
        total = stream + backward_workspace(op)
        if op.kind == "linear" and reads[index] >= 0 and block.ops[reads[index]].kind == "norm":
            total = total + 2 * (stash(op).input - block.ops[reads[index]].output)  # gathered over sequence shards
        for i, other in enumerate(block.ops[: index + 1]):
            alive_between = last.get(i, -1) >= index and i not in in_place
            if (i == index or alive_between) and other.kind != "loss":  # a loss has no gradient
                total = total + other.output
        alive.append(total)
    return alive


def fullest_stage(training: Training) -> tuple[StageMemory, int]:
    """The bytes of the pipeline stage that needs most, and its index.

    Of stages with the same layers the first one, which keeps most micro-batches.
    """
    kinds: dict[object, int] = {}
    for rank in range(min(training.layout.pp, len(training.stages))):
        kinds.setdefault(rank_kind(training, rank), rank)
    held = {rank: rank_memory(training, rank) for rank in kinds.values()}
    index = max(held, key=lambda rank: held[rank].total)
    return held[index], index


def stage_memories(training: Training) -> list[StageMemory]:
    """The bytes of every pipeline stage: ``stage_memories(training)[0].total``"""
    return [rank_memory(training, rank) for rank in range(min(training.layout.pp, len(training.stages)))]


def fullest_of(ranks: list[StageMemory]) -> tuple[StageMemory, int]:
    """The bytes of the stage that needs most, and its index: ``fullest_of(stage_memories(training))``"""
    index = max(range(len(ranks)), key=lambda i: ranks[i].total)
    return ranks[index], index


def weight_gradient_buffers(training: Training, rank: int) -> float:
    """Placeholders of weight gradients: fused products add to the sum, and hand autograd one tensor of each shape."""
    if not training.bound_plan.engine.kernels or not training_constants().placeholders.weight_gradients:
        return 0.0
    shapes: set[tuple[float, float]] = set()
    for index in training.chunks(rank):
        for block in training.passes[index].forward:
            names = {**training.bound_plan.env, **block.dims}
            shapes |= {
                (float(evaluate(rows, names)), float(evaluate(columns, names)))
                for op in block.ops
                for rows, columns in weight_shapes(op)
            }
    return float(training.bound_plan.env["param_bytes"] * sum(rows * columns for rows, columns in shapes))


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
