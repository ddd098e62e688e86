"""How long a batch takes on a whole layout: pipeline stages, micro-batches, speculation; then rates, cost and energy.

bound_plan = build_request("llama-3.1-8b", "h200").bind()
predict(bound_plan, uniform_batch_shape(bound_plan, batch[:, None], input_len[None, :], 128)).tpot    # a whole grid

A pipeline of stages with times tₖ passes n micro-batches in Σtₖ + (n-1)·max tₖ; decoding m micro-batches in rotation,
a sequence gets its next token every max(Σtₖ, m·max tₖ). Everything may be an array; axes that stand apart (one
dimension each) are cheap, because what depends on the batch alone is computed once per batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..base.symbols import Value, maximum_of, minimum_of, scalar
from ..costs import step as phases
from ..costs.binding import BoundPlan, rows_activity, stage_plans, step_activity, step_rows, tower_rows
from ..costs.power import NOTHING, Activity, power_model
from ..costs.roofline import EqualTokens
from ..costs.step import Group, Step, Steps
from ..network.graph import Block, Model
from .kv_offload import load_seconds
from .speculation import draft_plan
from .workload import BatchShape

# ------------------------------------------------------------------ steps through a pipeline


def stage_activities(
    bound_plan: BoundPlan, step: Step, equal_tokens: list[EqualTokens] | None = None
) -> list[Activity]:
    """What a GPU of each pipeline stage does in one step; ``equal_tokens`` of each, as of `kernel_work`."""
    stages = stage_plans(bound_plan)
    each: Sequence[EqualTokens | None] = equal_tokens or [None] * len(stages)
    return [step_activity(stage, step, kept) for stage, kept in zip(stages, each, strict=True)]


def stage_seconds(bound_plan: BoundPlan, step: Step) -> list[Value]:
    """Seconds of one step on each pipeline stage."""
    return [activity.seconds for activity in stage_activities(bound_plan, step)]


def slowest_stage(times: list[Value]) -> Value:
    """Seconds of the stage that holds up the others."""
    longest = times[0]
    for time in times[1:]:
        longest = maximum_of(longest, time)
    return longest


def mean_stage(activities: list[Activity], seconds: Value, times: Value = 1.0) -> Activity:
    """What the mean GPU does in ``seconds``, in which every stage has done its part so many times."""
    if len(activities) == 1:
        only = activities[0]
        return Activity(seconds, times * only.busy, times * only.compute, times * only.memory)
    total = NOTHING
    for activity in activities:
        total = total.plus(activity, times)
    return total._replace(seconds=seconds).per(len(activities))


def pipelined_activity(bound_plan: BoundPlan, steps: Steps) -> Activity:
    """All steps through the pipeline: each costs its slowest stage, and the first one fills it."""
    total = NOTHING
    empty: Value = 1.0  # whether the pipeline has yet to be filled
    for step, times_run in steps:
        activities = stage_activities(bound_plan, step)
        times = [activity.seconds for activity in activities]
        longest = slowest_stage(times)
        first = empty * (times_run > 0)
        took = times_run * longest + first * (sum(times) - longest)
        total = total.plus(mean_stage(activities, took, times_run))
        empty = empty - first
    return total


def pipelined_seconds(bound_plan: BoundPlan, steps: Steps) -> Value:
    """Seconds of `pipelined_activity`."""
    return pipelined_activity(bound_plan, steps).seconds


def micro_batches(bound_plan: BoundPlan, sequences: Value) -> Value:
    """How many micro-batches take turns while decoding: as many as stages, but no more than sequences."""
    return minimum_of(bound_plan.plan.micro_batches or bound_plan.plan.pipeline_parallel_size, sequences)


def decode_period(
    bound_plan: BoundPlan, step: Step, rotating: Value, equal_tokens: list[EqualTokens] | None = None
) -> Activity:
    """Between two tokens of a sequence when ``rotating`` micro-batches take turns: its seconds, and the mean GPU's."""
    activities = stage_activities(bound_plan, step, equal_tokens)
    times = [activity.seconds for activity in activities]
    return mean_stage(activities, maximum_of(sum(times), rotating * slowest_stage(times)), rotating)


def only(model: Model, blocks: tuple[Block, ...]) -> Model:
    """The model with some of its blocks."""
    return msgspec.structs.replace(model, blocks=blocks)


# ------------------------------------------------------------------ prefill


def prefill_budget(bound_plan: BoundPlan, tokens: Value) -> Value:
    """Tokens of one step of a prefill of so many: the token budget, or finer, so that there are micro-batches."""
    budget: Value = bound_plan.plan.max_num_batched_tokens
    parts = bound_plan.plan.micro_batches
    return minimum_of(budget, -(-tokens // parts)) if parts > 1 else budget


def budgeted_prefill(bound_plan: BoundPlan, batch: Value, new: Value, cached: Value = 0) -> Steps:
    """The prompts of one replica, cut by the token budget."""
    return phases.prefill(batch, new, cached, budget=prefill_budget(bound_plan, batch * new))


def prefill_steps(bound_plan: BoundPlan, batch_shape: BatchShape) -> list[tuple[Step | list[Step], float]]:
    """The steps of the prompts and how often each runs; a list of steps is one per layer (token pruning)."""
    if isinstance(batch_shape.input_len, tuple):
        return [([Step((Group(batch_shape.batch_per_replica, n, 0),)) for n in batch_shape.input_len], 1.0)]
    new, cached = batch_shape.new_tokens, batch_shape.cached_tokens
    return list(budgeted_prefill(bound_plan, batch_shape.batch_per_replica, new, cached))


def vision_step(batch_shape: BatchShape) -> Step:
    """The images of the prompts."""
    return Step((), batch_shape.images)


def prefill_activity(bound_plan: BoundPlan, batch_shape: BatchShape) -> Activity:
    """From the first prompt token to the last sequence's first token, front end not counted."""
    vision = NOTHING
    if batch_shape.images.count:
        rows = tower_rows(stage_plans(bound_plan)[0], vision_step(batch_shape))
        vision = rows_activity(rows).per(bound_plan.plan.pipeline_parallel_size)
    steps = prefill_steps(bound_plan, batch_shape)
    if isinstance(steps[0][0], list):
        return vision.plus(rows_activity(step_rows(bound_plan, steps[0][0])))
    return vision.plus(pipelined_activity(bound_plan, steps))  # type: ignore[arg-type]


def prefill_seconds(bound_plan: BoundPlan, batch_shape: BatchShape) -> Value:
    """Seconds of `prefill_activity`."""
    return prefill_activity(bound_plan, batch_shape).seconds


# ------------------------------------------------------------------ decode


def decode_step(bound_plan: BoundPlan, batch_shape: BatchShape) -> Step | list[Step]:
    """One step at the mean context of the answer: of a micro-batch, and of a verification if tokens are drafted."""
    if isinstance(batch_shape.input_len, tuple):
        return [phases.decode(batch_shape.sequences, n, batch_shape.output_len) for n in batch_shape.input_len]
    sequences = batch_shape.sequences / micro_batches(bound_plan, batch_shape.sequences)
    if bound_plan.plan.speculation is not None:
        return verification_step(bound_plan, sequences, batch_shape.context, batch_shape.output_len)
    return phases.decode(sequences, batch_shape.context, batch_shape.output_len)


def mixed_step(bound_plan: BoundPlan, batch_shape: BatchShape) -> Step:
    """A step of chunked prefill: all sequences decode, and a chunk of a prompt fills the rest of the token budget."""
    decoding = phases.decode(batch_shape.sequences, batch_shape.context, batch_shape.output_len).groups
    new = batch_shape.new_tokens
    chunk = max(0, min(new, bound_plan.plan.max_num_batched_tokens - batch_shape.sequences))
    if not chunk:
        return Step(decoding)
    return Step((*decoding, Group(1, chunk, batch_shape.cached_tokens + (new - chunk) / 2, chunk / new)))


def decode_activity(bound_plan: BoundPlan, batch_shape: BatchShape) -> Activity:
    """The mean output token after the first: its seconds, and what a GPU does in them."""
    if isinstance(batch_shape.input_len, tuple):  # one prompt length per layer (token pruning)
        steps = decode_step(bound_plan, batch_shape)
        assert isinstance(steps, list)
        return rows_activity(step_rows(bound_plan, steps))
    sequences, context, output = batch_shape.sequences, batch_shape.context, batch_shape.output_len
    return mean_decode_activity(bound_plan, sequences, context, output)


def decode_seconds(bound_plan: BoundPlan, batch_shape: BatchShape) -> Value:
    """Seconds of `decode_activity`."""
    return decode_activity(bound_plan, batch_shape).seconds


def mean_decode_activity(bound_plan: BoundPlan, sequences: Value, context: Value, output: Value) -> Activity:
    """The mean output token of one replica's sequences over the growing context, speculation included."""
    rotating = micro_batches(bound_plan, sequences)
    each = sequences / rotating
    if bound_plan.plan.speculation is not None:
        return speculative_step(bound_plan, each, context, output, rotating).per_token
    total = NOTHING
    steps = phases.decode_quadrature(bound_plan.model, each, context, output)
    equal_tokens: list[EqualTokens] | None = [{} for _ in stage_plans(bound_plan)] if len(steps) > 1 else None
    for step, weight in steps:
        total = total.plus(decode_period(bound_plan, step, rotating, equal_tokens), weight)
    return total


# ------------------------------------------------------------------ speculative decoding


class SpeculativeStep(NamedTuple):
    """One step of speculation: what is verified, what drafting costs, and how many tokens come out."""

    verify: Step
    verifying: Activity
    drafting: Activity
    tokens: float

    @property
    def per_token(self) -> Activity:
        """The mean output token."""
        return NOTHING.plus(self.verifying.plus(self.drafting), 1 / self.tokens)


def verification_step(bound_plan: BoundPlan, sequences: Value, context: Value, output: Value) -> Step:
    """k drafted tokens of each sequence and the bonus token, verified at once at the mean context of the answer."""
    spec = bound_plan.plan.speculation
    assert spec is not None
    tokens = spec.num_speculative_tokens + 1
    return Step((Group(sequences, tokens, _mean_context(context, output), tokens, True),))


def speculative_step(
    bound_plan: BoundPlan, sequences: Value, context: Value, output: Value, rotating: Value = 1
) -> SpeculativeStep:
    """Cost of drafting k tokens and verifying them with one step of k+1 tokens a sequence."""
    spec = bound_plan.plan.speculation
    assert spec is not None
    verify = verification_step(bound_plan, sequences, context, output)
    draft = NOTHING
    if spec.method != "ngram":
        one_token = Step((Group(sequences, 1, _mean_context(context, output), 1, True),))
        draft = draft.plus(step_activity(draft_plan(bound_plan), one_token), spec.num_speculative_tokens)
    return SpeculativeStep(verify, decode_period(bound_plan, verify, rotating), draft, spec.acceptance_length)


def _mean_context(context: Value, output: Value) -> Value:
    return context + maximum_of(output - 2, 0) / 2


# ------------------------------------------------------------------ what users see


class Prediction(NamedTuple):
    """Seconds, tokens/s, US dollars, joules; None where a device has no price or power."""

    ttft: Value
    tpot: Value
    e2el: Value
    prefill_throughput: Value
    output_throughput: Value
    total_token_throughput: Value
    output_throughput_per_gpu: Value
    cost_per_million_output_tokens: Value | None
    joules_per_output_token: Value | None
    watts_per_gpu: Value | None


def frontend_seconds(bound_plan: BoundPlan, tokens: Value = 0.0) -> Value:
    """Seconds that a request takes outside of steps, with so many tokens in its prompts."""
    engine = bound_plan.engine
    http = engine.http_overhead + engine.token_overhead * tokens
    return engine.request_overhead + (http if bound_plan.plan.frontend == "http" else 0.0)


def predict(bound_plan: BoundPlan, batch_shape: BatchShape, phase: str = "all") -> Prediction:
    """Of a batch that is prefilled and then decodes together, until its last token; or of one phase of it."""
    size, output = batch_shape.batch_size, batch_shape.output_len
    prompts, answers = NOTHING, NOTHING
    if phase != "decode":
        waiting = Activity(frontend_seconds(bound_plan, size * batch_shape.context), 0.0, 0.0, 0.0)
        prompts = waiting.plus(_prefix_load(bound_plan, batch_shape)).plus(prefill_activity(bound_plan, batch_shape))
    decodes = output > 1
    tpot: Value = 0.0
    if phase != "prefill" and not (scalar(decodes) and not decodes):
        step = decode_activity(bound_plan, batch_shape)
        tpot = step.seconds * decodes
        answers = NOTHING.plus(step, maximum_of(output - 1, 0))
    e2el = prompts.seconds + answers.seconds
    joules = total_joules(bound_plan, prompts, answers)  # each phase by itself: prompts may be at the power limit
    return Prediction(
        ttft=prompts.seconds,
        tpot=tpot,
        e2el=e2el,
        prefill_throughput=size * batch_shape.new_tokens / prompts.seconds if phase != "decode" else 0.0,
        **throughput_and_cost(bound_plan, e2el, joules, size * output, size * batch_shape.context),
    )


def _prefix_load(bound_plan: BoundPlan, batch_shape: BatchShape) -> Activity:
    """Cached prefixes come from a tier below the GPU before the rest of the prompts is computed."""
    offload = bound_plan.plan.kv_offload
    if offload is None or not offload.prefix_tier:
        return NOTHING
    sequences, cached = batch_shape.batch_per_replica, batch_shape.cached_tokens
    return Activity(load_seconds(bound_plan, sequences, cached, offload.prefix_tier), 0.0, 0.0, 0.0)


def total_joules(bound_plan: BoundPlan, *activities: Activity) -> Value | None:
    """Energy of all GPUs of a plan over what the mean one does; None if the device's power is not known."""
    model = power_model(bound_plan.device, bound_plan.plan.power_cap)
    if model is None:
        return None
    return bound_plan.plan.gpus * sum(model.watts(activity) * activity.seconds for activity in activities)


def throughput_and_cost(
    bound_plan: BoundPlan, e2el: Value, joules: Value | None, output_tokens: Value, input_tokens: Value
) -> dict[str, Value | None]:
    """The rates, cost and energy of tokens that took ``e2el`` seconds and ``joules`` in all."""
    gpus, tokens = bound_plan.plan.gpus, maximum_of(output_tokens, 1)
    rate = output_tokens / e2el
    gpu_seconds = e2el / tokens * gpus
    price = bound_plan.device.price_per_hour
    return {
        "output_throughput": rate,
        "total_token_throughput": (output_tokens + input_tokens) / e2el,
        "output_throughput_per_gpu": rate / gpus,
        "cost_per_million_output_tokens": cost_per_million_tokens(gpu_seconds, price) if price else None,
        "joules_per_output_token": None if joules is None else joules / tokens,
        "watts_per_gpu": None if joules is None else joules / (e2el * gpus),
    }


def cost_per_million_tokens(gpu_seconds: Value, price_per_hour: Value) -> Value:
    """US dollars for a million output tokens of which each takes ``gpu_seconds`` on GPUs that cost so much an hour.

    Numbers or arrays: ``cost_per_million_tokens(8 / 4000, 3.6)  # 2.0: eight GPUs give 4,000 tokens/s``
    """
    return gpu_seconds * price_per_hour / 3600 * 1e6


def joules_per_token(gpu_seconds: Value, power: Value) -> Value:
    """Energy of an output token that takes ``gpu_seconds`` on GPUs of so many watts: ``joules_per_token(0.01, 700)``"""
    return gpu_seconds * power
