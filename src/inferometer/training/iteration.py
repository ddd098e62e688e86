"""One optimizer step of training on a whole layout: seconds by part, and FLOPs.

Micro-batches run through the pipeline's schedule (`schedule`): equal stages wait (p - 1)/v times for n micro-batches
over v virtual stages, the bubble. Then gradients are reduced once over the replicas and the optimizer runs. A
collective that runs beside computation hides a documented share of the time that both take.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..costs.binding import step_rows
from ..costs.kernels import LINKED
from ..costs.kernels.source import p_norm
from ..costs.roofline import OpCost
from ..inference.weights import ALONE
from ..network.graph import Block, Model
from ..network.operators import Op
from .backward import GATHER
from .passes import (
    gradient_sum,
    optimizer_step,
    overlap_of,
    stage_passes,
    stage_send,
    training_constants,
    weight_gather,
)
from .schedule import schedule_seconds
from .training_kernels import training_kernels
from .training_memory import offloaded_bytes
from .training_setup import (
    ParameterCounts,
    Training,
    has_master_weights,
    micro_batch_steps,
    parameter_counts,
    rank_kind,
    rank_parameters,
    stage_kind,
)

PRODUCTS = frozenset(
    {"linear", "moe", "prefill_attention", "attention_backward", "scan", "chunk_scan"}
)  # kinds with counted FLOPs
OVERLAPPED = ("all_reduce_backward", f"{GATHER}_again", f"{GATHER}_backward")  # beside products of the backward pass


# ------------------------------------------------------------------ time


class StageTime(NamedTuple):
    """Seconds of one micro-batch on a virtual stage, and its operators."""

    forward: float
    recompute: float
    backward: float
    tp_comm: float
    cp_comm: float
    ep_comm: float
    pp_comm: float
    dp_comm: float
    host: float  # waiting for the host: launches, and copies to its memory
    forward_pass: float  # with communication and waiting in it
    forward_comm: dict[str, float]  # of the forward pass alone, by axis
    forward_host: float  # the same of waiting
    rows: dict[str, list[OpCost]]
    flops: float
    hideable: float  # computation of the backward pass that hides no other collective yet

    @property
    def total(self) -> float:
        """All of it."""
        return self.forward + self.recompute + self.backward + self.communication + self.host

    @property
    def communication(self) -> float:
        """What is not hidden."""
        return self.tp_comm + self.cp_comm + self.ep_comm + self.pp_comm + self.dp_comm

    @property
    def backward_pass(self) -> float:
        """The backward pass, with what is computed again and the communication in it."""
        return self.total - self.forward_pass


class IterationTime(NamedTuple):
    """Seconds of an optimizer step, part by part, on the slowest pipeline rank."""

    forward: float
    backward: float
    recompute: float
    optimizer: float
    tp_comm: float
    cp_comm: float
    ep_comm: float
    pp_comm: float
    dp_comm: float
    pp_bubble: float
    host: float

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(self))


def stage_times(training: Training) -> list[StageTime]:
    """Every virtual stage's micro-batch; equal stages are estimated once."""
    known: dict[object, StageTime] = {}
    times = []
    for index in range(len(training.stages)):
        key = stage_kind(training, index)
        if key not in known:
            known[key] = _stage_time(training, index)
        times.append(known[key])
    return times


def _op_costs(training: Training, index: int, blocks: tuple[Block, ...]) -> list[OpCost]:
    """Operators of one micro-batch on a stage through the cost function, without the engine's own row."""
    stage = training.stages[index]
    part = msgspec.structs.replace(stage.model, blocks=blocks)
    return step_rows(stage._replace(model=part), micro_batch_steps(training.recipe))[:-1]


def _pass_costs(training: Training, index: int, blocks: tuple[Block, ...]) -> list[OpCost]:
    """The same of a pass; where layouts share their costs, operators that another one had are not estimated again."""
    costs = training.costs
    if costs is None or not isinstance(training.recipe.seq_len, int):
        return _op_costs(training, index, blocks)
    rows: list[OpCost] = []
    for block in blocks:
        key = id(block.ops)
        if key not in costs:
            costs[key] = (block.ops, _op_costs(training, index, (block,)))  # held: no other tuple gets this id
        rows += [row._replace(block=block, count=block.count) for row in costs[key][1]]
    return rows


def _seconds(rows: list[OpCost]) -> float:
    return float(sum(row.seconds * row.count for row in rows))


def _on(rows: list[OpCost], axis: str) -> float:
    """Seconds of the collectives of an axis."""
    return _seconds([row for row in rows if row.op.kind in LINKED and row.op.axis == axis])


def _hidden(share: float, comm: float, beside: float) -> float:
    """Seconds of a collective that the computation beside it hides."""
    return share * min(comm, beside)


def _stage_time(training: Training, index: int) -> StageTime:
    overlap = overlap_of(training.recipe)
    forward, recompute, backward = (_pass_costs(training, index, blocks) for blocks in training.passes[index])
    rows = {"forward": forward, "recompute": recompute, "backward": backward}
    compute = {name: _seconds([row for row in costs if row.op.kind not in LINKED]) for name, costs in rows.items()}
    products = _seconds([row for row in backward if row.op.kind in ("linear", "moe")])
    hidden = _hidden(overlap.tp, _seconds([row for row in backward if row.op.name in OVERLAPPED]), products)
    back = backward + recompute
    tp_comm = {"forward": _on(forward, "tp"), "backward": _on(back, "tp") - hidden}
    cp_comm = {"forward": _ring_exposed(forward), "backward": _ring_exposed(back)}
    ep_comm = {
        name: _tokens_exposed(training, _on(costs, "ep"), seconds)
        for name, costs, seconds in (
            ("forward", forward, compute["forward"]),
            ("backward", back, compute["backward"] + compute["recompute"]),
        )
    }
    passes = (
        compute["forward"] + tp_comm["forward"] + cp_comm["forward"] + ep_comm["forward"],
        compute["backward"] + compute["recompute"] + tp_comm["backward"] + cp_comm["backward"] + ep_comm["backward"],
    )
    waits = _waits(training, index, passes)
    hideable = compute["backward"] + compute["recompute"] + waits[1] - hidden
    sends = _op_costs(training, index, _sends(training, index))
    rows["backward"] = backward + sends
    counts = parameter_counts(training, index)
    gathers = _gathers(training, counts) if training.recipe.zero == 3 else []
    reduces = _reduces(training, counts.trained) if _reduces_every_time(training) else []
    before = _seconds(gathers) - _hidden(overlap.dp, _seconds(gathers), compute["forward"] + waits[0])
    behind = _seconds(gathers) + _seconds(reduces)
    hidden_behind = _hidden(overlap.dp, behind, hideable)
    rows["data_parallel"] = reduces + 2 * gathers
    counted = [row for name in ("forward", "recompute", "backward") for row in rows[name] if row.op.kind in PRODUCTS]
    return StageTime(
        forward=compute["forward"],
        recompute=compute["recompute"],
        backward=compute["backward"],
        tp_comm=sum(tp_comm.values()),
        cp_comm=sum(cp_comm.values()),
        ep_comm=sum(ep_comm.values()),
        pp_comm=_seconds(sends),
        dp_comm=before + behind - hidden_behind,
        host=sum(waits),
        forward_pass=passes[0] + waits[0] + before,
        forward_comm={"tp": tp_comm["forward"], "cp": cp_comm["forward"], "ep": ep_comm["forward"], "dp": before},
        forward_host=waits[0],
        rows=rows,
        flops=float(sum(row.work["flops"] * row.count for row in counted)),
        hideable=hideable - hidden_behind,
    )


def _tokens_exposed(training: Training, exchange: float, beside: float) -> float:
    """Seconds of the exchange of tokens that the computation of another micro-batch does not hide."""
    overlaps = training.recipe.overlap_moe_expert_parallel_comm
    hidden = _hidden(overlap_of(training.recipe).ep, exchange, beside)
    return exchange - hidden if overlaps else exchange


def _waits(training: Training, index: int, passes: tuple[float, float]) -> tuple[float, float]:
    """Seconds that the forward and the backward pass wait for the host: for its launches, and for copies to it."""
    blocks, copying = training.passes[index], copy_seconds(training, index)
    forward, backward = (
        launch_wait(training, seconds, launched) + max(0.0, copying - seconds)
        for seconds, launched in zip(passes, (blocks.forward, blocks.recompute + blocks.backward), strict=True)
    )
    return forward, backward


def launch_wait(training: Training, seconds: float, blocks: tuple[Block, ...]) -> float:
    """Seconds that a pass of kernels waits for the host, which launches what is in no CUDA graph."""
    graphs, times = training.recipe.cuda_graph_impl, training_constants().host
    is_known = training.bound_plan.engine.kernels and training_kernels(training.bound_plan.device)
    if graphs == "full_iteration" or not is_known:
        return 0.0
    launching = 0.0
    for block in blocks:
        if graphs == "none":
            launching += block.count * len(block.ops) * times.operator
        mixture = next((op for op in block.ops if op.kind == "moe"), None)
        if mixture is not None:
            experts = block.dims["num_experts"] / training.layout.ep
            tensors = 2 if "biases" in mixture.dims else 1  # biases double an expert's parameters, and their launches
            launching += block.count * (times.mixture + experts * times.expert * tensors)
    return float(p_norm(seconds, launching, 3)) - seconds


def copy_seconds(training: Training, index: int) -> float:
    """Seconds in which the activations of offloaded layers go to the host's memory, or come back."""
    if not training.recipe.cpu_offloading_num_layers:
        return 0.0
    return offloaded_bytes(training, index) / float(training.bound_plan.env["host_bandwidth"])


def _ring_exposed(rows: list[OpCost]) -> float:
    """Seconds of context parallelism that attention does not hide: a ring sends while it computes, others before."""
    ring = _seconds([row for row in rows if row.op.axis == "cp" and row.op.kind == "send"])
    attention = _seconds([row for row in rows if row.op.kind in ("prefill_attention", "attention_backward")])
    return max(0.0, ring - attention) + _on(rows, "cp") - ring


def _sends(training: Training, index: int) -> tuple[Block, ...]:
    """What a virtual stage sends to the next and back for a micro-batch, where computing does not hide it."""
    last = len(training.stages) - 1
    if training.recipe.interleave > 1:  # sent while the next virtual stage computes
        return ()
    model = training.bound_plan.model
    layers = [i for block in training.stages[index].model.blocks if block.stage == "layer" for i in block.layers]
    to_next, to_previous = stage_send(model, max(layers, default=0)), stage_send(model, min(layers, default=0))
    return (*((to_next,) if index < last else ()), *((to_previous,) if index else ()))


def _reduces_every_time(training: Training) -> bool:
    """Whether the gradients of every micro-batch are reduced, so that no rank keeps them all."""
    return training.recipe.zero >= 2 and training.recipe.reduce_every_microbatch


def _reduces(training: Training, counts: ParameterCounts) -> list[OpCost]:
    zero = training.recipe.zero
    return _replica_costs(training, counts, [gradient_sum(zero, experts=experts) for experts in (False, True)])


def _gathers(training: Training, counts: ParameterCounts) -> list[OpCost]:
    return _replica_costs(training, counts, [weight_gather(experts=experts) for experts in (False, True)])


def _replica_costs(training: Training, counts: ParameterCounts, ops: list[Op]) -> list[OpCost]:
    """Collectives of dense weights and of experts, each over the ranks that hold the same."""
    together = training.layout.expert_replicas == training.layout.replicas
    sizes = (counts.total, 0.0) if together else (counts.dense, counts.experts)
    blocks = tuple(_one_op(op, reduced_params=size) for op, size in zip(ops, sizes, strict=True) if size)
    return _op_costs(training, 0, blocks) if blocks else []


def _one_op(op: Op, **dims: float) -> Block:
    return Block("step", _only(op), dims, stage="head", residual=False)


@cache_by_identity(100)
def _only(op: Op) -> tuple[Op, ...]:
    """The one operator of a block; the same tuple every time, so that its formulas are compiled once."""
    return (op,)


class StepEnd(NamedTuple):
    """What a pipeline rank does after its last micro-batch; of communication what is not hidden."""

    reduce: float
    optimizer: float
    gather: float
    rows: list[OpCost]

    @property
    def dp_comm(self) -> float:
        """Sums of gradients, and weights gathered."""
        return self.reduce + self.gather


class EndCosts(NamedTuple):
    """The operators after the last micro-batch of a pipeline rank, whatever of them computation hides."""

    reduces: list[OpCost]  # of gradients that are not reduced yet
    updates: list[OpCost]
    gathers: list[OpCost]  # of weights that the optimizer updated in shards
    overlap: float  # share of collectives that computation hides

    def beside(self, hideable: float, forward: float) -> StepEnd:
        """What is left beside so many seconds of the backward pass, and of the forward pass for what is gathered."""
        reduce = _seconds(self.reduces) - _hidden(self.overlap, _seconds(self.reduces), hideable)
        gather = _seconds(self.gathers) - _hidden(self.overlap, _seconds(self.gathers), forward)
        return StepEnd(reduce, _seconds(self.updates), gather, self.reduces + self.gathers + self.updates)


def end_costs(training: Training, counts: ParameterCounts) -> EndCosts:
    """The end of a step on a rank with so many parameters: ``end_costs(training, rank_parameters(training, 0))``"""
    recipe, trained = training.recipe, counts.trained
    updated = trained.sharded(training) if recipe.zero else trained.total
    optimizer = optimizer_step(training_constants().optimizers[recipe.optimizer], master=has_master_weights(training))
    return EndCosts(
        reduces=[] if _reduces_every_time(training) else _reduces(training, trained),
        updates=_op_costs(training, 0, (_one_op(optimizer, update_params=updated),)),
        gathers=_gathers(training, trained) if recipe.zero in (1, 2) else [],
        overlap=overlap_of(recipe).dp,
    )


def iteration_time(training: Training, times: list[StageTime]) -> tuple[IterationTime, list[OpCost]]:
    """The optimizer step and the operators that run once in it: ``iteration_time(training, stage_times(training))``"""
    n, chunks = training.micro_batches, rank_chunks(training, times)
    slow = chunks[slowest_rank(training, times)]
    passes = schedule_seconds(*pass_seconds(training, times))
    ends = step_ends(training, times)
    end = max(ends, key=lambda one: one.optimizer + one.dp_comm)  # the next step begins on all ranks at once

    def over(part: str) -> float:
        return n * float(sum(getattr(time, part) for time in slow))

    parts = IterationTime(
        forward=over("forward"),
        backward=over("backward"),
        recompute=over("recompute"),
        optimizer=end.optimizer,
        tp_comm=over("tp_comm"),
        cp_comm=over("cp_comm"),
        ep_comm=over("ep_comm"),
        pp_comm=over("pp_comm"),
        dp_comm=over("dp_comm") + end.dp_comm,
        pp_bubble=max(0.0, passes - over("total")) if len(chunks) > 1 else 0.0,
        host=over("host") + training.bound_plan.engine.step_overhead,
    )
    return parts, end.rows


class PassSeconds(NamedTuple):
    """What `schedule.run_schedule` needs to know: seconds by rank and virtual stage."""

    forward: list[list[float]]
    backward: list[list[float]]
    num_microbatches: int
    send: float


def pass_seconds(training: Training, times: list[StageTime]) -> PassSeconds:
    """The passes of every pipeline rank: ``run_schedule(*pass_seconds(training, stage_times(training)))``"""
    is_interleaved = training.recipe.interleave > 1
    sends = _op_costs(training, 0, (stage_send(training.bound_plan.model, 0),)) if is_interleaved else []
    chunks = rank_chunks(training, times)
    return PassSeconds(
        [[time.forward_pass for time in stage] for stage in chunks],
        [[time.backward_pass for time in stage] for stage in chunks],
        training.micro_batches,
        _seconds(sends),
    )


def rank_chunks(training: Training, times: list[StageTime]) -> list[list[StageTime]]:
    """The virtual stages of every pipeline rank."""
    return [[times[i] for i in training.chunks(rank)] for rank in _ranks(training)]


def step_ends(training: Training, times: list[StageTime]) -> list[StepEnd]:
    """What every pipeline rank does after its last micro-batch; equal ones are estimated once."""
    ends: dict[ParameterCounts, StepEnd] = {}
    counts: dict[object, ParameterCounts] = {}
    result = []
    for rank, chunks in enumerate(rank_chunks(training, times)):
        kind = rank_kind(training, rank)
        if kind not in counts:
            counts[kind] = rank_parameters(training, rank)
        held = counts[kind]
        if held not in ends:
            hideable = sum(time.hideable for time in chunks)
            forward = sum(time.forward + time.forward_host for time in chunks)
            ends[held] = end_costs(training, held).beside(hideable, forward)
        result.append(ends[held])
    return result


def _ranks(training: Training) -> range:
    return range(min(training.layout.pp, len(training.stages)))


def slowest_rank(training: Training, times: list[StageTime]) -> int:
    """The pipeline rank whose virtual stages take longest: ``slowest_rank(training, stage_times(training))``"""
    return max(_ranks(training), key=lambda rank: sum(times[i].total for i in training.chunks(rank)))


# ------------------------------------------------------------------ FLOPs


def model_flops(training: Training) -> float:
    """FLOPs that one micro-batch of the model needs, three times its forward products: nothing recomputed or twice."""
    env = {**training.bound_plan.env, **ALONE, "cp": 1}
    one_rank = training.bound_plan._replace(env=env, model=_language_model(training.bound_plan.model))
    forward = stage_passes(one_rank.model, training.recipe).forward
    whole = one_rank._replace(model=msgspec.structs.replace(one_rank.model, blocks=forward))
    recipe = msgspec.structs.replace(training.recipe, context_parallel_size=1)
    rows = step_rows(whole, micro_batch_steps(recipe))
    passes = 3 if training.recipe.lora_rank is None else 2  # frozen weights have no gradients
    return passes * float(sum(row.work["flops"] * row.count for row in rows if row.op.kind in PRODUCTS))


def _language_model(model: Model) -> Model:
    return msgspec.structs.replace(model, blocks=tuple(b for b in model.blocks if b.stage != "vision"))
