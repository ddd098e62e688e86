"""Seconds and bytes of pipeline stages, for one set of steps and every depth of pipeline: each block is priced once.

A stage is a few layers of each block. So a model cut into 16 stages costs no more to price than the whole: its blocks
are priced for one layer and counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.cache import cache_by_identity
from ..base.symbols import Value
from ..costs import host, roofline
from ..costs.binding import BoundPlan, calibration_factor, padded_env, stage_plans, step_env, step_seconds
from ..costs.step import Group, Step
from ..inference import memory
from ..inference.latency import draft_plan, frontend_seconds
from ..network.graph import Block
from ..specs.structs import Engine, Plan
from .objective import Traffic


class Stage(NamedTuple):
    """A part of the model that some stages have alike."""

    bound_plan: BoundPlan
    alike: int  # stages that are like this one


def distinct(bound_plan: BoundPlan) -> list[Stage]:
    """The stages of a setup's pipeline, those that are alike once."""
    found: dict[tuple[tuple[int, int], ...], Stage] = {}
    for part in stage_plans(bound_plan):
        key = tuple((id(block.ops), block.count) for block in part.model.blocks)
        known = found.get(key)
        found[key] = Stage(known.bound_plan if known else part, known.alike + 1 if known else 1)
    return list(found.values())


@cache_by_identity(2000)
def _single(block: Block) -> Block:
    """One layer of a block."""
    return msgspec.structs.replace(block, layers=block.layers[:1])


class Priced:
    """A layout's blocks under some steps: ``Priced(setup, step).seconds(distinct(setup))``"""

    def __init__(self, bound_plan: BoundPlan, step: Step) -> None:
        self.bound_plan = bound_plan
        self.sums = step_env(bound_plan, step)
        self.run = padded_env(bound_plan, self.sums)
        self.known: dict[int, Value] = {}

    def kernels(self, stage: BoundPlan) -> Value:
        """Seconds of a stage's kernels. What is sent between stages goes over the stage's own link."""
        total: Value = 0.0
        for block in stage.model.blocks:
            if block.stage == "vision":
                continue
            if block.name == "pipeline":
                env = {**self.run, "pp_bandwidth": stage.env["pp_bandwidth"], "pp_latency": stage.env["pp_latency"]}
                total = total + roofline.kernel_seconds((block,), env, stage.sources)
                continue
            key = id(block.ops)
            if key not in self.known:
                self.known[key] = roofline.kernel_seconds((_single(block),), self.run, self.bound_plan.sources)
            total = total + block.count * self.known[key]
        return total

    def seconds(self, stage: BoundPlan, kernels: Value, heat: Value = 0.0) -> Any:
        """A step's seconds on a stage whose kernels take so long, the engine's own time included."""
        sums = {**self.sums, "thermal_state": heat}
        added = host.host_seconds(stage.model, stage.engine, sums, kernels)
        return (kernels + added) * calibration_factor(stage, sums)


class Sizes:
    """Bytes of a layout's stages, block by block: weights, a sequence's cache, activations of its largest steps."""

    def __init__(self, bound_plan: BoundPlan, lengths: np.ndarray, largest: Step) -> None:
        self.bound_plan, self.lengths, self.largest = bound_plan, lengths, largest
        self.known: dict[int, tuple[float, Any, Any]] = {}

    def stage(self, stage: BoundPlan) -> tuple[float, Any, Any]:
        """Weights; cache of a sequence at each length; the peak of activations of each of the largest steps."""
        weights, live = 0.0, np.zeros(())
        cache = np.zeros(len(self.lengths))
        for block in stage.model.blocks:
            key = id(block.ops)
            if key not in self.known:
                self.known[key] = self._of(block, stage)
            stored, kept, peak = self.known[key]
            weights, cache, live = weights + block.count * stored, cache + block.count * kept, np.maximum(live, peak)
        return weights, cache, live

    def _of(self, block: Block, stage: BoundPlan) -> tuple[float, Any, Any]:
        one = self.bound_plan._replace(model=msgspec.structs.replace(stage.model, blocks=(_single(block),)))
        return (
            float(memory.weight_bytes(one)),
            memory.cache_bytes(one, self.lengths),
            memory.activation_bytes(one, self.largest),
        )


# ------------------------------------------------------------------ steady
# The steady state of continuous batching, as means: what a server's users see while d answers are under way.
#
# With d sequences decoding and answers of O tokens, every step ends λ = d·pace/(O-1) answers, so λ prompts must begin. A
# step is either answers alone, or answers and pieces of prompts; how often the second happens follows from λ and the
# token budget. So a mean step, and with it TPOT, throughput and the wait for a first token, are functions of d: no queue
# is simulated here. What chance does to percentiles is the simulator's business.


MIXING = ("vllm", "sarathi", "trtllm")  # schedulers whose steps hold prompts and answers at once
FULL = 0.999  # a queue of prompts is never longer than at this use of the budget


class Load(NamedTuple):
    """The steps of all loads on one lane of a server: rows are token budgets, columns sequences that decode."""

    decoding: np.ndarray  # d, of one lane
    budgets: np.ndarray
    given: float  # tokens of a prompt
    prompt: float  # those of them that are computed
    context: float  # mean tokens before a token of an answer
    answers: float  # tokens after the first
    begun: np.ndarray  # λ, by d
    mixed: np.ndarray  # steps with prompts for every step of answers
    pieces: np.ndarray  # steps that one prompt takes
    room: np.ndarray  # tokens of a step that prompts may have
    mixes: bool
    width: int  # tokens of a sequence that a step computes
    pace: float  # tokens that it gains by that
    step: Step  # of all loads: answers alone, mixed, one prompt alone, a budget full of prompts


def grid(most: int) -> np.ndarray:
    """Numbers of sequences up to a limit, four an octave: 1 2 3 4 5 6 7 8 10 11 13 16 19 …"""
    octaves = np.arange(0, 4 * np.log2(max(most, 1)) + 1) / 4
    return np.unique(np.append(np.round(2**octaves), most)).clip(1, most).astype(float)


def load(traffic: Traffic, engine: Engine, plan: Plan, budgets: tuple[int, ...], most: int) -> Load:
    """What the steps of every load look like; it depends on the requests and the engine, not on the layout."""
    speculation = plan.speculation
    width = 1 + (speculation.num_speculative_tokens if speculation else 0)
    pace = speculation.acceptance_length if speculation else 1.0
    cached = float(traffic.prefix_len if engine.prefix_caching else 0)
    prompt, answers = traffic.input_len - cached, max(traffic.output_len - 1, 1)
    context = traffic.input_len + traffic.output_len / 2
    mixes = engine.scheduler in MIXING
    every, budget = grid(most), np.array(budgets, float)
    d, begun = np.broadcast_to(every, (len(budget), len(every))), every * pace / answers
    room = budget[:, None] - width * d * mixes
    # tokens of the prompts of a step that has any: whole prompts, since seconds jump where graphs end
    together = prompt * np.round(begun / -np.expm1(-begun))
    able = np.maximum(room, 1.0)
    if mixes:  # the last piece of a prompt leaves room, which the next one takes if it is there
        pieces, crowd = np.ceil(prompt / able), np.minimum(begun * prompt / able, 1)
        new = np.where(pieces > 1, prompt / (pieces + crowd * (prompt / able - pieces)), np.minimum(together, able))
    else:  # whole prompts: one that is above the budget comes alone
        pieces = np.ones(room.shape)
        new = np.minimum(together, prompt * np.maximum(np.floor(able / prompt), 1))
    alone = prompt / np.ceil(prompt / budget)
    tokens = np.concatenate([0 * every, new.ravel(), alone, budget])
    piece = np.maximum(np.minimum(prompt, tokens), 1)
    decoding = np.concatenate([every, (d * mixes).ravel(), 0 * budget, 0 * budget])
    step = Step(
        (
            Group(tokens / piece, piece, cached + (prompt - piece) / 2, piece / prompt),
            Group(decoding, width, context, width, True),
        )
    )
    often = np.minimum(begun * prompt / new, 1.0 if mixes else np.inf)
    return Load(
        every, budget, traffic.input_len, prompt, context, answers, begun, often, pieces, room, mixes, width, pace, step
    )


class Steady(NamedTuple):
    """What one rank of a server does under every load; rows are budgets, columns loads."""

    decoding: np.ndarray  # sequences that decode on the rank, of all its lanes
    ttft: np.ndarray  # s, mean, but for the wait behind other prompts
    queue: np.ndarray  # s, that wait in the mean where requests come at random
    used: np.ndarray  # share of the room for prompts that is used
    tpot: np.ndarray  # s, mean
    rate: np.ndarray  # requests/s; 0 where the budget lets in fewer prompts than end
    alone: np.ndarray  # s that a prompt takes on a rank that only reads, by budget
    reading: np.ndarray  # prompts/s that such a rank reads, by budget
    gap: np.ndarray  # s between two tokens on a rank that only answers, by load
    writing: np.ndarray  # requests/s that such a rank answers, by load


def steady(setups: list[BoundPlan], load: Load) -> list[Steady]:
    """One layout at several depths of pipeline: its blocks are priced once for all."""
    priced, drafting = Priced(setups[0], load.step), _drafting(setups[0], load)
    return [_depth(bound_plan, priced, load, drafting) for bound_plan in setups]


def _drafting(bound_plan: BoundPlan, load: Load) -> Any:
    """Seconds of drafting before a step, by load."""
    speculation = bound_plan.plan.speculation
    if speculation is None or speculation.method == "ngram":
        return 0.0
    one = Step((Group(load.decoding, 1, load.context, 1, True),))
    return speculation.num_speculative_tokens * step_seconds(draft_plan(bound_plan), one)


class _Times(NamedTuple):
    """Seconds of the four kinds of steps: through all stages, and on the slowest."""

    plain: tuple[Any, Any]
    mixed: tuple[Any, Any]
    alone: tuple[Any, Any]
    full: tuple[Any, Any]


def _depth(bound_plan: BoundPlan, priced: Priced, load: Load, drafting: Any) -> Steady:
    lanes, stages = bound_plan.plan.pipeline_parallel_size, distinct(bound_plan)
    kernels = [priced.kernels(stage.bound_plan) for stage in stages]

    def times(heat: Any) -> _Times:
        took = [priced.seconds(stage.bound_plan, k, heat) for stage, k in zip(stages, kernels, strict=True)]
        whole = sum(stage.alike * t for stage, t in zip(stages, took, strict=True))
        return _Times(*zip(_split(load, whole), _split(load, np.max(took, axis=0)), strict=True))

    found = times(0.0)
    if bound_plan.env["throttle"]:  # prompts heat the chip for a share of the time: so hot it is in the mean
        prompts = priced.sums["prefill_tokens"] / np.maximum(priced.sums["tokens"], 1)
        warm = load.mixed * found.mixed[1] / np.maximum(_mean(load, found.plain[1], found.mixed[1], load.mixed), 1e-12)
        heat = np.concatenate([0 * load.decoding, np.minimum(warm, 1).ravel(), np.ones(2 * len(load.budgets))])
        found = times(heat * prompts)
    slow, slow_mixed = found.plain[1], found.mixed[1]
    plain, mixed = (np.maximum(whole, lanes * most) for whole, most in (found.plain, found.mixed))
    # prompts in one lane hold up all others; n pieces, which follow each other from lane to lane, touch n + lanes - 1
    held = 1 - (1 - load.mixed) ** ((load.pieces + lanes - 1) / load.pieces) if load.mixes and lanes > 1 else load.mixed
    period = _mean(load, plain, mixed, held)
    top = np.maximum(period / lanes, 1e-12)
    tpot = (period + drafting) / load.pace
    used = load.begun * load.prompt / np.maximum(load.room, 1) if load.mixes else load.mixed * slow_mixed / top
    rate = np.where((used < 1) & (load.room > 0), lanes * load.decoding / load.answers / tpot, 0.0)
    # a prompt waits for the step under way, and for the one that is planned already; for prompts before it; for itself
    second = slow**2 * (1 - load.mixed * load.mixes) + load.mixed * slow_mixed**2
    ahead = top if bound_plan.engine.async_scheduling and lanes == 1 else 0.0
    busy = -np.expm1(-lanes * load.decoding)
    each = slow_mixed * (load.prompt / np.maximum(load.room, 1) if load.mixes else load.mixed / load.begun)
    # who comes at random may meet a step with others' prompts; who comes evenly comes when they are over
    queue = waiting(used) * each + busy * (second / top - slow) / 2
    ttft = (
        frontend_seconds(bound_plan, load.given)
        + busy * (slow / 2 + ahead)
        + found.mixed[0]
        + (load.pieces - 1) * slow_mixed
    )
    alone = found.alone[0] + (np.ceil(load.prompt / load.budgets) - 1) * found.alone[1]
    gap = (np.maximum(found.plain[0], lanes * slow) + drafting) / load.pace
    reading = load.budgets / load.prompt / found.full[1]
    return Steady(
        lanes * load.decoding,
        ttft,
        queue,
        used + 0 * queue,
        tpot,
        rate,
        alone,
        reading,
        gap,
        lanes * load.decoding / load.answers / gap,
    )


def waiting(used: Any) -> Any:
    """Mean wait behind others who come at random, in units of the time that each takes (Pollaczek and Khinchine)."""
    used = np.minimum(used, FULL)
    return used / (1 - used) / 2


def evenly(used: Any, spread: Any) -> Any:
    """What is left of that wait where requests come more evenly than at random (Krämer and Langenbach-Belz).

    ``spread`` is the squared variation of the gaps between them: 1 at random, 1/n where each is the n-th of such.
    """
    used = np.clip(used, 1e-9, FULL)
    return spread * np.exp(-2 * (1 - used) / 3 / used * np.maximum(1 - spread, 0) ** 2 / spread)


def tail(used: Any, share: float) -> Any:
    """How many times the mean wait a ``share`` of the requests waits at most, the tail of waits being exponential."""
    used = np.clip(used, 1e-9, FULL)
    return np.maximum(np.log(used / max(1 - share, 1e-6)) / used, 1.0)


def _mean(load: Load, plain: Any, mixed: Any, share: Any) -> Any:
    """Seconds from one token of an answer to the next: steps with prompts take the place of others, or come between."""
    return plain * (1 - share * load.mixes) + share * mixed


def _split(load: Load, flat: Any) -> tuple[Any, Any, Any, Any]:
    """The seconds of all steps, kind by kind."""
    loads, budgets = len(load.decoding), len(load.budgets)
    flat = np.broadcast_to(flat, (loads * (1 + budgets) + 2 * budgets,))
    plain, mixed, alone, full = np.split(flat, np.cumsum([loads, loads * budgets, budgets]))
    return plain, mixed.reshape(budgets, loads), alone, full
