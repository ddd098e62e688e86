"""One optimizer step of training on a whole layout: seconds by part, and FLOPs.

With stage times tₖ, n micro-batches and v virtual stages a step takes n·max t + (Σt - max t)/v (the bubble), then the
replicas' gradients are reduced and the optimizer runs. A collective that runs beside computation hides a documented
share of the time that both take.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..costs.binding import step_rows
from ..costs.kernels import LINKED
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
from .training_setup import Training, has_master_weights, micro_batch_steps, parameter_counts

PRODUCTS = frozenset(
    {"linear", "moe", "prefill_attention", "attention_backward", "scan", "chunk_scan"}
)  # kinds with counted FLOPs
OVERLAPPED = ("all_reduce_backward", f"{GATHER}_again", f"{GATHER}_backward")  # beside products of the backward pass


# ------------------------------------------------------------------ time


class StageTime(NamedTuple):
    """Seconds of one micro-batch on a stage, and its operators."""

    forward: float
    recompute: float
    backward: float
    tp_comm: float
    ep_comm: float
    pp_comm: float
    dp_comm: float
    rows: dict[str, list[OpCost]]
    flops: float
    hideable: float  # computation of the backward pass that hides no tensor-parallel collective yet

    @property
    def total(self) -> float:
        """All of it."""
        return self.forward + self.recompute + self.backward + self.tp_comm + self.ep_comm + self.pp_comm + self.dp_comm


class IterationTime(NamedTuple):
    """Seconds of an optimizer step, part by part, on the slowest stage."""

    forward: float
    backward: float
    recompute: float
    optimizer: float
    tp_comm: float
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
    """Every pipeline stage's micro-batch; equal stages are estimated once."""
    known: dict[object, StageTime] = {}
    times = []
    for index, stage in enumerate(training.stages):
        pruned = not isinstance(training.recipe.seq_len, int)
        layers = tuple((id(b.ops), b.layers if pruned else b.count) for b in stage.model.blocks if b.stage == "layer")
        key = (index > 0, index < len(training.stages) - 1, layers)
        if key not in known:
            known[key] = _stage_time(training, index)
        times.append(known[key])
    return times


def _op_costs(training: Training, index: int, blocks: tuple[Block, ...]) -> list[OpCost]:
    """Operators of one micro-batch on a stage through the cost function, without the engine's own row."""
    stage = training.stages[index]
    part = msgspec.structs.replace(stage.model, blocks=blocks)
    return step_rows(stage._replace(model=part), micro_batch_steps(training.recipe))[:-1]


def _seconds(rows: list[OpCost]) -> float:
    return float(sum(row.seconds * row.count for row in rows))


def _hidden(share: float, comm: float, beside: float) -> float:
    """Seconds of a collective that the computation beside it hides."""
    return share * min(comm, beside)


def _stage_time(training: Training, index: int) -> StageTime:
    recipe, overlap = training.recipe, overlap_of(training.recipe)
    forward, recompute, backward = (_op_costs(training, index, blocks) for blocks in training.passes[index])
    rows = {"forward": forward, "recompute": recompute, "backward": backward}
    compute = {name: _seconds([row for row in costs if row.op.kind not in LINKED]) for name, costs in rows.items()}
    collectives = [row for costs in rows.values() for row in costs if row.op.kind in LINKED]
    products = _seconds([row for row in backward if row.op.kind in ("linear", "moe")])
    overlapped = _seconds([row for row in collectives if row.op.name in OVERLAPPED])
    hidden = _hidden(overlap.tp, overlapped, products)
    hideable = compute["backward"] + compute["recompute"] - hidden
    sends = _op_costs(training, index, _sends(training, index))
    rows["backward"] = backward + sends
    dp_comm, rows["data_parallel"] = 0.0, []
    if recipe.zero >= 2:
        dp_comm, rows["data_parallel"] = _sharded_comm(training, index, compute["forward"], hideable)
    counted = [row for name in ("forward", "recompute", "backward") for row in rows[name] if row.op.kind in PRODUCTS]
    return StageTime(
        forward=compute["forward"],
        recompute=compute["recompute"],
        backward=compute["backward"],
        tp_comm=_seconds([row for row in collectives if row.op.axis == "tp"]) - hidden,
        ep_comm=_seconds([row for row in collectives if row.op.axis == "ep"]),
        pp_comm=_seconds(sends),
        dp_comm=dp_comm,
        rows=rows,
        flops=float(sum(row.work["flops"] * row.count for row in counted)),
        hideable=hideable,
    )


def _sends(training: Training, index: int) -> tuple[Block, ...]:
    """What a stage sends to the next and back for a micro-batch."""
    last = len(training.stages) - 1
    model, v = training.bound_plan.model, training.recipe.interleave
    layers = [i for block in training.stages[index].model.blocks if block.stage == "layer" for i in block.layers]
    to_next, to_previous = stage_send(model, max(layers), v), stage_send(model, min(layers), v)
    return (*((to_next,) if index < last else ()), *((to_previous,) if index else ()))


def _sharded_comm(training: Training, index: int, forward: float, hideable: float) -> tuple[float, list[OpCost]]:
    """ZeRO-2 and 3 reduce the gradients of every micro-batch, since no rank keeps them all; 3 gathers weights twice."""
    overlap = overlap_of(training.recipe).dp
    reduces = _collective(training, index, gradient_sum(training.recipe.zero))
    gathers = _collective(training, index, weight_gather()) if training.recipe.zero == 3 else []
    in_backward = _seconds(reduces) + _seconds(gathers)
    exposed = _seconds(gathers) - _hidden(overlap, _seconds(gathers), forward)
    exposed += in_backward - _hidden(overlap, in_backward, hideable)
    return exposed, reduces + 2 * gathers


def _collective(training: Training, index: int, op: Op) -> list[OpCost]:
    """One collective of the replicas, over the parameters of a rank that they have in common."""
    counts = parameter_counts(training, index)
    common = counts.dense if training.bound_plan.plan.enable_expert_parallel else counts.total
    return _op_costs(training, index, (_one_op(op, reduced_params=common),))


def _one_op(op: Op, **dims: float) -> Block:
    return Block("step", (op,), dims, stage="head", residual=False)


def iteration_time(training: Training, times: list[StageTime]) -> tuple[IterationTime, list[OpCost]]:
    """The optimizer step and the operators that run once in it: ``iteration_time(training, stage_times(training))``"""
    recipe, overlap = training.recipe, overlap_of(training.recipe).dp
    slow = max(times, key=lambda t: t.total)
    index, n = times.index(slow), training.micro_batches
    bubble = (sum(t.total for t in times) - slow.total) / recipe.interleave
    counts = parameter_counts(training, index)
    reduces = _collective(training, index, gradient_sum(recipe.zero)) if recipe.zero < 2 else []
    gathers = _collective(training, index, weight_gather()) if recipe.zero in (1, 2) else []
    exposed = _seconds(reduces) - _hidden(overlap, _seconds(reduces), slow.hideable)
    exposed += _seconds(gathers) - _hidden(overlap, _seconds(gathers), slow.forward)
    updated = counts.sharded(training) if recipe.zero else counts.total
    optimizer = optimizer_step(training_constants().optimizers[recipe.optimizer], master=has_master_weights(training))
    updates = _op_costs(training, index, (_one_op(optimizer, update_params=updated),))
    parts = IterationTime(
        forward=n * slow.forward,
        backward=n * slow.backward,
        recompute=n * slow.recompute,
        optimizer=_seconds(updates),
        tp_comm=n * slow.tp_comm,
        ep_comm=n * slow.ep_comm,
        pp_comm=n * slow.pp_comm,
        dp_comm=n * slow.dp_comm + exposed,
        pp_bubble=bubble,
        host=training.bound_plan.engine.step_overhead,
    )
    return parts, reduces + gathers + updates


# ------------------------------------------------------------------ FLOPs


def model_flops(training: Training) -> float:
    """FLOPs that one micro-batch of the model needs, three times its forward products: nothing recomputed or twice."""
    env = {**training.bound_plan.env, **ALONE}
    one_rank = training.bound_plan._replace(env=env, model=_language_model(training.bound_plan.model))
    forward = stage_passes(one_rank.model, training.recipe).forward
    whole = one_rank._replace(model=msgspec.structs.replace(one_rank.model, blocks=forward))
    rows = step_rows(whole, micro_batch_steps(training.recipe))
    return 3 * float(sum(row.work["flops"] * row.count for row in rows if row.op.kind in PRODUCTS))


def _language_model(model: Model) -> Model:
    return msgspec.structs.replace(model, blocks=tuple(b for b in model.blocks if b.stage != "vision"))
