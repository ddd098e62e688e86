"""One optimizer step of training on a whole layout: seconds by part, and FLOPs.

With stage times tₖ, n micro-batches and v virtual stages a step takes n·max t + (Σt - max t)/v (the bubble), then the
replicas' gradients meet and the optimizer runs. A collective that runs beside computation hides a documented share of
the time that both take.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..costs.binding import step_rows
from ..costs.kernels import LINKED
from ..costs.roofline import OpCost
from ..inference import memory
from ..network.graph import Block, Model
from ..network.operators import Op
from .backward import GATHER
from .passes import figures, gradient_sum, handover, overlap_of, passes_of, update, weight_gather
from .training_setup import Training, has_master, parameters, steps_of

PRODUCTS = frozenset({"linear", "moe", "prefill_attention", "attention_backward", "scan"})  # what FLOPs are counted of
BESIDE = ("all_reduce_backward", f"{GATHER}_again", f"{GATHER}_backward")  # run beside products of the backward pass


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
    free: float  # computation of the backward pass that no tensor-parallel collective hides behind yet

    @property
    def total(self) -> float:
        """All of it."""
        return self.forward + self.recompute + self.backward + self.tp_comm + self.ep_comm + self.pp_comm + self.dp_comm


class StepTime(NamedTuple):
    """Seconds of an optimizer step, part by part, on the stage that holds up the others."""

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
    """Every pipeline stage's micro-batch; stages alike are priced once."""
    found: dict[object, StageTime] = {}
    times = []
    for index, stage in enumerate(training.stages):
        pruned = not isinstance(training.recipe.seq_len, int)
        layers = tuple((id(b.ops), b.layers if pruned else b.count) for b in stage.model.blocks if b.stage == "layer")
        alike = (index > 0, index < len(training.stages) - 1, layers)
        if alike not in found:
            found[alike] = _stage_time(training, index)
        times.append(found[alike])
    return times


def _price(training: Training, index: int, blocks: tuple[Block, ...]) -> list[OpCost]:
    """Operators through the cost function, without the engine's own row."""
    stage = training.stages[index]
    part = msgspec.structs.replace(stage.model, blocks=blocks)
    return step_rows(stage._replace(model=part), steps_of(training.recipe))[:-1]


def _seconds(rows: list[OpCost]) -> float:
    return float(sum(row.seconds * row.count for row in rows))


def _hidden(share: float, comm: float, beside: float) -> float:
    return share * min(comm, beside)


def _stage_time(training: Training, index: int) -> StageTime:
    recipe, over = training.recipe, overlap_of(training.recipe)
    ahead, again, back = (_price(training, index, blocks) for blocks in training.passes[index])
    rows = {"forward": ahead, "recompute": again, "backward": back}
    busy = {word: _seconds([r for r in found if r.op.kind not in LINKED]) for word, found in rows.items()}
    linked = [row for found in rows.values() for row in found if row.op.kind in LINKED]
    products = _seconds([row for row in back if row.op.kind in ("linear", "moe")])
    beside = _seconds([row for row in linked if row.op.name in BESIDE])
    gone = _hidden(over.tp, beside, products)
    free = busy["backward"] + busy["recompute"] - gone
    sends = _price(training, index, _sends(training, index))
    rows["backward"] = back = back + sends
    dp, dp_rows = _sharded_comm(training, index, busy["forward"], free) if recipe.zero >= 2 else (0.0, [])
    rows["data_parallel"] = dp_rows
    done = [row for word in ("forward", "recompute", "backward") for row in rows[word] if row.op.kind in PRODUCTS]
    return StageTime(
        busy["forward"],
        busy["recompute"],
        busy["backward"],
        _seconds([row for row in linked if row.op.axis == "tp"]) - gone,
        _seconds([row for row in linked if row.op.axis == "ep"]),
        _seconds(sends),
        dp,
        rows,
        float(sum(row.work["flops"] * row.count for row in done)),
        free,
    )


def _sends(training: Training, index: int) -> tuple[Block, ...]:
    """What a stage sends ahead and back for a micro-batch."""
    last = len(training.stages) - 1
    model, v = training.bound_plan.model, training.recipe.interleave
    layers = [i for block in training.stages[index].model.blocks if block.stage == "layer" for i in block.layers]
    ahead, back = handover(model, max(layers), v), handover(model, min(layers), v)
    return (*((ahead,) if index < last else ()), *((back,) if index else ()))


def _sharded_comm(training: Training, index: int, forward: float, free: float) -> tuple[float, list[OpCost]]:
    """ZeRO-2 and 3 reduce the gradients of every micro-batch, since no rank keeps them all; 3 gathers weights twice."""
    over = overlap_of(training.recipe).dp
    sums = _collective(training, index, gradient_sum(training.recipe.zero))
    ahead = _collective(training, index, weight_gather()) if training.recipe.zero == 3 else []
    back = _seconds(sums) + _seconds(ahead)
    exposed = _seconds(ahead) - _hidden(over, _seconds(ahead), forward)
    exposed += back - _hidden(over, back, free)
    return exposed, sums + 2 * ahead


def _collective(training: Training, index: int, op: Op) -> list[OpCost]:
    """One collective of the replicas, over the parameters of a rank that they have in common."""
    found = parameters(training, index)
    own = found.dense if training.bound_plan.plan.enable_expert_parallel else found.total
    return _price(training, index, (_alone(op, reduced_params=own),))


def _alone(op: Op, **dims: float) -> Block:
    return Block("step", (op,), dims, stage="head", residual=False)


def step_time(training: Training, times: list[StageTime]) -> tuple[StepTime, list[OpCost]]:
    """The whole step, and the operators that run once in it."""
    recipe, over = training.recipe, overlap_of(training.recipe).dp
    slow = max(times, key=lambda t: t.total)
    index, n = times.index(slow), training.micro_batches
    bubble = (sum(t.total for t in times) - slow.total) / recipe.interleave
    found = parameters(training, index)
    sums = _collective(training, index, gradient_sum(recipe.zero)) if recipe.zero < 2 else []
    gathers = _collective(training, index, weight_gather()) if recipe.zero in (1, 2) else []
    exposed = _seconds(sums) - _hidden(over, _seconds(sums), slow.free)
    exposed += _seconds(gathers) - _hidden(over, _seconds(gathers), slow.forward)
    share = found.sharded(training) if recipe.zero else found.total
    kind = figures().optimizers[recipe.optimizer]
    updates = _price(training, index, (_alone(update(kind, master=has_master(training)), update_params=share),))
    parts = StepTime(
        n * slow.forward,
        n * slow.backward,
        n * slow.recompute,
        _seconds(updates),
        n * slow.tp_comm,
        n * slow.ep_comm,
        n * slow.pp_comm,
        n * slow.dp_comm + exposed,
        bubble,
        training.bound_plan.engine.step_overhead,
    )
    return parts, sums + gathers + updates


# ------------------------------------------------------------------ FLOPs


def model_flops(training: Training) -> float:
    """What one micro-batch of the model needs, three times its forward products: no recomputation, nothing twice."""
    env = {**training.bound_plan.env, **memory.ALONE}
    alone = training.bound_plan._replace(env=env, model=_text(training.bound_plan.model))
    blocks = passes_of(alone.model, training.recipe).forward
    whole = alone._replace(model=msgspec.structs.replace(alone.model, blocks=blocks))
    rows = step_rows(whole, steps_of(training.recipe))
    return 3 * float(sum(row.work["flops"] * row.count for row in rows if row.op.kind in PRODUCTS))


def _text(model: Model) -> Model:
    return msgspec.structs.replace(model, blocks=tuple(b for b in model.blocks if b.stage != "vision"))
