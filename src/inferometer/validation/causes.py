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

from ..base.units import percent, seconds
from ..inference.request import build_request
from ..serving.metrics_page import ServerStatistics
from ..specs.arguments import arguments
from ..specs.catalog import hardware
from ..specs.plan_args import PlanArgs
from ..specs.structs import Calibration
from .validate import Validation

Change = dict[str, Any]


class CauseKind(NamedTuple):
    """A cause that may be: how to say it and simulate it, and the levels to try first."""

    name: str
    levels: tuple[float, ...]
    title: Callable[[float], str]
    change: Callable[[float], Change]
    remedy: str = ""
    contradicted: str = ""  # by a counter of the server, in words


def merged(change: Change, more: Change) -> Change:
    """Two changes at once; calibrations join."""
    both = {**change, **more}
    if change.get("calibration") is not None and "calibration" in more:
        a, b = change["calibration"], more["calibration"]
        both["calibration"] = msgspec.structs.replace(a, host=a.host * b.host, request=a.request + b.request)
    return both


def cause_kinds(
    before: Validation, model: str, gpu: str, plan: Mapping[str, Any], server: ServerStatistics | None
) -> list[CauseKind]:
    """What may be wrong with this plan, with the levels that make sense for this load."""
    facts = {name: value for name, value in plan.items() if name not in ("calibration", "gpu")}
    request = build_request(model, gpu, **_plan_only(facts))
    return [
        *_slow_steps(gpu, request.engine.graph_tokens > 0, request.engine.async_scheduling),
        *_limits(before, request.plan, server),
        *_around_the_engine(before, server),
    ]


def _plan_only(options: Mapping[str, Any]) -> dict[str, Any]:
    known = arguments(PlanArgs)
    return {name: value for name, value in options.items() if name in known}


def _slow_steps(gpu: str, has_graphs: bool, is_async: bool) -> list[CauseKind]:
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
        no_graphs = {"max_cudagraph_capture_size": 0, "max_prefill_cudagraph_capture_size": 0}
        kinds.insert(
            0,
            CauseKind(
                "eager",
                (1.0,),
                lambda _: "CUDA graphs are not captured: kernels are launched one by one",
                lambda _: dict(no_graphs),
                "start the server without enforce_eager, and look for a failed capture in its log",
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
    peak_blocks = used * outcome.kv_cache_tokens / plan.block_size / replicas
    longest = math.ceil(
        float((before.trace.input_tokens + before.trace.output_tokens).max(initial=1)) / plan.block_size
    )
    blocks = sorted({max(longest + 2, round(peak_blocks * x)) for x in (0.8, 0.5, 0.25)}, reverse=True)
    budgets = tuple(float(x) for x in (4096, 1024, 256) if x < plan.max_num_batched_tokens)
    peak = running / replicas
    seqs = sorted({max(1, round(peak * x)) for x in (0.8, 0.4, 0.15)}, reverse=True)
    return [
        CauseKind(
            "kv_cache",
            tuple(map(float, blocks)),
            lambda x: f"a small KV cache: {x * plan.block_size:,.0f} tokens, so that requests wait or are preempted",
            lambda x: {"num_gpu_blocks_override": max(longest + 1, round(x))},
            "raise gpu_memory_utilization, or look for another process on the GPU",
            _contradicts_full_cache(server),
        ),
        CauseKind(
            "token_budget",
            budgets,
            lambda x: f"a small token budget: {x:,.0f} tokens a step",
            lambda x: {
                "max_num_batched_tokens": max(16, round(x / 16) * 16),
                "max_num_seqs": min(plan.max_num_seqs, max(16, round(x / 16) * 16)),
            },
            "raise max_num_batched_tokens",
            _contradicts_budget(server, plan.max_num_batched_tokens),
        ),
        CauseKind(
            "sequences",
            tuple(map(float, seqs)),
            lambda x: f"few sequences at once: {x:,.0f} run, others wait in the engine's queue",
            lambda x: {"max_num_seqs": max(1, round(x))},
            "raise max_num_seqs",
            "no request waited when its pages were read" if server is not None and server.queue_ms < 1.0 else "",
        ),
    ]


def _contradicts_full_cache(server: ServerStatistics | None) -> str:
    if server is None or not server.kv_cache_usage < 0.8 or server.preemptions > 0:
        return ""
    return f"its KV cache was {percent(server.kv_cache_usage)} full and it preempted nothing"


def _contradicts_budget(server: ServerStatistics | None, budget: int) -> str:
    if server is None or not server.largest_step_tokens >= budget:
        return ""
    return f"it computed steps of over {budget / 2:,.0f} tokens"


def _around_the_engine(before: Validation, server: ServerStatistics | None) -> list[CauseKind]:
    """Time before the engine, and prompts that its prefix cache does not have."""
    kinds = []
    levels: tuple[float, ...] = (0.005, 0.02, 0.08)
    if "ttft" in before.measured:
        late = before.measured["ttft"] - before.predicted["ttft"]
        late = np.sort(late[np.isfinite(late)])
        if len(late):
            levels = tuple(sorted({max(1e-3, float(np.quantile(late, x)) / 1e3) for x in (0.15, 0.5)}))
    kinds.append(
        CauseKind(
            "front_end",
            levels,
            lambda x: f"queueing before the engine: {seconds(x)} a request in front ends, tokenizers or proxies",
            lambda x: {"calibration": Calibration(request=x)},
            "more API server processes; look at tokenizers, proxies and the network between client and server",
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
                f"it hit {percent(seen)}" if seen > 0.8 * predicted else "",
            )
        )
    return kinds
