"""The steady state of continuous batching, as means: what a server's users see while d sequences decode.

With d sequences decoding and answers of O tokens, every step ends λ = d·accepted/(O-1) answers, so that in the steady
state λ prompts arrive per step. A step is either decode alone, or decode and chunks of prompts ("mixed"); how often the
second happens follows from λ and the token budget. So a mean step, and with it TPOT, throughput and TTFT, are functions
of d: no queue is simulated here. Percentiles come from formulas for queues (`mean_wait`, `even_arrivals`,
`wait_at_share`) and, for the plans that matter, from the simulator.

Arrays have the axes ``[server, token_budget, seqs, load]``, of which each has some: a load is a number d of decoding
sequences, a token budget a value of ``max_num_batched_tokens``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.cache import cache_by_identity
from ..base.symbols import Value
from ..costs import host, parallelism, roofline
from ..costs.binding import BoundPlan, calibration_factor, padded_env, stage_plans, step_env, step_seconds
from ..costs.power import Activity, idle_watts, power_model
from ..costs.roofline import KernelWork
from ..costs.step import Group, Step
from ..inference.latency import frontend_seconds
from ..inference.speculation import draft_plan
from ..network.graph import Block
from ..specs.structs import Engine, Plan
from .objective import Traffic

MIXED_BATCHING = ("vllm", "sarathi", "trtllm")  # schedulers with steps of prefill and decode at once
MAX_UTILIZATION = 0.999  # a queue of prompts is never longer than at this utilization of the token budget


class LoadGrid(NamedTuple):
    """The steps of all loads of one micro-batch of a server; they depend on requests and engine, not on the layout."""

    decoding: np.ndarray  # [load] d, sequences that decode in one micro-batch
    token_budgets: np.ndarray  # [token_budget]
    input_len: float  # tokens of a prompt
    new_tokens: float  # those of them that are computed, not cached
    context: float  # mean tokens before a decoded token
    decode_tokens: float  # tokens of an answer after the first
    arrivals_per_step: np.ndarray  # [load] λ
    mixed_step_ratio: np.ndarray  # [token_budget, load] steps with prompts per decode step
    chunks_per_prompt: np.ndarray  # [token_budget, load]
    prefill_budget: np.ndarray  # [token_budget, load] tokens of a step that prompts may have
    mixed_batches: bool  # whether decode goes on in steps with prompts
    accepted_per_step: float  # tokens that a sequence gains by a decode step
    step: Step  # all steps in one array: decode [load], mixed [token_budget·load], one prompt, a full budget


def concurrency_grid(most: int) -> np.ndarray:
    """Numbers of sequences up to a limit, four an octave: 1 2 3 4 5 6 7 8 10 11 13 16 19 …"""
    octaves = np.arange(0, 4 * np.log2(max(most, 1)) + 1) / 4
    return np.unique(np.append(np.round(2**octaves), most)).clip(1, most).astype(float)


def load_grid(
    traffic: Traffic, engine: Engine, plan: Plan, max_num_batched_tokens: tuple[int, ...], max_num_seqs: int
) -> LoadGrid:
    """Loads up to ``max_num_seqs`` under every token budget: ``load_grid(traffic, engine, plan, (2048, 8192), 64)``"""
    speculation = plan.speculation
    tokens_per_decode = 1 + (speculation.num_speculative_tokens if speculation else 0)
    accepted_per_step = speculation.acceptance_length if speculation else 1.0
    cached = float(traffic.prefix_len if engine.prefix_caching else 0)
    new_tokens, decode_tokens = traffic.input_len - cached, max(traffic.decode_tokens, 1)
    context = traffic.input_len + traffic.output_len / 2
    mixed_batches = engine.scheduler in MIXED_BATCHING
    decoding, token_budgets = concurrency_grid(max_num_seqs), np.array(max_num_batched_tokens, float)
    d = np.broadcast_to(decoding, (len(token_budgets), len(decoding)))
    arrivals = decoding * accepted_per_step / decode_tokens
    prefill_budget = token_budgets[:, None] - tokens_per_decode * d * mixed_batches
    chunks, prefill_tokens = _prefill_tokens(arrivals, new_tokens, prefill_budget, mixed_batches)
    alone = new_tokens / np.ceil(new_tokens / token_budgets)
    tokens = np.concatenate([0 * decoding, prefill_tokens.ravel(), alone, token_budgets])
    chunk = np.maximum(np.minimum(new_tokens, tokens), 1)
    decodes = np.concatenate([decoding, (d * mixed_batches).ravel(), 0 * token_budgets, 0 * token_budgets])
    prefill_group = Group(tokens / chunk, chunk, cached + (new_tokens - chunk) / 2, chunk / new_tokens)
    decode_group = Group(decodes, tokens_per_decode, context, tokens_per_decode, True)
    return LoadGrid(
        decoding=decoding,
        token_budgets=token_budgets,
        input_len=traffic.input_len,
        new_tokens=new_tokens,
        context=context,
        decode_tokens=decode_tokens,
        arrivals_per_step=arrivals,
        mixed_step_ratio=np.minimum(arrivals * new_tokens / prefill_tokens, 1.0 if mixed_batches else np.inf),
        chunks_per_prompt=chunks,
        prefill_budget=prefill_budget,
        mixed_batches=mixed_batches,
        accepted_per_step=accepted_per_step,
        step=Step((prefill_group, decode_group)),
    )


def _prefill_tokens(
    arrivals: np.ndarray, new_tokens: float, prefill_budget: np.ndarray, mixed_batches: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Chunks per prompt, and mean prompt tokens of a step that has any: both [token_budget, load].

    Arrivals during a step are Poisson with mean λ; given at least one, their mean is λ / (1 - exp(-λ)). It is rounded
    to whole prompts, since seconds jump where CUDA graphs end.
    """
    batched = new_tokens * np.round(arrivals / -np.expm1(-arrivals))
    budget = np.maximum(prefill_budget, 1.0)
    if not mixed_batches:  # whole prompts: one that is above the budget comes alone
        whole_prompts = new_tokens * np.maximum(np.floor(budget / new_tokens), 1)
        return np.ones(budget.shape), np.minimum(batched, whole_prompts)
    # A prompt alone takes ⌈prompt/budget⌉ steps. The last chunk leaves room, which the next prompt takes if one waits,
    # with a probability that is the utilization of the budget: then prompts take prompt/budget steps in the mean.
    chunks, utilization = np.ceil(new_tokens / budget), np.minimum(arrivals * new_tokens / budget, 1)
    chunked = new_tokens / (chunks + utilization * (new_tokens / budget - chunks))
    return chunks, np.where(chunks > 1, chunked, np.minimum(batched, budget))


class DistinctStage(NamedTuple):
    """A pipeline stage, and how many stages of the pipeline are like it."""

    bound_plan: BoundPlan
    copies: int


def distinct_stages(bound_plan: BoundPlan) -> list[DistinctStage]:
    """The stages of a plan's pipeline, equal ones once: ``sum(stage.copies for …)`` is the pipeline's depth."""
    distinct: dict[tuple[tuple[int, int], ...], DistinctStage] = {}
    for stage in stage_plans(bound_plan):
        key = tuple((id(block.ops), block.count) for block in stage.model.blocks)
        known = distinct.get(key, DistinctStage(stage, 0))
        distinct[key] = known._replace(copies=known.copies + 1)
    return list(distinct.values())


@cache_by_identity(2000)
def single_layer(block: Block) -> Block:
    """A block with one of its layers."""
    return msgspec.structs.replace(block, layers=block.layers[:1])


class StageSeconds:
    """Seconds of some steps on any stage of a layout: ``StageSeconds(bound_plan, step).kernels(stage.bound_plan)``

    A stage is some layers of each block. So a model cut into 16 stages costs no more to estimate than the whole: its
    blocks are estimated for one layer and multiplied.
    """

    def __init__(
        self, bound_plan: BoundPlan, step: Step, seen: dict[Any, Any] | None = None, prompt_ranks: Any = None
    ) -> None:
        """``seen``: seconds of kernels of other layouts of the same search, which have many in common;
        ``prompt_ranks``: of the data-parallel ranks that meet at the experts, those that have prompts; else all."""
        self.bound_plan = bound_plan
        if prompt_ranks is not None:
            bound_plan = bound_plan._replace(env={**bound_plan.env, "prompt_ranks": prompt_ranks})
        plan, engine = bound_plan.plan, bound_plan.engine
        kernels = (id(bound_plan.device), id(engine.kernels), engine.profile)  # rules of an engine change other figures
        formats = (*kernels, plan.dtype, plan.quantization)
        places = parallelism.places(plan, bound_plan.device)
        self.seen = roofline.SeenKernels(seen if seen is not None else {}, formats, plan.kv_cache_dtype, places)
        self.env = step_env(bound_plan, step)
        self.padded_env = padded_env(bound_plan, self.env)
        self._layer_work: dict[int, KernelWork] = {}  # by the identity of a block's operators

    def kernels(self, stage: BoundPlan) -> KernelWork:
        """A stage's kernels. Activations between stages go over the stage's own link."""
        total = KernelWork(0.0, 0.0, 0.0, 0.0)
        for block in stage.model.blocks:
            if block.stage == "vision":
                continue
            if block.name == "pipeline":
                link = {name: stage.env[name] for name in ("pp_bandwidth", "pp_latency")}
                seen = self.seen.on(parallelism.places(stage.plan, stage.device))
                total = total.plus(roofline.kernel_work((block,), {**self.padded_env, **link}, stage.sources, seen))
                continue
            key = id(block.ops)
            if key not in self._layer_work:
                layer = (single_layer(block),)
                self._layer_work[key] = roofline.kernel_work(layer, self.padded_env, self.bound_plan.sources, self.seen)
            total = total.plus(self._layer_work[key], block.count)
        return total

    def total(self, stage: BoundPlan, kernels: Value, thermal_state: Value = 0.0) -> Any:
        """A step's seconds on a stage with these kernel seconds, the host's time included."""
        hot = {name: stage.env[name] for name in ("hot_seconds",) if name in stage.env}  # of its own layers
        env = {**self.env, **hot, "thermal_state": thermal_state}
        overhead = host.host_seconds(stage.model, stage.engine, env, kernels)
        return (kernels + overhead) * calibration_factor(stage, env)


class SteadyState(NamedTuple):
    """One data-parallel rank of a server under every load."""

    decoding: np.ndarray  # [load] sequences that decode on the rank, in all its micro-batches
    base_ttft: np.ndarray  # [token_budget, load] s, mean, without queueing behind other prompts
    queue_seconds: np.ndarray  # [token_budget, load] s, mean wait behind other prompts of Poisson arrivals
    utilization: np.ndarray  # [token_budget, load] of the budget for prompts
    tpot: np.ndarray  # [token_budget, load] s, mean
    request_rate: np.ndarray  # [token_budget, load] requests/s; 0 where the budget lets in fewer prompts than end
    prefill_seconds: np.ndarray  # [token_budget] s of a prompt on a rank of a prefill pool
    prefill_rate: np.ndarray  # [token_budget] prompts/s of such a rank
    decode_tpot: np.ndarray  # [load] s between two tokens on a rank of a decode pool
    decode_rate: np.ndarray  # [load] requests/s of such a rank
    watts: np.ndarray  # [token_budget, load] of a GPU, mean; of this and the next two 0 if its power is not known
    prefill_watts: np.ndarray  # [token_budget] of a GPU of a prefill pool that always has prompts
    decode_watts: np.ndarray  # [load] of a GPU of a decode pool


def steady_states(
    bound_plans: list[BoundPlan], loads: LoadGrid, seen: dict[Any, Any] | None = None
) -> list[SteadyState]:
    """One layout at several depths of pipeline: its blocks are estimated once. ``seen``: as of `StageSeconds`."""
    ranks = int(bound_plans[0].env["dp"])
    stage_seconds = StageSeconds(bound_plans[0], loads.step, seen, _prompt_ranks(loads, ranks) if ranks > 1 else None)
    draft_seconds = _draft_seconds(bound_plans[0], loads)
    return [_steady_state(bound_plan, stage_seconds, loads, draft_seconds) for bound_plan in bound_plans]


def _draft_seconds(bound_plan: BoundPlan, loads: LoadGrid) -> Any:
    """Seconds of drafting before a step [load]."""
    speculation = bound_plan.plan.speculation
    if speculation is None or speculation.method == "ngram":
        return 0.0
    one_token = Step((Group(loads.decoding, 1, loads.context, 1, True),))
    return speculation.num_speculative_tokens * step_seconds(draft_plan(bound_plan), one_token)


class _StepKinds(NamedTuple):
    """Seconds of the four kinds of steps of a `LoadGrid`."""

    decode: Any  # [load]
    mixed: Any  # [token_budget, load]
    prompt: Any  # [token_budget] one chunk of a prompt alone
    full: Any  # [token_budget] a budget full of prompts


class _PipelineSeconds(NamedTuple):
    """Seconds of steps through all pipeline stages, and on the slowest one; mean watts of a GPU in them."""

    total: _StepKinds
    slowest: _StepKinds
    watts: _StepKinds


def _steady_state(
    bound_plan: BoundPlan, stage_seconds: StageSeconds, loads: LoadGrid, draft_seconds: Any
) -> SteadyState:
    """The means of one depth of pipeline; a pipeline of n stages has n micro-batches in flight."""
    micro_batches = bound_plan.plan.pipeline_parallel_size
    ratio = mixed_on_any_rank(loads.mixed_step_ratio, int(bound_plan.env["dp"]))
    steps = _pipeline_seconds(bound_plan, stage_seconds, loads, ratio)
    total, slowest, watts = steps
    period = _token_period(steps, loads, micro_batches, ratio)
    step_interval = np.maximum(period / micro_batches, 1e-12)  # from the start of a step to the next, any micro-batch
    tpot = (period + draft_seconds) / loads.accepted_per_step
    budget = np.maximum(loads.prefill_budget, 1)
    if loads.mixed_batches:
        utilization = loads.arrivals_per_step * loads.new_tokens / budget
        prompt_seconds = slowest.mixed * (loads.new_tokens / budget)
    else:
        utilization = ratio * slowest.mixed / step_interval
        prompt_seconds = slowest.mixed * (loads.mixed_step_ratio / loads.arrivals_per_step)
    decoding = micro_batches * loads.decoding
    keeps_up = (utilization < 1) & (loads.prefill_budget > 0)
    residual, poisson_excess = _residual_step(slowest, loads, ratio, step_interval, decoding)
    # an asynchronous scheduler has planned the step after the one under way already: a prompt waits for that, too
    planned = step_interval if bound_plan.engine.async_scheduling and micro_batches == 1 else 0.0
    busy = _busy(decoding)
    base_ttft = (
        frontend_seconds(bound_plan, loads.input_len)
        + busy * (residual + planned)
        + total.mixed
        + (loads.chunks_per_prompt - 1) * slowest.mixed
    )
    queue_seconds = mean_wait(utilization) * prompt_seconds + poisson_excess
    chunks_alone = np.ceil(loads.new_tokens / loads.token_budgets)
    decode_tpot = (np.maximum(total.decode, micro_batches * slowest.decode) + draft_seconds) / loads.accepted_per_step
    return SteadyState(
        decoding=decoding,
        base_ttft=base_ttft,
        queue_seconds=queue_seconds,
        utilization=utilization + 0 * queue_seconds,
        tpot=tpot,
        request_rate=np.where(keeps_up, decoding / loads.decode_tokens / tpot, 0.0),
        prefill_seconds=total.prompt + (chunks_alone - 1) * slowest.prompt,
        prefill_rate=loads.token_budgets / loads.new_tokens / slowest.full,
        decode_tpot=decode_tpot,
        decode_rate=decoding / loads.decode_tokens / decode_tpot,
        watts=_mean_watts(bound_plan, steps, loads, ratio, busy),
        prefill_watts=watts.full,
        decode_watts=watts.decode,
    )


def _busy(decoding: np.ndarray) -> np.ndarray:
    """Probability that a request arrives while a step runs: some sequence decodes, their number being Poisson."""
    busy: np.ndarray = -np.expm1(-decoding)
    return busy


def mixed_on_any_rank(ratio: Any, ranks: int) -> Any:
    """Steps in which some rank has a prompt, per decode step, where a rank has one in ``ratio`` of them by itself.

    Ranks that meet at the experts step together: ``mixed_on_any_rank(0.1, 4)  # 0.34``
    """
    own = np.clip(ratio, 1e-12, 1.0)
    return ratio * (1 - (1 - own) ** ranks) / own if ranks > 1 else ratio


def _prompt_ranks(loads: LoadGrid, ranks: int) -> np.ndarray:
    """Ranks that have prompts in the steps of ``loads.step``: in mixed steps at least one, in all others all."""
    ratio = np.maximum(loads.mixed_step_ratio, 1e-12)
    mixed = ranks * ratio / np.maximum(mixed_on_any_rank(ratio, ranks), 1e-12)
    pools = np.full(2 * len(loads.token_budgets), float(ranks))  # steps of a prefill pool
    return np.concatenate([np.full(len(loads.decoding), float(ranks)), mixed.ravel(), pools])


def _residual_step(
    slowest: _StepKinds, loads: LoadGrid, ratio: Any, step_interval: Any, decoding: np.ndarray
) -> tuple[Any, Any]:
    """Seconds that are left of the step under way when a request arrives [token_budget, load], and what is added to
    them if arrivals are Poisson.

    Evenly spaced requests arrive after the mixed steps of others: half a decode step is left. Poisson arrivals see time
    averages (PASTA) and are more likely to fall into a long mixed step: the mean residual is E[S²] / 2E[S] over all
    steps S. The second figure is the difference of the two; it shrinks like a queue where arrivals are more even.
    """
    second_moment = slowest.decode**2 * (1 - ratio * loads.mixed_batches) + ratio * slowest.mixed**2
    return slowest.decode / 2, _busy(decoding) * (second_moment / step_interval - slowest.decode) / 2


def _token_period(steps: _PipelineSeconds, loads: LoadGrid, micro_batches: int, share: Any) -> Any:
    """Mean seconds from one decode step of a micro-batch to its next [token_budget, load].

    A step passes all stages, or waits for the other micro-batches on the slowest one. A prompt in one micro-batch holds
    up all others: its n chunks, which follow each other from micro-batch to micro-batch, touch n + micro_batches - 1
    periods instead of n.
    """
    total, slowest, _ = steps
    decode = np.maximum(total.decode, micro_batches * slowest.decode)
    mixed = np.maximum(total.mixed, micro_batches * slowest.mixed)
    if loads.mixed_batches and micro_batches > 1:
        share = 1 - (1 - share) ** ((loads.chunks_per_prompt + micro_batches - 1) / loads.chunks_per_prompt)
    return _mean_step(loads, decode, mixed, share)


def _pipeline_seconds(
    bound_plan: BoundPlan, stage_seconds: StageSeconds, loads: LoadGrid, ratio: Any
) -> _PipelineSeconds:
    """All steps through the pipeline; on a GPU that throttles, at the clock that the mean share of prefill leaves."""
    stages = distinct_stages(bound_plan)
    kernels = [stage_seconds.kernels(stage.bound_plan) for stage in stages]
    model = power_model(bound_plan.device, bound_plan.plan.power_cap)
    depth = bound_plan.plan.pipeline_parallel_size
    work = [  # of the mean stage: busy, at peak FLOP/s, at peak bandwidth
        sum(stage.copies * getattr(k, name) for stage, k in zip(stages, kernels, strict=True)) / depth
        for name in ("busy", "compute", "memory")
    ]

    def pipeline(thermal_state: Any) -> _PipelineSeconds:
        seconds = [
            stage_seconds.total(stage.bound_plan, k.seconds, thermal_state)
            for stage, k in zip(stages, kernels, strict=True)
        ]
        total = sum(stage.copies * s for stage, s in zip(stages, seconds, strict=True))
        longest = np.max(seconds, axis=0)
        watts = model.watts(Activity(longest, *work)) if model else 0.0 * longest
        return _PipelineSeconds(*(_by_kind(loads, flat) for flat in (total, longest, watts)))

    cold = pipeline(0.0)
    if not bound_plan.env["throttle"]:
        return cold
    slowest = cold.slowest
    mean = np.maximum(_mean_step(loads, slowest.decode, slowest.mixed, ratio), 1e-12)
    in_mixed_steps = np.minimum(loads.mixed_step_ratio * slowest.mixed / mean, 1)  # share of the time
    prefill_share = stage_seconds.env["prefill_tokens"] / np.maximum(stage_seconds.env["tokens"], 1)
    always = np.ones(2 * len(loads.token_budgets))  # steps of a prefill pool
    return pipeline(np.concatenate([0 * loads.decoding, in_mixed_steps.ravel(), always]) * prefill_share)


def _mean_watts(bound_plan: BoundPlan, steps: _PipelineSeconds, loads: LoadGrid, share: Any, busy: Any) -> Any:
    """Of a GPU [token_budget, load]: decode and mixed steps by their seconds, and idle where nothing is under way."""
    _, seconds, watts = steps
    joules = _mean_step(loads, seconds.decode * watts.decode, seconds.mixed * watts.mixed, share)
    running = joules / np.maximum(_mean_step(loads, seconds.decode, seconds.mixed, share), 1e-30)
    idle = idle_watts(bound_plan.device)
    return idle + busy * np.maximum(running - idle, 0.0)


def _mean_step(loads: LoadGrid, decode: Any, mixed: Any, share: Any) -> Any:
    """Mean seconds from a decoded token to the next: mixed steps take the place of decode steps, or come in between."""
    return decode * (1 - share * loads.mixed_batches) + share * mixed


def _by_kind(loads: LoadGrid, flat: Any) -> _StepKinds:
    """The seconds of all steps of ``loads.step``, kind by kind."""
    n, budgets = len(loads.decoding), len(loads.token_budgets)
    flat = np.broadcast_to(flat, (n * (1 + budgets) + 2 * budgets,))
    decode, mixed, prompt, full = np.split(flat, np.cumsum([n, n * budgets, budgets]))
    return _StepKinds(decode, mixed.reshape(budgets, n), prompt, full)


def mean_wait(utilization: Any) -> Any:
    """Mean wait in an M/D/1 queue in units of the service time (Pollaczek-Khinchine): ``mean_wait(0.5)  # 0.5``"""
    rho = np.minimum(utilization, MAX_UTILIZATION)
    return rho / (1 - rho) / 2


def even_arrivals(utilization: Any, scv: Any) -> Any:
    """Factor of `mean_wait` where arrivals are more even than Poisson (Krämer and Langenbach-Belz, G/D/1).

    ``scv`` is the squared coefficient of variation of the gaps: 1 of Poisson, 1/n of every n-th of such arrivals.
    """
    rho = np.clip(utilization, 1e-9, MAX_UTILIZATION)
    return scv * np.exp(-2 * (1 - rho) / 3 / rho * np.maximum(1 - scv, 0) ** 2 / scv)


def wait_at_share(utilization: Any, share: float) -> Any:
    """The percentile ``share`` of waits in units of their mean, the tail of waits being exponential; at least 1.

    A request waits with probability ρ, then exponentially with mean W/ρ: P(wait > t) = ρ·exp(-t·ρ/W).
    """
    rho = np.clip(utilization, 1e-9, MAX_UTILIZATION)
    return np.maximum(np.log(rho / max(1 - share, 1e-6)) / rho, 1.0)
