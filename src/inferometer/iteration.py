"""One optimizer step of training on a whole layout: seconds by part, FLOPs, and bytes on every pipeline stage.

With stage times tₖ, n micro-batches and v virtual stages a step takes n·max t + (Σt - max t)/v (the bubble), then the
replicas' gradients meet and the optimizer runs. A collective that runs beside computation hides a documented share of
the time that both take.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from . import memory, parallel
from .backward import GATHER, kept
from .cost import OpCost
from .evaluate import Setup, bound, prepare, stages, step_rows
from .graph import Block, Model
from .operators import Op
from .profiles import LINKED
from .request import Request
from .spec import Link
from .steps import Group, Step
from .symbols import Expr, Program, constant, evaluate
from .symbols import names as s
from .training import Passes, Recipe, figures, gradient_sum, handover, passes_of, update, weight_gather

PRODUCTS = frozenset({"linear", "moe", "prefill_attention", "attention_backward", "scan"})  # what FLOPs are counted of
BESIDE = ("all_reduce_backward", f"{GATHER}_again", f"{GATHER}_backward")  # run beside products of the backward pass


class Training(NamedTuple):
    """A request and its recipe, with every name bound."""

    setup: Setup
    recipe: Recipe
    stages: tuple[Setup, ...]
    passes: tuple[Passes, ...]

    @property
    def micro_batches(self) -> int:
        """Of one replica in an optimizer step."""
        return self.recipe.global_batch_size // (self.recipe.micro_batch_size * self.setup.plan.data_parallel_size)

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.setup.plan.data_parallel_size


def training_of(asked: Request, recipe: Recipe) -> Training:
    """Bind the names of a training step. Experts are spread over all tp·dp ranks, or every replica has them all."""
    setup = prepare(asked.model, asked.device, asked.engine, asked.plan, roles=asked.roles, efficiency=asked.efficiency)
    plan, env = setup.plan, setup.env
    if not plan.enable_expert_parallel:
        env |= parallel.sizes(msgspec.structs.replace(plan, data_parallel_size=1), asked.model)
    wire = _replica_link(setup)
    env |= {
        "dp_bandwidth": wire.bandwidth, "dp_latency": wire.latency, "replicas": plan.data_parallel_size,
        "grad_bytes": 4.0 if recipe.grad_dtype == "fp32" else 2.0, "param_bytes": env["act_bytes"],
    }  # fmt: skip
    cut = stages(setup)
    eager = plan.attention == "eager"
    found = tuple(passes_of(c.model, recipe, sequence_parallel=plan.sequence_parallel, eager=eager) for c in cut)
    return Training(setup, recipe, cut, found)


def _replica_link(setup: Setup) -> Link:
    """What joins the same rank of all replicas: inside a node its link, beyond it the network links of those inside."""
    plan, place = setup.plan, parallel.places(setup.plan, setup.device)["ep"]
    near = place.per_node // plan.tensor_parallel_size
    if plan.data_parallel_size <= near:
        return place.link
    rails = max(1, near) * place.network.bandwidth
    return Link(bandwidth=min(place.link.bandwidth, rails), latency=place.network.latency, devices=place.network.devices)


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

    @property
    def total(self) -> float:
        """All of it."""
        return (self.forward + self.recompute + self.backward + self.tp_comm + self.ep_comm + self.pp_comm
                + self.dp_comm)  # fmt: skip


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


def steps_of(recipe: Recipe) -> Step | list[Step]:
    """A micro-batch; a list has one step per layer (token pruning). Every token has a loss."""
    if isinstance(recipe.seq_len, int):
        return _micro(recipe, recipe.seq_len)
    return [_micro(recipe, n) for n in recipe.seq_len]


def _micro(recipe: Recipe, length: int) -> Step:
    return Step((Group(recipe.micro_batch_size, length, 0, length),))


def stage_times(training: Training) -> list[StageTime]:
    """Every pipeline stage's micro-batch."""
    return [_stage_time(training, index) for index in range(len(training.stages))]


def _price(training: Training, index: int, blocks: tuple[Block, ...], **more: float) -> list[OpCost]:
    """Operators through the cost function, without the engine's own row."""
    stage = training.stages[index]
    part = msgspec.structs.replace(stage.model, blocks=blocks)
    return step_rows(stage._replace(model=part, env={**stage.env, **more}), steps_of(training.recipe))[:-1]


def _seconds(rows: list[OpCost]) -> float:
    return float(sum(row.seconds * row.count for row in rows))


def _hidden(share: float, comm: float, beside: float) -> float:
    return share * min(comm, beside)


def _stage_time(training: Training, index: int) -> StageTime:
    recipe, over = training.recipe, figures().overlap
    ahead, again, back = (_price(training, index, blocks) for blocks in training.passes[index])
    rows = {"forward": ahead, "recompute": again, "backward": back}
    busy = {word: _seconds([r for r in found if r.op.kind not in LINKED]) for word, found in rows.items()}
    linked = [row for found in rows.values() for row in found if row.op.kind in LINKED]
    products = _seconds([row for row in back if row.op.kind in ("linear", "moe")])
    beside = _seconds([row for row in linked if row.op.name in BESIDE])
    sends = _price(training, index, _sends(training, index))
    rows["backward"] = back = back + sends
    dp, dp_rows = _sharded_comm(training, index, busy) if recipe.zero >= 2 else (0.0, [])
    rows["data_parallel"] = dp_rows
    done = [row for word in ("forward", "recompute", "backward") for row in rows[word] if row.op.kind in PRODUCTS]
    return StageTime(
        busy["forward"], busy["recompute"], busy["backward"],
        _seconds([row for row in linked if row.op.axis == "tp"]) - _hidden(over.tp, beside, products),
        _seconds([row for row in linked if row.op.axis == "ep"]),
        _seconds(sends), dp, rows, float(sum(row.work["flops"] * row.count for row in done)),
    )  # fmt: skip


def _sends(training: Training, index: int) -> tuple[Block, ...]:
    """What a stage sends ahead and back for a micro-batch."""
    last = len(training.stages) - 1
    model, v = training.setup.model, training.recipe.interleave
    layers = [i for block in training.stages[index].model.blocks if block.stage == "layer" for i in block.layers]
    ahead, back = handover(model, max(layers), v), handover(model, min(layers), v)
    return (*((ahead,) if index < last else ()), *((back,) if index else ()))


def _sharded_comm(training: Training, index: int, busy: dict[str, float]) -> tuple[float, list[OpCost]]:
    """ZeRO-2 and 3 reduce the gradients of every micro-batch, since no rank keeps them all; 3 gathers weights twice."""
    over = figures().overlap.dp
    sums = _collective(training, index, gradient_sum(training.recipe.zero))
    ahead = _collective(training, index, weight_gather()) if training.recipe.zero == 3 else []
    back = _seconds(sums) + _seconds(ahead)
    exposed = _seconds(ahead) - _hidden(over, _seconds(ahead), busy["forward"])
    exposed += back - _hidden(over, back, busy["backward"] + busy["recompute"])
    return exposed, sums + 2 * ahead


def _collective(training: Training, index: int, op: Op) -> list[OpCost]:
    """One collective of the replicas, over the parameters of a rank that they have in common."""
    found = parameters(training, index)
    own = found.dense if training.setup.plan.enable_expert_parallel else found.total
    return _price(training, index, (_alone(op),), reduced_params=own)


def _alone(op: Op) -> Block:
    return Block("step", (op,), {}, stage="head", residual=False)


def step_time(training: Training, times: list[StageTime]) -> tuple[StepTime, list[OpCost]]:
    """The whole step, and the operators that run once in it."""
    recipe, over = training.recipe, figures().overlap.dp
    slow = max(times, key=lambda t: t.total)
    index, n = times.index(slow), training.micro_batches
    bubble = (sum(t.total for t in times) - slow.total) / recipe.interleave
    found = parameters(training, index)
    sums = _collective(training, index, gradient_sum(recipe.zero)) if recipe.zero < 2 else []
    gathers = _collective(training, index, weight_gather()) if recipe.zero in (1, 2) else []
    exposed = _seconds(sums) - _hidden(over, _seconds(sums), slow.backward + slow.recompute)
    exposed += _seconds(gathers) - _hidden(over, _seconds(gathers), slow.forward)
    share = found.sharded(training) if recipe.zero else found.total
    kind = figures().optimizers[recipe.optimizer]
    updates = _price(training, index, (_alone(update(kind, master=_master(training))),), update_params=share)
    parts = StepTime(
        n * slow.forward, n * slow.backward, n * slow.recompute, _seconds(updates), n * slow.tp_comm,
        n * slow.ep_comm, n * slow.pp_comm, n * slow.dp_comm + exposed, bubble, training.setup.engine.step_overhead,
    )  # fmt: skip
    return parts, sums + gathers + updates


# ------------------------------------------------------------------ memory


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
        return self.dense / n + self.experts / (1 if training.setup.plan.enable_expert_parallel else n)


def parameters(training: Training, index: int) -> Parameters:
    """Of one rank; where embedding and head are one table on different stages, each has a copy."""
    stage = training.stages[index]
    env = {k: 1.0 if k.endswith("_weight_bytes") or k == "norm_bytes" else v for k, v in stage.env.items()}
    sums, largest = {True: 0.0, False: 0.0}, 0.0
    for block in stage.model.blocks:
        if block.stage == "vision":
            continue
        names, mine = {**env, **block.dims}, 0.0
        for op in block.ops:
            held = float(evaluate(op.work.stored, names))
            if op.name == "lm_head" and not held and index:
                held = float(evaluate(op.dims["n"] * op.dims["k"], names))
            sums[op.role == "experts"] += held * block.count
            mine += held
        largest = max(largest, mine)
    return Parameters(sums[False], sums[True], largest)


def _master(training: Training) -> bool:
    return bool(training.setup.env["act_bytes"] < 4)


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


def stage_memory(training: Training, index: int) -> StageMemory:
    """A stage's bytes under the recipe's ZeRO stage, optimizer and recomputation."""
    recipe, env, found = training.recipe, training.setup.env, parameters(training, index)
    each = env["param_bytes"] + 2 * (recipe.precision not in ("bf16", "fp16", "fp32"))  # and 8-bit copies, both ways
    kind = figures().optimizers[recipe.optimizer]
    states = kind.states + (kind.master if _master(training) else 0)
    shards = found.sharded(training)
    held = found.total
    if recipe.zero == 3:
        held = min(held, shards + figures().zero.gathered_layers * found.largest)
    return StageMemory(
        weights=held * each,
        gradients=(shards if recipe.zero >= 2 else found.total) * env["grad_bytes"],
        optimizer=(shards if recipe.zero >= 1 else found.total) * states,
        activations=activation_bytes(training, index),
        working=working_bytes(training, index),
        overhead=training.setup.engine.memory_reserve,
    )


def in_flight(training: Training, index: int) -> float:
    """Micro-batches whose activations a stage holds at its fullest, one forward one backward, perhaps interleaved."""
    p, v = len(training.stages), training.recipe.interleave
    parts = p - index if v == 1 else 2 * (p - index - 1) + (v - 1) * p + 1
    return min(parts, training.micro_batches * v) / v


def activation_bytes(training: Training, index: int) -> float:
    """What a stage keeps of all micro-batches under way."""
    flying = {"layer": in_flight(training, index), "head": 1.0,
              "embed": float(min(len(training.stages), training.micro_batches))}  # fmt: skip
    mode = training.recipe.recompute
    return sum(flying[b.stage] * sum(_each(training, b, _held(b, mode))) for b in training.passes[index].forward)


def working_bytes(training: Training, index: int) -> float:
    """The block that needs most while it runs: what it computes again, and tensors that live only inside it."""
    mode = training.recipe.recompute
    found = [0.0]
    for block in training.passes[index].forward:
        again = kept(block.ops) - _held(block, mode) if block.stage == "layer" else constant(0)
        found += _each(training, block, again + memory.live_peak(block))
    return max(found)


def _held(block: Block, recompute: str) -> Expr:
    if block.stage != "layer" or recompute == "none":
        return _lift(kept(block.ops))
    if recompute == "selective":
        return _lift(kept(block.ops, core=False))
    return s.tokens / s.sp * s.hidden_size * s.act_bytes


def _each(training: Training, block: Block, formula: Expr) -> list[float]:
    """A formula's value in every layer of a block."""
    steps = steps_of(training.recipe)
    program = Program([formula])

    def value(step: Step) -> float:
        return float(program({**bound(training.setup, step), **block.dims})[0])

    if isinstance(steps, Step):
        return [value(steps)] * block.count
    if block.layers:
        return [value(steps[i]) for i in block.layers]
    return [value(steps[-1 if block.stage == "head" else 0])]


def _lift(value: object) -> Expr:
    return value if isinstance(value, Expr) else constant(float(value))  # type: ignore[arg-type]


# ------------------------------------------------------------------ FLOPs


def model_flops(training: Training) -> float:
    """What one micro-batch of the model needs, three times its forward products: no recomputation, nothing twice."""
    env = {**training.setup.env, **memory.ALONE}
    alone = training.setup._replace(env=env, model=_text(training.setup.model))
    blocks = passes_of(alone.model, training.recipe).forward
    rows = step_rows(alone._replace(model=msgspec.structs.replace(alone.model, blocks=blocks)), steps_of(training.recipe))
    return 3 * float(sum(row.work["flops"] * row.count for row in rows if row.op.kind in PRODUCTS))


def _text(model: Model) -> Model:
    return msgspec.structs.replace(model, blocks=tuple(b for b in model.blocks if b.stage != "vision"))
