"""What a run ran into that costs money: a queue that grows for ever, steps or a cache that are too small, options that
changed nothing; each with what to change.

run_warnings(trace, pools, options, outcome)     # ("requests come at 2/s and are answered at 0.9/s: …",)
"""

from __future__ import annotations

import msgspec
import numpy as np

from ..base.units import percent, seconds
from ..inference.step_cliffs import budget_cliff, graph_cliff, tokens_per_decode
from ..specs.arguments import flag
from .arrivals import is_closed_loop
from .deployment import Pools, ReplicaPool, ServingOptions
from .outcome import Outcome
from .steady_run import queue_grows, too_short
from .trace import Trace

OFTEN = 0.05  # share of the requests, or of the time, from which on a cliff is worth a word
THRASHING = 0.02  # preemptions per request


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
            f"requests come at {count / lasted:.3g} a second and are answered at {answered}: the queue grows as long "
            f"as they come, and latencies depend on the length of the run; {flag('request_rate')} below {answered}, "
            f"more replicas, or {flag('find_capacity')} for the highest rate that holds"
        )
    if too_short(outcome) and trace.source in ("", "synthetic"):
        mean = float(np.nanmean(outcome.finished_s - outcome.arrival_s))
        return (
            f"requests came for {seconds(lasted)} and took {seconds(mean)} each: a burst, which does not show what a "
            f"rate does in the long run; a larger {flag('num_prompts')} does"
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
        f"{preemptions:,} times a request lost its KV cache and was computed anew: a replica's cache of "
        f"{pool.kv_cache_tokens:,} tokens holds {seats:,} requests to their ends; {flag('max_num_seqs')} {seats} lets "
        f"no more begin{smaller}"
    )


def _idle_options(trace: Trace, pools: Pools, options: ServingOptions, outcome: Outcome) -> list[str]:
    """Options that were given and changed nothing, each with the reason."""
    replicas = sum(pool.replicas for _, pool in pools)
    threshold, longest = options.long_prefill_token_threshold, int(outcome.input_tokens.max(initial=0))
    no_prefixes = trace.blocks is None or outcome.prefix_hit_rate == 0
    idle = [
        (options.policy == "priority" and trace.priority is None, "policy", "the requests have no priorities"),
        (options.router != "round_robin" and replicas == 1, "router", "there is one replica"),
        (threshold >= longest > 0 and threshold > 0, "long_prefill_token_threshold", "no prompt is longer"),
        (bool(options.enable_prefix_caching) and no_prefixes, "enable_prefix_caching", "no two prompts begin alike"),
        (
            options.max_concurrency is not None and options.max_concurrency >= len(trace),
            "max_concurrency",
            f"there are {len(trace):,} requests",
        ),
    ]
    return [f"{flag(name)} changes nothing here: {why}" for holds, name, why in idle if holds]
