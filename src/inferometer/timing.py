"""How long phases take on a whole layout: pipeline stages, micro-batches, replicas, speculation.

A pipeline of stages with times tₖ passes n micro-batches in Σtₖ + (n-1)·max tₖ; decoding m micro-batches in rotation,
a sequence gets its next token every max(Σtₖ, m·max tₖ).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import msgspec

from . import catalog, models, numerics, parallel, phases
from .errors import BadValue
from .evaluate import Setup, prepare, stages, step_seconds
from .graph import Block, Model, once_per
from .models.network import build_network
from .phases import Steps
from .spec import Engine, Plan
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
    return phases.prefill(batch, new, cached, budget=prefill_budget(setup, batch * new))


def prefill_budget(setup: Setup, tokens: Value) -> Value:
    """Tokens of one step of a prefill of so many."""
    budget: Value = setup.plan.max_num_batched_tokens
    return least(budget, -(-tokens // setup.plan.micro_batches)) if setup.plan.micro_batches > 1 else budget


def prefill_seconds(setup: Setup, steps: Steps) -> Value:
    """All steps through the pipeline: each costs its slowest stage, and the first one fills it."""
    total: Value = 0.0
    empty: Value = 1.0  # whether the pipeline has yet to be filled
    for step, often in steps:
        times = stage_seconds(setup, step)
        top = slowest(times)
        first = empty * (often > 0)
        total = total + often * top + first * (sum(times) - top)
        empty = empty - first
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
        return setup._replace(model=_modules(setup.model), engine=_within(setup.engine))
    small, roles = _draft_model(spec.model, _stamp(spec.model), setup.plan.dtype)
    plan = msgspec.structs.replace(_alone(setup.plan), quantization=numerics.summary(roles, setup.plan.dtype))
    drafter = prepare(small, setup.device, _within(setup.engine), plan, roles=roles)
    return drafter._replace(sources=setup.sources)  # the same machine and layout, and what --efficiency says of them


def _within(engine: Engine) -> Engine:
    """The engine of steps inside of a step: while drafting, the host does not go round again."""
    return msgspec.structs.replace(engine, step_floor=0.0, step_floor_per_sequence=0.0)


def draft_reason(setup: Setup) -> str:
    """Why the layout does not suit the model that drafts, as a sentence; empty if it does or nobody drafts."""
    spec = setup.plan.speculation
    if spec is None or spec.method != "draft_model":
        return ""
    why = parallel.reason(draft_setup(setup).model, _alone(setup.plan), setup.device)
    return f"{spec.model} cannot draft here: {why}" if why else ""


def _alone(plan: Plan) -> Plan:
    """The plan of a model that drafts: whole on every stage, without adapters and on the device."""
    return msgspec.structs.replace(plan, speculation=None, lora=None, cpu_offload_bytes=0.0, pipeline_parallel_size=1)


@functools.lru_cache(maxsize=16)
def _draft_model(name: str, stamp: float, dtype: str) -> tuple[Model, dict[str, str]]:
    """A model to draft with, and its precisions: what its config or its name declares."""
    entry = catalog.model(name)
    small = (build_network if entry.network else models.build)(entry.config, entry.source or entry.name)
    if small.kind != "decoder":
        raise BadValue(f"{name} is a {small.kind} model: only a decoder can draft tokens")
    declared = entry.quantization if entry.quantization and not small.quantization else None
    return small, numerics.by_role(small, dtype, declared)


def _stamp(name: str) -> float:
    """When a local model was last written, so that one that was edited is read again; 0 for any other name."""
    path = Path(name).expanduser()
    try:
        return max(p.stat().st_mtime for p in (path, path / "config.json") if p.exists())
    except (OSError, ValueError):
        return 0.0


@once_per(64)
def _modules(model: Model) -> Model:
    """One prediction module between embedding and head, which it shares with the model."""
    ends = [b for b in model.blocks if b.stage in ("embed", "head")]
    one = tuple(msgspec.structs.replace(b, layers=(0,)) for b in model.extras)
    blocks: tuple[Block, ...] = (ends[0], *one, ends[-1])
    return msgspec.structs.replace(model, blocks=blocks, num_layers=1, vision=None)


def only(model: Model, blocks: tuple[Block, ...]) -> Model:
    """The model with some of its blocks."""
    return msgspec.structs.replace(model, blocks=blocks)
