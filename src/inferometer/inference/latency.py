"""How long phases take on a whole layout: pipeline stages, micro-batches, replicas, speculation.

A pipeline of stages with times tₖ passes n micro-batches in Σtₖ + (n-1)·max tₖ; decoding m micro-batches in rotation,
a sequence gets its next token every max(Σtₖ, m·max tₖ).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.errors import BadValue
from ..base.symbols import Value, maximum_of, minimum_of
from ..costs import parallelism, precision
from ..costs import step as phases
from ..costs.binding import BoundPlan, bind, stage_plans, step_rows, step_seconds, tower_rows
from ..costs.images import images
from ..costs.step import Group, Images, Step, Steps
from ..network import families
from ..network.families.network_file import build_network
from ..network.graph import Block, Model
from ..specs import catalog
from ..specs.structs import Engine, Plan, Workload


def stage_seconds(bound_plan: BoundPlan, step: Step) -> list[Value]:
    """Seconds of one step on each pipeline stage."""
    return [step_seconds(stage, step) for stage in stage_plans(bound_plan)]


def slowest(times: list[Value]) -> Value:
    """The stage that holds up the others."""
    top = times[0]
    for t in times[1:]:
        top = maximum_of(top, t)
    return top


def budgeted_prefill(bound_plan: BoundPlan, batch: Value, new: Value, cached: Value = 0) -> Steps:
    """The prompts of one replica, cut by the token budget, or finer into the micro-batches that were asked for."""
    return phases.prefill(batch, new, cached, budget=prefill_budget(bound_plan, batch * new))


def prefill_budget(bound_plan: BoundPlan, tokens: Value) -> Value:
    """Tokens of one step of a prefill of so many."""
    budget: Value = bound_plan.plan.max_num_batched_tokens
    return (
        minimum_of(budget, -(-tokens // bound_plan.plan.micro_batches)) if bound_plan.plan.micro_batches > 1 else budget
    )


def prefill_seconds(bound_plan: BoundPlan, steps: Steps) -> Value:
    """All steps through the pipeline: each costs its slowest stage, and the first one fills it."""
    total: Value = 0.0
    empty: Value = 1.0  # whether the pipeline has yet to be filled
    for step, often in steps:
        times = stage_seconds(bound_plan, step)
        top = slowest(times)
        first = empty * (often > 0)
        total = total + often * top + first * (sum(times) - top)
        empty = empty - first
    return total


def micro_batches(bound_plan: BoundPlan, sequences: Value) -> Value:
    """How many micro-batches take turns while decoding: as many as stages, but no more than sequences."""
    wanted = bound_plan.plan.micro_batches or bound_plan.plan.pipeline_parallel_size
    return minimum_of(wanted, sequences)


def period(bound_plan: BoundPlan, step: Step, rotating: Value) -> Value:
    """Seconds between two tokens of a sequence when ``rotating`` micro-batches take turns."""
    times = stage_seconds(bound_plan, step)
    return maximum_of(sum(times), rotating * slowest(times))


def decode_seconds(bound_plan: BoundPlan, sequences: Value, context: Value, output: Value) -> Value:
    """Mean seconds per output token of one replica's sequences over the growing context, speculation included."""
    m = micro_batches(bound_plan, sequences)
    if bound_plan.plan.speculation is not None:
        return _speculative(bound_plan, sequences / m, context, output, m)
    nodes = phases.decode_quadrature(bound_plan.model, sequences / m, context, output)
    found: Value = 0.0
    for step, weight in nodes:
        found = found + weight * period(bound_plan, step, m)
    return found


# ------------------------------------------------------------------ speculative decoding


class SpeculativeStep(NamedTuple):
    """One step of speculation: what is verified, what drafting costs, and what comes out."""

    verify: Step
    verify_seconds: Value
    draft_seconds: Value
    tokens: float


def speculative_step(
    bound_plan: BoundPlan, sequences: Value, context: Value, output: Value, rotating: Value = 1
) -> SpeculativeStep:
    """Cost of drafting k tokens and verifying them with one step of k+1 tokens a sequence."""
    spec = bound_plan.plan.speculation
    assert spec is not None
    k = spec.num_speculative_tokens
    middle = context + maximum_of(output - 2, 0) / 2
    verify = Step((Group(sequences, k + 1, middle, k + 1, True),))
    one = Step((Group(sequences, 1, middle, 1, True),))
    draft: Value = 0.0
    if spec.method != "ngram":
        drafter = draft_plan(bound_plan)
        draft = k * step_seconds(drafter, one)
    return SpeculativeStep(verify, period(bound_plan, verify, rotating), draft, spec.acceptance_length)


def _speculative(bound_plan: BoundPlan, sequences: Value, context: Value, output: Value, rotating: Value) -> Value:
    g = speculative_step(bound_plan, sequences, context, output, rotating)
    return (g.verify_seconds + g.draft_seconds) / g.tokens


def draft_plan(bound_plan: BoundPlan) -> BoundPlan:
    """Who drafts, on the same machine: a smaller model, or the model's own prediction modules with its head."""
    spec = bound_plan.plan.speculation
    assert spec is not None
    if spec.method == "mtp":
        return bound_plan._replace(model=_modules(bound_plan.model), engine=_draft_engine(bound_plan.engine))
    small, roles = _draft_model(spec.model, _stamp(spec.model), bound_plan.plan.dtype)
    plan = msgspec.structs.replace(
        _draft_layout(bound_plan.plan), quantization=precision.summary(roles, bound_plan.plan.dtype)
    )
    drafter = bind(small, bound_plan.device, _draft_engine(bound_plan.engine), plan, roles=roles)
    return drafter._replace(
        sources=bound_plan.sources
    )  # the same machine and layout, and what --efficiency says of them


def _draft_engine(engine: Engine) -> Engine:
    """The engine of steps inside of a step: while drafting, the host does not go round again."""
    return msgspec.structs.replace(engine, step_floor=0.0, step_floor_per_sequence=0.0)


def draft_reason(bound_plan: BoundPlan) -> str:
    """Why the layout does not suit the model that drafts, as a sentence; empty if it does or nobody drafts."""
    spec = bound_plan.plan.speculation
    if spec is None or spec.method != "draft_model":
        return ""
    why = parallelism.illegal_reason(draft_plan(bound_plan).model, _draft_layout(bound_plan.plan), bound_plan.device)
    return f"{spec.model} cannot draft here: {why}" if why else ""


def _draft_layout(plan: Plan) -> Plan:
    """The plan of a model that drafts: whole on every stage, without adapters and on the device."""
    return msgspec.structs.replace(plan, speculation=None, lora=None, cpu_offload_bytes=0.0, pipeline_parallel_size=1)


@functools.lru_cache(maxsize=16)
def _draft_model(name: str, stamp: float, dtype: str) -> tuple[Model, dict[str, str]]:
    """A model to draft with, and its precisions: what its config or its name declares."""
    entry = catalog.model(name)
    small = (build_network if entry.network else families.build)(entry.config, entry.source or entry.name)
    if small.kind != "decoder":
        raise BadValue(f"{name} is a {small.kind} model: only a decoder can draft tokens")
    declared = entry.quantization if entry.quantization and not small.quantization else None
    return small, precision.precision_by_role(small, dtype, declared)


def _stamp(name: str) -> float:
    """When a local model was last written, so that one that was edited is read again; 0 for any other name."""
    path = Path(name).expanduser()
    try:
        return max(p.stat().st_mtime for p in (path, path / "config.json") if p.exists())
    except (OSError, ValueError):
        return 0.0


@cache_by_identity(64)
def _modules(model: Model) -> Model:
    """One prediction module between embedding and head, which it shares with the model."""
    ends = [b for b in model.blocks if b.stage in ("embed", "head")]
    one = tuple(msgspec.structs.replace(b, layers=(0,)) for b in model.extras)
    blocks: tuple[Block, ...] = (ends[0], *one, ends[-1])
    return msgspec.structs.replace(model, blocks=blocks, num_layers=1, vision=None)


def only(model: Model, blocks: tuple[Block, ...]) -> Model:
    """The model with some of its blocks."""
    return msgspec.structs.replace(model, blocks=blocks)


# ------------------------------------------------------------------ talk
# A workload as one prompt and one answer, and the time of each: what reports and explanations are computed for.


class BatchShape(NamedTuple):
    """Counts of one data-parallel replica, unless said; each may be an array (``input_len`` of numbers)."""

    batch_size: Value  # sequences of all replicas
    batch_per_replica: Value  # sequences of the fullest replica
    beams: int
    input_len: Value | tuple[int, ...]
    new_tokens: Value  # new tokens of the longest layer, images included
    cached_tokens: Value
    output_len: Value
    images: Images = Images()

    @property
    def sequences(self) -> Value:
        """Sequences that decode at once on a replica, beams included."""
        return self.batch_per_replica * self.beams

    @property
    def context(self) -> Value:
        """Tokens of a sequence when its answer begins."""
        return self.cached_tokens + self.new_tokens

    @property
    def length(self) -> Value:
        """Tokens of a finished sequence."""
        return self.context + self.output_len


def batch_shape_of(bound_plan: BoundPlan, work: Workload) -> BatchShape:
    """The last turn of a conversation, or the only one."""
    pictures, shown = Images(), work.images
    if shown and bound_plan.model.vision:
        pictures = images(bound_plan.model.vision, shown.height, shown.width, shown.count)
    seen = int(pictures.tokens)
    if work.turns:
        *before, last = work.turns
        new, cached, output = last.input_len, sum(t.input_len + t.output_len for t in before), last.output_len
        if before:  # images come with the first prompt and are in the cache by now
            cached, pictures = cached + seen, Images()
        else:
            new += seen
        lengths: int | tuple[int, ...] = last.input_len
    else:
        longest = work.input_len if isinstance(work.input_len, int) else max(work.input_len)
        new, cached, output = longest + seen - work.prefix_len, work.prefix_len, work.output_len
        lengths = work.input_len
    mine = -(-work.batch_size // bound_plan.plan.data_parallel_size)
    scaled = Images(*(mine * x for x in pictures))
    output = output if bound_plan.model.kind == "decoder" else 0
    return BatchShape(work.batch_size, mine, work.beam_width, lengths, new, cached, output, scaled)


def prefill_steps(bound_plan: BoundPlan, batch_shape: BatchShape) -> list[tuple[Step | list[Step], float]]:
    """The steps of the prompts and how often each runs; a list of steps is one per layer (token pruning)."""
    if isinstance(batch_shape.input_len, tuple):
        return [([Step((Group(batch_shape.batch_per_replica, n, 0),)) for n in batch_shape.input_len], 1.0)]
    return list(
        budgeted_prefill(bound_plan, batch_shape.batch_per_replica, batch_shape.new_tokens, batch_shape.cached_tokens)
    )


def decode_step(bound_plan: BoundPlan, batch_shape: BatchShape) -> Step | list[Step]:
    """One step at the mean context of the answer: of a micro-batch, and of a verification if tokens are drafted."""
    if isinstance(batch_shape.input_len, tuple):
        return [phases.decode(batch_shape.sequences, n, batch_shape.output_len) for n in batch_shape.input_len]
    each = batch_shape.sequences / micro_batches(bound_plan, batch_shape.sequences)
    if bound_plan.plan.speculation is not None:
        return speculative_step(bound_plan, each, batch_shape.context, batch_shape.output_len).verify
    return phases.decode(each, batch_shape.context, batch_shape.output_len)


def mixed_step(bound_plan: BoundPlan, batch_shape: BatchShape) -> Step:
    """A step of chunked prefill: all sequences decode, and a piece of a prompt fills the rest of the token budget."""
    decoding = phases.decode(batch_shape.sequences, batch_shape.context, batch_shape.output_len).groups
    piece = max(0, min(batch_shape.new_tokens, bound_plan.plan.max_num_batched_tokens - batch_shape.sequences))
    if not piece:
        return Step(decoding)
    chunk = Group(
        1, piece, batch_shape.cached_tokens + (batch_shape.new_tokens - piece) / 2, piece / batch_shape.new_tokens
    )
    return Step((*decoding, chunk))


def tower_step(batch_shape: BatchShape) -> Step:
    """The images of the prompts."""
    return Step((), batch_shape.images)


def prompt_seconds(bound_plan: BoundPlan, batch_shape: BatchShape) -> Value:
    """From the first prompt token to the last sequence's first token, front end not counted."""
    first = stage_plans(bound_plan)[0]
    seen = tower_rows(first, tower_step(batch_shape)) if batch_shape.images.count else []
    took = float(sum(row.seconds * row.count for row in seen))
    steps = prefill_steps(bound_plan, batch_shape)
    if isinstance(steps[0][0], list):
        return took + _per_layer(bound_plan, steps[0][0])
    return took + prefill_seconds(bound_plan, steps)  # type: ignore[arg-type]


def token_seconds(bound_plan: BoundPlan, batch_shape: BatchShape) -> Value:
    """Mean seconds per output token."""
    step = decode_step(bound_plan, batch_shape)
    if isinstance(step, list):
        return _per_layer(bound_plan, step)
    return decode_seconds(bound_plan, batch_shape.sequences, batch_shape.context, batch_shape.output_len)


def _per_layer(bound_plan: BoundPlan, steps: list[Step]) -> float:
    return float(sum(row.seconds * row.count for row in step_rows(bound_plan, steps)))


# ------------------------------------------------------------------ figures
# What users of a plan see, of one workload or of arrays of them: waits, rates, cost, energy.
#
# setup = request("llama-3.1-8b", "h200").bind()
# figures(setup, talk_of(setup, batch[:, None], input_len[None, :], 128)).tpot  # axes that broadcast: a whole grid
#
# Axes that stand apart (one dimension each) are cheap: what depends on the batch alone is computed once per batch.


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


def uniform_batch_shape(
    bound_plan: BoundPlan, batch: Value, input_len: Value, output_len: Value, prefix_len: Value = 0
) -> BatchShape:
    """Prompts and answers by the numbers, which may be arrays that broadcast: ``talk_of(setup, 8, 1024, 128)``"""
    mine = -(-batch // bound_plan.plan.data_parallel_size)
    return BatchShape(batch, mine, 1, input_len, input_len - prefix_len, prefix_len, output_len)


def frontend_seconds(bound_plan: BoundPlan, tokens: Value = 0.0) -> Value:
    """Seconds that a request takes outside of steps, with so many tokens in its prompts."""
    e = bound_plan.engine
    http = e.http_overhead + e.token_overhead * tokens
    return e.request_overhead + (http if bound_plan.plan.frontend == "http" else 0.0)


def predict(bound_plan: BoundPlan, batch_shape: BatchShape) -> Prediction:
    """Of a batch that is prefilled and then decodes together, until its last token."""
    ttft = frontend_seconds(bound_plan, batch_shape.batch_size * batch_shape.context) + prompt_seconds(
        bound_plan, batch_shape
    )
    more = batch_shape.output_len > 1
    tpot = token_seconds(bound_plan, batch_shape) * more
    e2el = ttft + maximum_of(batch_shape.output_len - 1, 0) * tpot
    return throughput_and_cost(
        bound_plan,
        ttft,
        tpot,
        e2el,
        batch_shape.batch_size * batch_shape.new_tokens,
        batch_shape.batch_size * batch_shape.output_len,
        batch_shape.batch_size * batch_shape.context,
    )


def throughput_and_cost(
    bound_plan: BoundPlan, ttft: Value, tpot: Value, e2el: Value, new: Value, produced: Value, read: Value
) -> Prediction:
    """The rates that follow: ``new`` prompt tokens computed, ``produced`` tokens of answers, ``read`` of prompts."""
    gpus, device = bound_plan.plan.gpus, bound_plan.device
    rate = produced / e2el
    each = e2el / maximum_of(produced, 1) * gpus  # device-seconds of an output token
    return Prediction(
        ttft,
        tpot,
        e2el,
        new / ttft,
        rate,
        (produced + read) / e2el,
        rate / gpus,
        cost_per_million_tokens(each, device.price_per_hour) if device.price_per_hour else None,
        joules_per_token(each, device.power) if device.power else None,
    )


def cost_per_million_tokens(gpu_seconds: Value, price_per_hour: Value) -> Value:
    """US dollars for a million output tokens of which each takes ``gpu_seconds`` on GPUs that cost so much an hour.

    Numbers or arrays: ``cost_per_million_tokens(8 / 4000, 3.6)  # 2.0: eight GPUs give 4,000 tokens/s``
    """
    return gpu_seconds * price_per_hour / 3600 * 1e6


def joules_per_token(gpu_seconds: Value, power: Value) -> Value:
    """Energy of an output token that takes ``gpu_seconds`` on GPUs of so many watts: ``joules_per_token(0.01, 700)``"""
    return gpu_seconds * power
