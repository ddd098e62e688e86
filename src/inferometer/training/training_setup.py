"""A training run with every name bound: a request, its recipe, and the passes of every pipeline stage."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..base.symbols import evaluate
from ..costs import kernels, parallelism
from ..costs.binding import BoundPlan, bind, stage_plans
from ..costs.parallelism import Place
from ..costs.step import Group, Step
from ..inference.request import Request
from ..specs.structs import Link
from .passes import Passes, Recipe, passes_of
from .waves import waves


class Training(NamedTuple):
    """A request and its recipe, with every name bound."""

    bound_plan: BoundPlan
    recipe: Recipe
    stages: tuple[BoundPlan, ...]
    passes: tuple[Passes, ...]

    @property
    def micro_batches(self) -> int:
        """Of one replica in an optimizer step."""
        return self.recipe.global_batch_size // (self.recipe.micro_batch_size * self.bound_plan.plan.data_parallel_size)

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.bound_plan.plan.data_parallel_size


def training_of(request: Request, recipe: Recipe) -> Training:
    """Bind the names of a training step. Experts are spread over all tp·dp ranks, or every replica has them all."""
    plan, device, engine = request.plan, request.device, request.engine
    bound_plan = bind(request.model, device, engine, plan, roles=request.roles, efficiency=request.efficiency)
    env = bound_plan.env
    if not plan.enable_expert_parallel:
        env |= parallelism.layout_env(msgspec.structs.replace(plan, data_parallel_size=1), request.model)
    places = parallelism.places(plan, device)
    near = max(1.0, places["ep"].per_node // plan.tensor_parallel_size)  # replicas of a rank inside a node
    places["dp"] = places["ep"]._replace(per_node=near, ranks=plan.data_parallel_size, scattered=False)
    wire = _replica_link(places["dp"], plan.data_parallel_size)
    env |= {
        "dp_bandwidth": wire.bandwidth,
        "dp_latency": wire.latency,
        "replicas": plan.data_parallel_size,
        "grad_bytes": 4.0 if recipe.grad_dtype == "fp32" else 2.0,
        "param_bytes": env["act_bytes"],
    }
    answers = kernels.sources(engine, request.efficiency, places, device)
    if engine.kernels and not request.efficiency:
        answers = (*answers[:-1], waves(engine, device), answers[-1])
    bound_plan = bound_plan._replace(sources=answers)
    cut = stage_plans(bound_plan)
    eager = plan.attention == "eager"
    found = tuple(passes_of(c.model, recipe, sequence_parallel=plan.sequence_parallel, eager=eager) for c in cut)
    return Training(bound_plan, recipe, cut, found)


def _replica_link(place: Place, replicas: int) -> Link:
    """What joins the same rank of all replicas: inside a node its link, beyond it the network links of those inside."""
    if replicas <= place.per_node:
        return place.link
    rails = place.per_node * place.network.bandwidth
    return Link(bandwidth=min(place.link.bandwidth, rails), latency=place.network.latency)


def illegal(request: Request, recipe: Recipe, micro_batches: int) -> str:
    """Why the layout cannot be trained on; empty if it can."""
    plan, v, pp = request.plan, recipe.interleave, request.plan.pipeline_parallel_size
    alone = plan if plan.enable_expert_parallel else msgspec.structs.replace(plan, data_parallel_size=1)
    room = plan.nodes * plan.gpus_per_node
    if plan.gpus > room:
        return (
            f"tp {plan.tensor_parallel_size} × pp {pp} × dp {plan.data_parallel_size} = {plan.gpus} GPUs, but "
            f"{plan.nodes} × {plan.gpus_per_node} = {room} are there"
        )
    if v > 1 and pp == 1:
        return f"interleave {v} needs pipeline stages to interleave: give -pp"
    if v > 1 and request.model.num_layers % (pp * v):
        return f"{request.model.num_layers} layers do not divide into {pp} stages × {v} virtual ones"
    if v > 1 and micro_batches % pp:
        return f"interleaved stages need micro-batches in multiples of pp {pp}, not {micro_batches}"
    return parallelism.illegal_reason(request.model, alone, request.device)


def steps_of(recipe: Recipe) -> Step | list[Step]:
    """A micro-batch; a list has one step per layer (token pruning). Every token has a loss."""
    if isinstance(recipe.seq_len, int):
        return _micro(recipe, recipe.seq_len)
    return [_micro(recipe, n) for n in recipe.seq_len]


def _micro(recipe: Recipe, length: int) -> Step:
    return Step((Group(recipe.micro_batch_size, length, 0, length),))


class Parameters(NamedTuple):
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


def parameters(training: Training, index: int) -> Parameters:
    """Of one rank of a stage."""
    stage = training.stages[index]
    env = {k: 1.0 if k.endswith("_weight_bytes") or k == "norm_bytes" else v for k, v in stage.env.items()}
    sums, largest = {True: 0.0, False: 0.0}, 0.0
    for block in stage.model.blocks:
        if block.stage == "vision":
            continue
        names, mine = {**env, **block.dims}, 0.0
        for op in block.ops:
            held = float(evaluate(op.work.stored, names))
            sums[op.role == "experts"] += held * block.count
            mine += held
        largest = max(largest, mine)
    return Parameters(sums[False], sums[True], largest)


def has_master(training: Training) -> bool:
    """Whether weights have fewer bits than fp32, so that the optimizer keeps its own."""
    return bool(training.bound_plan.env["act_bytes"] < 4)
