"""A training run with every name bound: a request, its recipe, and the passes of every pipeline stage.

training = bind_training(request, Recipe(global_batch_size=64, micro_batch_size=2))
training.stages[0].env["tp"], training.micro_batches
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadValue
from ..base.units import ceil_div
from ..costs import collectives, kernels, parallelism
from ..costs.binding import BoundPlan, bind
from ..costs.parallelism import Place
from ..costs.roofline import field_program
from ..costs.step import Group, Step
from ..inference.request import Request
from ..network.graph import Block
from ..specs.structs import Hardware, Link, Plan
from .backward import FROZEN
from .passes import Recipe, StagePasses, stage_passes
from .pipeline_layout import layer_counts
from .training_kernels import training_source


class TrainLayout(NamedTuple):
    """Ranks of each axis as Megatron-LM counts them: tp × cp × dp × pp GPUs, etp × ep × replicas × pp for experts."""

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int  # expert-parallel ranks
    etp: int  # tensor-parallel ranks of an expert

    @property
    def replicas(self) -> int:
        """Ranks that hold the same dense weights and sum their gradients: dp × cp."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts."""
        return max(1, self.tp * self.replicas // (self.ep * self.etp))

    def plan_info(self) -> dict[str, int]:
        """The axes by the names of their flags."""
        return {
            "data_parallel_size": self.dp,
            "context_parallel_size": self.cp,
            "expert_model_parallel_size": self.ep,
            "expert_tensor_parallel_size": self.etp,
        }


class Training(NamedTuple):
    """A request and its recipe, with every name bound. A rank has the virtual stages ``rank, rank + pp, …``."""

    bound_plan: BoundPlan
    recipe: Recipe
    layout: TrainLayout
    stages: tuple[BoundPlan, ...]  # virtual ones, in the order of the model
    passes: tuple[StagePasses, ...]
    costs: dict[Any, Any] | None = None  # of a micro-batch by operators; layouts of equal tp, cp, ep and etp share them

    @property
    def micro_batches(self) -> int:
        """Of one replica in an optimizer step."""
        return self.recipe.global_batch_size // (self.recipe.micro_batch_size * self.layout.dp)

    def chunks(self, rank: int) -> range:
        """The virtual stages of a pipeline rank."""
        return range(rank, len(self.stages), self.layout.pp)


def train_layout(request: Request, recipe: Recipe) -> TrainLayout:
    """The ranks of each axis; the plan's data-parallel ranks are dp × cp, which hold the same weights.

    Experts follow the dense layers where nothing is said of them.
    """
    plan, cp = request.plan, recipe.context_parallel_size
    tp, dp = plan.tensor_parallel_size, plan.data_parallel_size // cp
    moe = any(op.kind == "moe" for block in request.model.blocks for op in block.ops)
    ep = (tp * cp * dp if plan.enable_expert_parallel else recipe.expert_model_parallel_size) if moe else 1
    etp = recipe.expert_tensor_parallel_size or (tp if ep == 1 else 1)
    return TrainLayout(tp, cp, dp, plan.pipeline_parallel_size, ep, etp if moe else tp)


def bind_training(request: Request, recipe: Recipe) -> Training:
    """Bind the names of a training step: ``bind_training(request, Recipe(context_parallel_size=2)).layout``"""
    layout, plan, device, engine = train_layout(request, recipe), request.plan, request.device, request.engine
    missing = parallelism.missing_link(request.model, plan, device, replicas_meet=True)
    if missing:
        raise BadValue(missing)
    bound_plan = bind(request.model, device, engine, plan, roles=request.roles, efficiency=request.efficiency)
    places = parallelism.places(plan, device) | _places(plan, device, layout)
    env = bound_plan.env
    env |= parallelism.layout_env(msgspec.structs.replace(plan, data_parallel_size=1), request.model)
    env |= _layout_env(layout) if layout.ep > 1 or layout.etp != layout.tp else {}
    for axis in ("dp", "edp", "cp", "ep"):
        link = _replica_link(places[axis], places[axis].ranks) if axis in ("dp", "edp") else None
        env[f"{axis}_bandwidth"] = link.bandwidth if link else places[axis].bandwidth
        env[f"{axis}_latency"] = link.latency if link else places[axis].link.latency
    env |= {
        "cp": layout.cp,
        "replicas": layout.replicas,
        "expert_replicas": layout.expert_replicas,
        "exchange_groups": exchange_groups(places["ep"]),
        "grad_bytes": 4.0 if recipe.grad_dtype == "fp32" else 2.0,
        "param_bytes": env["mlp_weight_bytes"] if recipe.fp8_param_gather else env["act_bytes"],
    }
    sources = kernels.sources(engine, request.efficiency, places, device)
    if engine.kernels and not request.efficiency:
        sources = (*sources[:-1], training_source(engine, device, recipe), sources[-1])
    bound_plan = bound_plan._replace(sources=sources)
    counts = stage_layer_counts(request, recipe)
    stages = tuple(bound_plan._replace(model=model) for model in parallelism.cut_layers(request.model, counts))
    passes = (
        stage_passes(
            stage.model,
            recipe,
            sequence_parallel=plan.sequence_parallel,
            eager=plan.attention == "eager",
            context_parallel=layout.cp > 1,
        )
        for stage in stages
    )
    return Training(bound_plan, recipe, layout, stages, tuple(passes))


def _places(plan: Plan, device: Hardware, layout: TrainLayout) -> dict[str, Place]:
    """Where the ranks of training's axes sit: tp ranks are neighbours, then cp, then dp; of experts etp, then ep."""
    place = functools.partial(parallelism.place, plan, device)
    return {
        "cp": place(layout.cp, stride=layout.tp),
        "dp": place(layout.replicas, stride=layout.tp),
        "ep": place(layout.ep, stride=layout.etp, scattered=True),
        "edp": place(layout.expert_replicas, stride=layout.ep * layout.etp),
    }


def exchange_groups(place: Place) -> int:
    """Copies of a token go to groups of ranks, each of them once: to nodes over the network, else to ranks."""
    nodes = ceil_div(place.ranks, int(place.per_node))
    return nodes if nodes > 1 else place.ranks


def _layout_env(layout: TrainLayout) -> dict[str, float]:
    """Experts over ep ranks, each of them sliced over etp: the tokens of all ep × etp ranks meet there."""
    return {
        "dp": layout.ep * layout.etp / layout.tp,
        "ep": layout.ep,
        "ep_spread": parallelism.expected_maximum(layout.ep),
        "moe_tp": layout.etp,
        "a2a": layout.ep,
        "gathered": 0.0,
    }


def stage_layer_counts(request: Request, recipe: Recipe) -> list[int]:
    """Layers of every virtual stage; with more stages than layers those that can be, which `illegal_reason` refuses."""
    layers, pp = request.model.num_layers, request.plan.pipeline_parallel_size
    if recipe.pipeline_layout:
        return list(recipe.pipeline_layout)
    return layer_counts(
        layers,
        min(pp, max(layers, 1)),
        chunks=recipe.interleave,
        first=recipe.first_stage_layers,
        last=recipe.last_stage_layers,
        embedding=recipe.account_for_embedding,
        loss=recipe.account_for_loss,
    )


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
    layout = train_layout(request, recipe)
    gpus, available = layout.tp * layout.replicas * layout.pp, plan.nodes * plan.gpus_per_node
    if gpus > available:
        of_context = f" × cp {layout.cp}" if layout.cp > 1 else ""
        return (
            f"tp {layout.tp}{of_context} × pp {pp} × dp {layout.dp} = {gpus} GPUs, but "
            f"{plan.nodes} × {plan.gpus_per_node} = {available} are available"
        )
    if v > 1 and pp == 1:
        return f"interleave {v} needs pipeline stages: give -pp"
    if pp * v > max(request.model.num_layers, 1) + recipe.account_for_embedding + recipe.account_for_loss:
        stages = f"{pp} stages × {v} virtual ones" if v > 1 else f"pp {pp}"
        return f"{stages} needs at least {pp * v} layers, but the model has {request.model.num_layers}"
    if v > 1 and micro_batches % pp:
        return f"interleaved stages need micro-batches in multiples of pp {pp}, not {micro_batches}"
    return _illegal_ranks(request, recipe, layout) or parallelism.illegal_reason(
        request.model,
        msgspec.structs.replace(plan, data_parallel_size=1, enable_expert_parallel=layout.ep > 1),
        request.device,
    )


def _illegal_ranks(request: Request, recipe: Recipe, layout: TrainLayout) -> str:
    """Why experts or sequences cannot be split over their ranks."""
    group = layout.ep * layout.etp
    if layout.tp * layout.replicas % group:
        ranks = f"{layout.tp * layout.replicas} ranks of tp {layout.tp} × cp {layout.cp} × dp {layout.dp}"
        return f"the {ranks} do not divide by ep {layout.ep} × etp {layout.etp}"
    for block in request.model.blocks:
        experts = block.dims.get("num_experts")
        if experts and experts % layout.ep:
            return f"{int(experts)} experts do not divide by ep {layout.ep}"
        heads = block.dims.get("num_attention_heads")
        if heads and recipe.cp_comm_type == "a2a" and heads % (layout.tp * layout.cp):
            return f"{int(heads)} attention heads do not divide by tp {layout.tp} × cp {layout.cp} (cp_comm_type a2a)"
    if layout.cp > 1 and recipe.length % (2 * layout.cp):
        return f"{recipe.length:,} tokens do not divide into 2 × cp {layout.cp} pieces"
    return ""


def micro_batch_steps(recipe: Recipe) -> Step | list[Step]:
    """A micro-batch as a step; a list has one step per layer (token pruning). Every token has a loss."""
    if isinstance(recipe.seq_len, int):
        return _micro_batch(recipe, recipe.seq_len)
    return [_micro_batch(recipe, n) for n in recipe.seq_len]


def _micro_batch(recipe: Recipe, length: int) -> Step:
    """Of a context-parallel rank its share of every sequence: queries from both ends, so that pairs are shared, too."""
    length = max(1, length // recipe.packed_sequences)
    rows = recipe.micro_batch_size * recipe.packed_sequences / recipe.context_parallel_size
    return Step((Group(rows, length, 0, length),))


class ParameterCounts(NamedTuple):
    """Parameters that a rank of a stage holds when nothing is sharded over replicas."""

    dense: float
    experts: float
    largest: float  # of its largest layer
    frozen: float = 0.0  # of `dense` and `experts`, what is not trained

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.experts

    @property
    def trained(self) -> ParameterCounts:
        """Those that have gradients: all, unless adapters are trained alone."""
        return ParameterCounts(self.total - self.frozen, 0.0, self.largest) if self.frozen else self

    def sharded(self, training: Training) -> float:
        """What is left when the ranks that hold the same weights share."""
        return self.dense / training.layout.replicas + self.experts / training.layout.expert_replicas

    def plus(self, other: ParameterCounts) -> ParameterCounts:
        """Of two virtual stages together."""
        largest = max(self.largest, other.largest)
        dense, experts = self.dense + other.dense, self.experts + other.experts
        return ParameterCounts(dense, experts, largest, self.frozen + other.frozen)


def stage_kind(training: Training, index: int) -> tuple[Any, ...]:
    """What virtual stages have in common that take equally long and hold equally much."""
    pruned = not isinstance(training.recipe.seq_len, int)
    blocks = (b for b in training.stages[index].model.blocks if b.stage == "layer")
    layers = tuple((id(b.ops), b.layers if pruned else b.count) for b in blocks)
    return index > 0, index < len(training.stages) - 1, layers


def rank_kind(training: Training, rank: int) -> tuple[Any, ...]:
    """What pipeline ranks with the same stages have in common."""
    return tuple(stage_kind(training, index) for index in training.chunks(rank))


def rank_parameters(training: Training, rank: int) -> ParameterCounts:
    """Of all virtual stages of a pipeline rank: ``rank_parameters(training, 0).total``"""
    first, *others = (parameter_counts(training, index) for index in training.chunks(rank))
    return functools.reduce(ParameterCounts.plus, others, first)


def parameter_counts(training: Training, index: int) -> ParameterCounts:
    """Of one rank of a virtual stage, every weight counted as one byte: ``parameter_counts(training, 0).total``"""
    sums, largest, held = {True: 0.0, False: 0.0}, 0.0, 0.0  # by whether they are experts
    for block in training.stages[index].model.blocks:
        if block.stage == "vision":
            continue
        dense, experts, frozen = _block_parameters(training, block)
        sums[False] += dense * block.count
        sums[True] += experts * block.count
        held += frozen * block.count
        largest = max(largest, dense + experts)
    return ParameterCounts(sums[False], sums[True], largest, held)


def _block_parameters(training: Training, block: Block) -> tuple[float, float, float]:
    """Dense weights and experts of a block, and what of both is frozen; layouts that share costs share them, too."""
    known = {} if training.costs is None else training.costs
    key = ("parameters", id(block.ops))
    if key not in known:
        env = training.bound_plan.env
        names = {k: 1.0 if k.endswith("_weight_bytes") or k == "norm_bytes" else v for k, v in env.items()}
        sums, frozen = {True: 0.0, False: 0.0}, 0.0
        for op, stored in zip(block.ops, field_program(block.ops, "stored")({**names, **block.dims}), strict=True):
            sums[op.role == "experts"] += float(stored)
            frozen += float(stored) if FROZEN in op.dims else 0.0
        known[key] = (sums[False], sums[True], frozen, block.ops)  # held: no other tuple gets this id
    dense, experts, frozen, _ = known[key]
    return dense, experts, frozen


def has_master_weights(training: Training) -> bool:
    """Whether weights have fewer bits than fp32, so that the optimizer keeps fp32 copies."""
    return bool(training.bound_plan.env["act_bytes"] < 4)
