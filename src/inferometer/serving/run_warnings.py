"""What a run ran into that costs money: a queue that grows for ever, steps or a cache that are too small, options that
changed nothing; each with what to change.

run_warnings(trace, pools, options, outcome)     # ("requests come at 2/s and are answered at 0.9/s: …",)
"""

from __future__ import annotations

import msgspec
import numpy as np

from ..base.units import percent, plural, seconds
from ..inference.step_cliffs import budget_cliff, graph_cliff, tokens_per_decode
from ..specs.arguments import flag
from .arrivals import is_closed_loop
from .deployment import Pools, ServingOptions
from .outcome import Outcome
from .replica_pool import ReplicaPool
from .trace import Trace

OFTEN = 0.05  # share of the requests, or of the time, from which on a cliff is worth a word
THRASHING = 0.02  # preemptions per request
WARM_UP = 0.25  # of the requests: an engine fills up first
BATCHES = 8  # consecutive parts of the other requests, whose mean waits are compared
T_VALUE = 4.0  # slope over its standard error: one in 300 for BATCHES independent means of a queue that does not grow
ENOUGH_E2ELS = 5  # mean end-to-end latencies that arrivals must last
OVERLOAD = 0.02  # seconds that the wait grows in a second of arrivals, from which a queue is said to grow


def with_run_warnings(outcome: Outcome, trace: Trace, pools: Pools, options: ServingOptions) -> Outcome:
    """The outcome, its own warnings followed by those of its run."""
    return msgspec.structs.replace(outcome, warnings=(*outcome.warnings, *run_warnings(trace, pools, options, outcome)))


def run_warnings(trace: Trace, pools: Pools, options: ServingOptions, outcome: Outcome) -> tuple[str, ...]:
    """Sentences about a run, the most important first."""
    if not outcome.done.any():
        return ()
    warnings = [
        _growing_queue(trace, options, outcome),
        _small_budget(pools, options, outcome),
        _beyond_graphs(pools, outcome),
        _small_cache(pools, outcome),
        *_idle_options(trace, pools, options, outcome),
    ]
    return tuple(warning for warning in warnings if warning)


def _growing_queue(trace: Trace, options: ServingOptions, outcome: Outcome) -> str:
    """Requests come faster than they are answered, or the run is too short to tell."""
    lasted = float(np.ptp(outcome.arrival_s[outcome.done]))
    if is_closed_loop(trace, options.max_concurrency) or not lasted:
        return ""
    if queue_grows(outcome):
        count = int(outcome.done.sum())
        answered = f"{count / outcome.duration_s:.3g}"
        return (
            f"requests arrive at {count / lasted:.3g}/s but complete at {answered}/s: the queue keeps growing, so "
            f"latencies depend on the length of the run; use {flag('request_rate')} below {answered}, more replicas, "
            f"or {flag('find_capacity')} to find the highest rate"
        )
    if too_short(outcome) and trace.source in ("", "synthetic"):
        mean = float(np.nanmean(outcome.finished_s - outcome.arrival_s))
        return (
            f"requests arrive for only {seconds(lasted)} and take {seconds(mean)} each: this is a burst, not a steady "
            f"state; use a larger {flag('num_prompts')}"
        )
    return ""


def _decoding(pools: Pools) -> list[ReplicaPool]:
    """The pools whose replicas answer."""
    return [pool for role, pool in pools if role != "prefill"]


def _per_replica(outcome: Outcome, pools: list[ReplicaPool]) -> np.ndarray:
    """Requests that ran on a replica over time, the replicas' mean."""
    running: np.ndarray = outcome.series["running"] / max(1, sum(pool.replicas for pool in pools))
    return running


def _small_budget(pools: Pools, options: ServingOptions, outcome: Outcome) -> str:
    """A budget of a step that a prompt fills, where prompts are not cut."""
    done, (role, pool) = outcome.done, pools[0]
    if role != "both" or not np.any(outcome.series["waiting"] > 0):
        return ""
    plan = pool.bound_plan.plan
    prompts = (outcome.input_tokens - outcome.cached_tokens)[done]
    uncut = prompts[prompts <= plan.max_num_batched_tokens]
    if len(uncut) < OFTEN * len(prompts):
        return ""
    waiting = float((outcome.series["waiting"] + outcome.series["running"]).max()) / pool.replicas
    seats = pool.kv_cache_tokens / float((outcome.input_tokens + outcome.output_tokens)[done].mean())
    seqs = min(plan.max_num_seqs, pool.max_num_seqs, int(seats), int(waiting))
    longest = float(np.percentile(uncut, 100 * (1 - OFTEN)))
    return budget_cliff(pool.bound_plan.engine, plan, longest, seqs, options.scheduler)


def _beyond_graphs(pools: Pools, outcome: Outcome) -> str:
    """More sequences in a step than CUDA graphs were captured for."""
    decoding = _decoding(pools)
    pool = decoding[0]
    running = _per_replica(outcome, decoding)
    beyond = running * tokens_per_decode(pool.bound_plan.plan) > pool.bound_plan.engine.graph_tokens
    if not len(running) or not beyond.any():
        return ""
    lasted = np.diff(outcome.series["time_s"], prepend=0.0)
    share = float(lasted[beyond].sum() / max(lasted.sum(), 1e-12))
    if share < OFTEN:
        return ""
    context = float((outcome.input_tokens + outcome.output_tokens / 2)[outcome.done].mean())
    cliff = graph_cliff(pool.bound_plan, round(float(np.average(running[beyond], weights=lasted[beyond]))), context)
    return f"for {percent(share)} of the time {cliff}" if cliff else ""


def _small_cache(pools: Pools, outcome: Outcome) -> str:
    """Requests that lose their KV cache again and again."""
    preemptions, count = int(outcome.preemptions.sum()), int(outcome.done.sum())
    if preemptions < THRASHING * count:
        return ""
    pool = min(_decoding(pools), key=lambda one: one.kv_cache_tokens)
    lengths = (outcome.input_tokens + outcome.output_tokens)[outcome.done]
    seats = max(1, int(pool.kv_cache_tokens / float(lengths.mean())))
    smaller = f", or {flag('kv_cache_dtype')} fp8" if pool.bound_plan.plan.kv_cache_dtype != "fp8" else ""
    return (
        f"{plural(preemptions, 'preemption')}, each of which recomputes a request: the KV cache of a replica, "
        f"{pool.kv_cache_tokens:,} tokens, holds {plural(seats, 'request')} at full length; use "
        f"{flag('max_num_seqs')} {seats}{smaller}"
    )


def _idle_options(trace: Trace, pools: Pools, options: ServingOptions, outcome: Outcome) -> list[str]:
    """Options that were given and changed nothing, each with the reason."""
    replicas = sum(pool.replicas for _, pool in pools)
    threshold, longest = options.long_prefill_token_threshold, int(outcome.input_tokens.max(initial=0))
    no_prefixes = trace.blocks is None or outcome.prefix_hit_rate == 0
    idle = [
        (options.policy == "priority" and trace.priority is None, "policy", "the requests have no priorities"),
        (options.router != "round_robin" and replicas == 1, "router", "there is only one replica"),
        (threshold >= longest > 0 and threshold > 0, "long_prefill_token_threshold", "no prompt is longer"),
        (bool(options.enable_prefix_caching) and no_prefixes, "enable_prefix_caching", "no two prompts share a prefix"),
        (
            options.max_concurrency is not None and options.max_concurrency >= len(trace),
            "max_concurrency",
            f"there are {len(trace):,} requests",
        ),
    ]
    return [f"{flag(name)} has no effect here: {why}" for holds, name, why in idle if holds]


# ------------------------------------------------------------------ does a queue grow?


def queue_grows(outcome: Outcome) -> bool:
    """Whether requests come faster than they are answered: each one waits longer than those before it.

    With arrivals at λ a second and answers at μ < λ, the wait for the first token grows by λ/μ - 1 seconds a second.
    That slope is fitted to the mean TTFT of consecutive parts of the run; it must exceed OVERLOAD, and what chance
    makes of a queue that comes and goes. The longest answer does not matter, nor does a batch that fills up to its
    steady state (steps take a little longer, prompts do not wait), nor requests that all come at once or wait for
    others to end.
    """
    wait = outcome.first_token_s - outcome.arrival_s
    order = np.argsort(outcome.arrival_s, kind="stable")
    order = order[~np.isnan(wait[order])]
    order = order[int(WARM_UP * len(order)) :]
    if len(order) < 2 * BATCHES:
        return False
    parts = np.array_split(order, BATCHES)
    time = np.array([outcome.arrival_s[part].mean() for part in parts])
    waits = np.array([wait[part].mean() for part in parts])
    time = time - time.mean()
    spread = float((time * time).sum())
    if not spread:
        return False
    slope = float((time * waits).sum()) / spread
    residuals = waits - waits.mean() - slope * time
    error = float(np.sqrt((residuals * residuals).sum() / (BATCHES - 2) / spread))
    return slope > OVERLOAD and slope > T_VALUE * error


def too_short(outcome: Outcome) -> bool:
    """Whether arrivals last less than ENOUGH_E2ELS mean end-to-end latencies: a burst, which says nothing about a rate.

    ``too_short(simulate("llama-3.1-8b", "h200", trace=synthetic(num_prompts=100, request_rate=100)))  # True: 1 s``
    """
    e2el = outcome.finished_s - outcome.arrival_s
    e2el = e2el[~np.isnan(e2el)]
    arrivals = outcome.arrival_s[~np.isnan(outcome.arrival_s)]
    lasted = float(np.ptp(arrivals)) if len(arrivals) else 0.0
    return bool(len(e2el)) and lasted < ENOUGH_E2ELS * float(e2el.mean())
