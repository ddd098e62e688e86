"""What may be wrong with a server, as changes of the simulation's arguments, with levels that make sense for its load.

kinds = cause_kinds(before, "llama-3.1-8b", "h200", plan, server)
kinds[0].change(1.0)        # {"max_cudagraph_capture_size": 0, …}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.units import milliseconds, percent, plural, seconds
from ..inference.request import build_request
from ..serving.metrics_page import ServerStatistics
from ..specs.arguments import arguments
from ..specs.catalog import hardware
from ..specs.plan_args import PlanArgs
from ..specs.structs import Calibration
from .validate import Validation

Change = dict[str, Any]
SMALL_CACHE = 0.7  # share of the planned KV cache below which a server's own is small
LONGER, LEAST_LONGER = 1.5, 3  # times the largest step that a prompt is, and so many prompts, that show a budget


class ShownLimit(NamedTuple):
    """A limit below the plan's that the server's own counters or log show."""

    level: float
    sentence: str


class CauseKind(NamedTuple):
    """A cause that may be: how to say it and simulate it, and the levels to try first."""

    name: str
    levels: tuple[float, ...]
    title: Callable[[float], str]
    change: Callable[[float], Change]
    remedy: str = ""
    predicted: str = ""  # what the prediction has instead: a sentence
    contradicted: str = ""  # by a counter of the server: a sentence
    shown: ShownLimit | None = None  # by a counter or the log of the server
    unit: float = 0.0  # of its levels: 1 where they are whole numbers; 0 where they are not
    least: float = 0.0  # level below which it cannot be, or would be no server

    def rounded(self, level: float) -> float:
        """The nearest level that can be: ``kind.rounded(6.3)  # 6.0``"""
        return max(self.least, round(level / self.unit) * self.unit if self.unit else level)


def merged(change: Change, more: Change) -> Change:
    """Two changes at once; calibrations join."""
    both = {**change, **more}
    if change.get("calibration") is not None and "calibration" in more:
        a, b = change["calibration"], more["calibration"]
        factors = {name: getattr(a, name) * getattr(b, name) for name in ("prefill", "decode", "host")}
        both["calibration"] = msgspec.structs.replace(a, request=a.request + b.request, **factors)
    return both


def cause_kinds(
    before: Validation, model: str, gpu: str, plan: Mapping[str, Any], server: ServerStatistics | None
) -> list[CauseKind]:
    """What may be wrong with this plan, with the levels that make sense for this load."""
    facts = {name: value for name, value in plan.items() if name not in ("calibration", "gpu")}
    request = build_request(model, gpu, **_plan_only(facts))
    is_async = request.engine.async_scheduling and facts.get("async_scheduling") is not False
    return [
        *_slow_steps(gpu, request.engine.graph_tokens > 0, is_async, server),
        *_limits(before, request.plan, server),
        *_around_the_engine(before, server),
    ]


def _plan_only(options: Mapping[str, Any]) -> dict[str, Any]:
    known = arguments(PlanArgs)
    return {name: value for name, value in options.items() if name in known}


def _slow_steps(gpu: str, has_graphs: bool, is_async: bool, server: ServerStatistics | None) -> list[CauseKind]:
    """Steps that take longer than they should: launches, the host, the clocks."""
    device = hardware(gpu)
    separator = "," if ":" in gpu else ":"

    def slower(level: float) -> Change:
        peaks = ",".join(f"flops.{name}={peak * level:g}" for name, peak in device.flops.items())
        return {"gpu": f"{gpu}{separator}{peaks}"}

    kinds = [
        CauseKind(
            "host",
            (1.5, 2.5, 4.0),
            lambda x: f"host-bound steps: planning and launching take {x:.1f} times as long",
            lambda x: {"calibration": Calibration(host=x)},
            "look at the processor's clock and load, pin the server's processes; a quick profile measures this host",
        ),
        CauseKind(
            "clocks",
            (0.8, 0.55, 0.4),
            lambda x: f"lower clocks: matrix units at {percent(x)} of their speed",
            slower,
            "nvidia-smi (clocks, performance, power) shows the clock and what holds it down",
        ),
    ]
    if has_graphs:
        eager = server.enforce_eager if server is not None else None
        no_graphs = {"max_cudagraph_capture_size": 0, "max_prefill_cudagraph_capture_size": 0}
        kinds.insert(
            0,
            CauseKind(
                "eager",
                (1.0,),
                lambda _: "CUDA graphs are not captured: kernels are launched one by one",
                lambda _: dict(no_graphs),
                "start the server without enforce_eager, and look for a failed capture in its log",
                contradicted="its log says enforce_eager=False" if eager is False else "",
                shown=ShownLimit(1.0, "its log says enforce_eager=True") if eager else None,
            ),
        )
    if is_async:
        kinds.append(
            CauseKind(
                "scheduling",
                (1.0,),
                lambda _: "steps are planned one after the other: asynchronous scheduling is off",
                lambda _: {"async_scheduling": False},
                "turn asynchronous scheduling on; some features of the engine switch it off",
            )
        )
    return kinds


def _limits(before: Validation, plan: Any, server: ServerStatistics | None) -> list[CauseKind]:
    """Limits of the engine that are smaller than the plan's: its KV cache, its token budget, its sequences."""
    outcome = before.outcome
    used, running = (float(np.max(outcome.series.get(name, [0.0]), initial=0.0)) for name in ("kv_used", "running"))
    replicas = max(1, len(outcome.timelines))
    planned = outcome.kv_cache_tokens / replicas
    peak_blocks = used * planned / plan.block_size
    longest = math.ceil(
        float((before.trace.input_tokens + before.trace.output_tokens).max(initial=1)) / plan.block_size
    )
    blocks = sorted({max(longest + 2, round(peak_blocks * x)) for x in (0.8, 0.6, 0.4, 0.25)}, reverse=True)
    largest = server.largest_step_tokens if server is not None else math.nan
    budgets = tuple(
        float(x) for x in (4096, 2048, 1024, 512, 256) if x < plan.max_num_batched_tokens and not x < largest
    )
    peak = running / replicas
    seqs = sorted({max(1, round(peak * x)) for x in (0.8, 0.55, 0.35, 0.15)}, reverse=True)
    return [
        CauseKind(
            "kv_cache",
            tuple(map(float, blocks)),
            lambda x: f"a small KV cache: {x * plan.block_size:,.0f} tokens, so that requests wait or are preempted",
            lambda x: {"num_gpu_blocks_override": max(longest + 1, round(x))},
            "raise gpu_memory_utilization, or look for another process on the GPU",
            f"the prediction has {planned:,.0f} tokens of KV cache and fills at most {percent(used)} of it",
            _contradicts_full_cache(server),
            _shown_cache(server, planned, plan.block_size),
            unit=1,
            least=longest + 1,
        ),
        CauseKind(
            "token_budget",
            budgets,
            lambda x: f"a small token budget: {x:,.0f} tokens a step",
            lambda x: {
                "max_num_batched_tokens": max(16, round(x / 16) * 16),
                "max_num_seqs": min(plan.max_num_seqs, max(16, round(x / 16) * 16)),
            },
            "raise max_num_batched_tokens, and long_prefill_token_threshold if it is set",
            f"the prediction has {plan.max_num_batched_tokens:,} tokens a step",
            _contradicts_budget(server, plan.max_num_batched_tokens),
            _shown_budget(before, server, plan.max_num_batched_tokens),
            unit=16,
            least=64,
        ),
        CauseKind(
            "sequences",
            tuple(map(float, seqs)),
            lambda x: f"few sequences at once: {x:,.0f} run, others wait in the engine's queue",
            lambda x: {"max_num_seqs": max(1, round(x))},
            "raise max_num_seqs",
            f"the prediction runs up to {plural(round(peak), 'sequence')} at once",
            "requests did not wait in its queue" if server is not None and server.queue_ms < 1.0 else "",
            unit=1,
            least=1,
        ),
    ]


def _contradicts_full_cache(server: ServerStatistics | None) -> str:
    if server is None or not server.kv_cache_usage < 0.8 or server.preemptions > 0:
        return ""
    return f"its KV cache was {percent(server.kv_cache_usage)} full and it preempted nothing"


def _shown_cache(server: ServerStatistics | None, planned: float, block_size: int) -> ShownLimit | None:
    if server is None or not server.kv_cache_tokens < SMALL_CACHE * planned:
        return None
    return ShownLimit(
        server.kv_cache_tokens / block_size,
        f"its KV cache holds {server.kv_cache_tokens:,.0f} tokens, where {planned:,.0f} are planned",
    )


def _contradicts_budget(server: ServerStatistics | None, budget: int) -> str:
    if server is None:
        return ""
    if server.max_num_batched_tokens >= budget:
        return f"its log says max_num_batched_tokens={server.max_num_batched_tokens:.0f}"
    return (
        f"it computed a step of {server.largest_step_tokens:,.0f} tokens"
        if server.largest_step_tokens >= 0.9 * budget
        else ""
    )


def _shown_budget(before: Validation, server: ServerStatistics | None, budget: int) -> ShownLimit | None:
    """A log that says so; or prompts that are longer than any step, without a prefix cache that has parts of them."""
    if server is None:
        return None
    if server.max_num_batched_tokens < budget:
        return ShownLimit(
            server.max_num_batched_tokens,
            f"its log says max_num_batched_tokens={server.max_num_batched_tokens:.0f}; {budget:,} are planned",
        )
    largest, hit_rate = server.largest_step_tokens, server.prefix_cache_hit_rate
    if not largest < budget or hit_rate > 0.01 or before.outcome.prefix_hit_rate > 0.01:
        return None
    prompts = before.trace.input_tokens
    longer = int((prompts > LONGER * largest).sum())
    if longer < LEAST_LONGER:
        return None
    return ShownLimit(
        largest,
        f"no step had over {largest:,.0f} tokens, though {budget:,} are planned and {longer:,} of {len(prompts):,} "
        f"prompts are over {LONGER:g} times as long",
    )


def _around_the_engine(before: Validation, server: ServerStatistics | None) -> list[CauseKind]:
    """Time before the engine, and prompts that its prefix cache does not have."""
    kinds = []
    levels: tuple[float, ...] = (0.005, 0.02, 0.08)
    earliest = ""
    if "ttft" in before.measured:
        late = before.measured["ttft"] - before.predicted["ttft"]
        late = np.sort(late[np.isfinite(late)])
        if len(late):
            levels = tuple(sorted({max(1e-3, float(np.quantile(late, x)) / 1e3) for x in (0.15, 0.5)}))
            least = float(np.quantile(late, 0.1))
            earliest = f"9 of 10 first tokens come at least {milliseconds(least)} late" if least > 0 else ""
    kinds.append(
        CauseKind(
            "front_end",
            levels,
            lambda x: f"queueing before the engine: {seconds(x)} a request in front ends, tokenizers or proxies",
            lambda x: {"calibration": Calibration(request=x)},
            "more API server processes; look at tokenizers, proxies and the network between client and server",
            earliest,
        )
    )
    predicted = before.outcome.prefix_hit_rate
    if predicted > 0.01:
        seen = server.prefix_cache_hit_rate if server is not None else math.nan
        kinds.append(
            CauseKind(
                "prefix_cache",
                (1.0,),
                lambda _: (
                    f"prefix cache misses: prompts are computed whole where {percent(predicted)} should be cached"
                ),
                lambda _: {"enable_prefix_caching": False},
                "turn prefix caching on, and keep requests of one prefix on one replica",
                contradicted=f"it hit {percent(seen)}" if seen > 0.8 * predicted else "",
            )
        )
    return kinds
