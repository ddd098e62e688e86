"""How long phases take on a whole layout: pipeline stages, micro-batches, replicas, speculation.

A pipeline of stages with times tₖ passes n micro-batches in Σtₖ + (n-1)·max tₖ; decoding m micro-batches in rotation,
a sequence gets its next token every max(Σtₖ, m·max tₖ).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from . import phases
from .evaluate import Setup, prepare, stages, step_seconds
from .graph import Block, Model
from .phases import Steps
from .steps import Group, Step
from .symbols import Value, least, most


def stage_seconds(setup: Setup, step: Step) -> list[Value]:
    """Seconds of one step on each pipeline stage."""
    return [step_seconds(stage, step) for stage in stages(setup)]


def slowest(times: list[Value]) -> Value:
    """The stage that holds up the others."""
    top = times[0]
    for t in times[1:]:
        top = most(top, t)
    return top


def prefill_steps(setup: Setup, batch: Value, new: Value, cached: Value = 0) -> Steps:
    """The prompts of one replica, cut by the token budget, or finer into the micro-batches that were asked for."""
    budget: Value = setup.plan.max_num_batched_tokens
    if setup.plan.micro_batches > 1:
        budget = least(budget, -(-batch * new // setup.plan.micro_batches))
    return phases.prefill(batch, new, cached, budget=budget)


def prefill_seconds(setup: Setup, steps: Steps) -> Value:
    """All steps through the pipeline: each costs its slowest stage, and the first one fills it."""
    total: Value = 0.0
    for number, (step, often) in enumerate(steps):
        times = stage_seconds(setup, step)
        top = slowest(times)
        total = total + often * top
        if number == 0:
            total = total + (sum(times) - top)
    return total


def micro_batches(setup: Setup, sequences: Value) -> Value:
    """How many micro-batches take turns while decoding: as many as stages, but no more than sequences."""
    wanted = setup.plan.micro_batches or setup.plan.pipeline_parallel_size
    return least(wanted, sequences)


def period(setup: Setup, step: Step, rotating: Value) -> Value:
    """Seconds between two tokens of a sequence when ``rotating`` micro-batches take turns."""
    times = stage_seconds(setup, step)
    return most(sum(times), rotating * slowest(times))


def decode_seconds(setup: Setup, sequences: Value, context: Value, output: Value) -> Value:
    """Mean seconds per output token of one replica's sequences over the growing context, speculation included."""
    m = micro_batches(setup, sequences)
    if setup.plan.speculation is not None:
        return _speculative(setup, sequences / m, context, output, m)
    nodes = phases.decode_nodes(setup.model, sequences / m, context, output)
    found: Value = 0.0
    for step, weight in nodes:
        found = found + weight * period(setup, step, m)
    return found


# ------------------------------------------------------------------ speculative decoding


class Guess(NamedTuple):
    """One step of speculation: what is verified, what drafting costs, and what comes out."""

    verify: Step
    verify_seconds: Value
    draft_seconds: Value
    tokens: float


def accepted(rate: float, drafted: int) -> float:
    """Expected tokens a step when each draft is accepted with probability ``rate``: ``accepted(0.8, 3)  # 2.95``"""
    return drafted + 1.0 if rate >= 1 else (1 - rate ** (drafted + 1)) / (1 - rate)


def guess(setup: Setup, sequences: Value, context: Value, output: Value, rotating: Value = 1) -> Guess:
    """Cost of drafting k tokens and verifying them with one step of k+1 tokens a sequence."""
    spec = setup.plan.speculation
    assert spec is not None
    k = spec.num_speculative_tokens
    middle = context + most(output - 2, 0) / 2
    verify = Step((Group(sequences, k + 1, middle, k + 1, True),))
    one = Step((Group(sequences, 1, middle, 1, True),))
    draft: Value = 0.0
    if spec.method != "ngram":
        drafter = draft_setup(setup)
        draft = k * step_seconds(drafter, one)
    return Guess(verify, period(setup, verify, rotating), draft, spec.acceptance_length)


def _speculative(setup: Setup, sequences: Value, context: Value, output: Value, rotating: Value) -> Value:
    g = guess(setup, sequences, context, output, rotating)
    return (g.verify_seconds + g.draft_seconds) / g.tokens


def draft_setup(setup: Setup) -> Setup:
    """Who drafts, on the same machine: a smaller model, or the model's own prediction modules with its head."""
    spec = setup.plan.speculation
    assert spec is not None
    if spec.method == "mtp":
        return setup._replace(model=_modules(setup.model))
    from . import catalog, models

    entry = catalog.model(spec.model)
    small = models.build(entry.config, entry.name)
    plan = msgspec.structs.replace(setup.plan, speculation=None, quantization=small.dtype, lora=None,
                                   cpu_offload_bytes=0.0)  # fmt: skip
    return prepare(small, setup.device, setup.engine, plan)


def _modules(model: Model) -> Model:
    """One prediction module between embedding and head, which it shares with the model."""
    ends = [b for b in model.blocks if b.stage in ("embed", "head")]
    one = tuple(msgspec.structs.replace(b, layers=(0,)) for b in model.extras)
    blocks: tuple[Block, ...] = (ends[0], *one, ends[-1])
    return msgspec.structs.replace(model, blocks=blocks, num_layers=1, vision=None)


def only(model: Model, blocks: tuple[Block, ...]) -> Model:
    """The model with some of its blocks."""
    return msgspec.structs.replace(model, blocks=blocks)
