"""A training run with every name bound: a request, its recipe, and the passes of every pipeline stage.

training = bind_training(request, Recipe(global_batch_size=64, micro_batch_size=2))
training.stages[0].env["tp"], training.micro_batches
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ..base.errors import BadValue
from ..base.symbols import Value, ceil_of, evaluate, maximum_of, where
from ..costs import collectives, kernels, parallelism
from ..costs.binding import BoundPlan, bind, stage_plans
from ..costs.kernels import Source, Terms, assumed
from ..costs.parallelism import Place
from ..costs.step import Group, Step
from ..inference.request import Request
from ..network.operators import Op
from ..specs.structs import Engine, Hardware, Link
from .passes import Recipe, StagePasses, stage_passes

TILES = ((128, 256), (256, 128))  # large tiles of 16-bit products on tensor cores; the better one is taken


class Training(NamedTuple):
    """A request and its recipe, with every name bound."""

    bound_plan: BoundPlan
    recipe: Recipe
    stages: tuple[BoundPlan, ...]
    passes: tuple[StagePasses, ...]

    @property
    def micro_batches(self) -> int:
        """Of one replica in an optimizer step."""
        return self.recipe.global_batch_size // (self.recipe.micro_batch_size * self.bound_plan.plan.data_parallel_size)

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.bound_plan.plan.data_parallel_size


def bind_training(request: Request, recipe: Recipe) -> Training:
    """Bind the names of a training step. Experts are spread over all tp·dp ranks, or every replica has them all."""
    plan, device, engine = request.plan, request.device, request.engine
    missing = parallelism.missing_link(request.model, plan, device, replicas_meet=True)
    if missing:
        raise BadValue(missing)
    bound_plan = bind(request.model, device, engine, plan, roles=request.roles, efficiency=request.efficiency)
    env = bound_plan.env
    if not plan.enable_expert_parallel:
        env |= parallelism.layout_env(msgspec.structs.replace(plan, data_parallel_size=1), request.model)
    places = parallelism.places(plan, device)
    replicas_per_node = max(1.0, places["ep"].per_node // plan.tensor_parallel_size)  # that share a rank's link
    places["dp"] = places["ep"]._replace(per_node=replicas_per_node, ranks=plan.data_parallel_size, scattered=False)
    link = _replica_link(places["dp"], plan.data_parallel_size)
    env |= {
        "dp_bandwidth": link.bandwidth,
        "dp_latency": link.latency,
        "replicas": plan.data_parallel_size,
        "grad_bytes": 4.0 if recipe.grad_dtype == "fp32" else 2.0,
        "param_bytes": env["act_bytes"],
    }
    sources = kernels.sources(engine, request.efficiency, places, device)
    if engine.kernels and not request.efficiency:
        sources = (*sources[:-1], wave_quantization(engine, device), sources[-1])
    bound_plan = bound_plan._replace(sources=sources)
    stages = stage_plans(bound_plan)
    eager = plan.attention == "eager"
    passes = (
        stage_passes(stage.model, recipe, sequence_parallel=plan.sequence_parallel, eager=eager) for stage in stages
    )
    return Training(bound_plan, recipe, stages, tuple(passes))


def _replica_link(place: Place, replicas: int) -> Link:
    """What joins the same rank of all replicas: inside a node its link, beyond it the network links of those inside."""
    inside = float(collectives.bandwidth(place.link, min(replicas, place.per_node)))
    if replicas <= place.per_node:
        return Link(bandwidth=inside, latency=place.link.latency)
    rails = place.per_node * place.network.bandwidth
    return Link(bandwidth=min(inside, rails), latency=place.network.latency)


def illegal_reason(request: Request, recipe: Recipe, micro_batches: int) -> str:
    """Why the layout cannot be trained on; empty if it can."""
    plan, v, pp = request.plan, recipe.interleave, request.plan.pipeline_parallel_size
    one_replica = plan if plan.enable_expert_parallel else msgspec.structs.replace(plan, data_parallel_size=1)
    available = plan.nodes * plan.gpus_per_node
    if plan.gpus > available:
        return (
            f"tp {plan.tensor_parallel_size} × pp {pp} × dp {plan.data_parallel_size} = {plan.gpus} GPUs, but "
            f"{plan.nodes} × {plan.gpus_per_node} = {available} are available"
        )
    if v > 1 and pp == 1:
        return f"interleave {v} needs pipeline stages: give -pp"
    if v > 1 and request.model.num_layers % (pp * v):
        return f"{request.model.num_layers} layers do not divide into {pp} stages × {v} virtual ones"
    if v > 1 and micro_batches % pp:
        return f"interleaved stages need micro-batches in multiples of pp {pp}, not {micro_batches}"
    return parallelism.illegal_reason(request.model, one_replica, request.device)


def micro_batch_steps(recipe: Recipe) -> Step | list[Step]:
    """A micro-batch as a step; a list has one step per layer (token pruning). Every token has a loss."""
    if isinstance(recipe.seq_len, int):
        return _micro_batch(recipe, recipe.seq_len)
    return [_micro_batch(recipe, n) for n in recipe.seq_len]


def _micro_batch(recipe: Recipe, length: int) -> Step:
    return Step((Group(recipe.micro_batch_size, length, 0, length),))


class ParameterCounts(NamedTuple):
    """Parameters that a rank of a stage holds when nothing is sharded over replicas."""

    dense: float
    experts: float
    largest: float  # of its largest layer

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.experts

    def sharded(self, training: Training) -> float:
        """What is left when replicas share; experts that are spread over all ranks have no second copy to share."""
        n = training.replicas
        return self.dense / n + self.experts / (1 if training.bound_plan.plan.enable_expert_parallel else n)


def parameter_counts(training: Training, index: int) -> ParameterCounts:
    """Of one rank of a pipeline stage, every weight counted as one byte: ``parameter_counts(training, 0).total``"""
    stage = training.stages[index]
    env = {k: 1.0 if k.endswith("_weight_bytes") or k == "norm_bytes" else v for k, v in stage.env.items()}
    sums, largest = {True: 0.0, False: 0.0}, 0.0  # by whether they are experts
    for block in stage.model.blocks:
        if block.stage == "vision":
            continue
        names, layer = {**env, **block.dims}, 0.0
        for op in block.ops:
            stored = float(evaluate(op.work.stored, names))
            sums[op.role == "experts"] += stored * block.count
            layer += stored
        largest = max(largest, layer)
    return ParameterCounts(sums[False], sums[True], largest)


def has_master_weights(training: Training) -> bool:
    """Whether weights have fewer bits than fp32, so that the optimizer keeps fp32 copies."""
    return bool(training.bound_plan.env["act_bytes"] < 4)


# ------------------------------------------------------------------ wave quantization


def wave_occupancy(m: Value, n: Value, groups: Value, units: int) -> Value:
    """Mean share of the compute units that work while a product's output tiles run over them in waves.

    A product of 2,048 × 6,144 outputs is 384 tiles of 128 × 256, which 108 units compute in 4 waves of which the last
    is half empty: ``wave_occupancy(2048, 6144, 1, 108)  # 0.89``. One with fewer tiles than units is split along k.
    """
    best: Value = 0.0
    for height, width in TILES:
        tiles = ceil_of(m / height) * ceil_of(n / width) * groups
        best = maximum_of(best, tiles / (maximum_of(ceil_of(tiles / units), 1) * units))
    return where(tiles >= units, best, 1.0)


def wave_quantization(engine: Engine, device: Hardware) -> Source:
    """The engine's efficiency of products, at the mean occupancy of the device: one curve for all sizes."""
    base = assumed(engine)

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        d = dims()
        occupancy = wave_occupancy(d["m"], d["n"], d["groups"], device.compute_units)
        return base.answer(op, dims, terms._replace(compute=terms.compute / occupancy))

    def note(op: Op) -> str:
        return f"{base.note(op)}, in waves of tiles over {device.compute_units} units"

    return Source("assumed", answer, note, frozenset({"linear"}))
