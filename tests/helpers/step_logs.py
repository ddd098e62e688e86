"""Steps of a simulated engine, written down as servers write theirs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from inferometer.inference.request import build_request
from inferometer.serving.deployment import ServingOptions, serve
from inferometer.serving.logged_step import LoggedStep
from inferometer.serving.replica_pool import build_pool
from inferometer.serving.trace import Trace
from inferometer.specs.structs import Calibration


class RecordedCost:
    """A `StepCost` that writes down every step; all else is the cost's own."""

    def __init__(self, cost: Any, steps: list[LoggedStep], noise: float, rng: np.random.Generator) -> None:
        self.cost, self.steps, self.noise, self.rng = cost, steps, noise, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cost, name)

    def decode_seconds(self, batch: Any) -> float:
        return self._written(0, 0, 0, batch, self.cost.decode_seconds(batch))

    def mixed_seconds(self, batch: Any, chunks: Any, *more: Any) -> float:
        new, cached = sum(c[1] for c in chunks), sum(c[2] for c in chunks)
        return self._written(new, len(chunks), cached, batch, self.cost.mixed_seconds(batch, chunks, *more))

    def _written(self, new: int, prompts: int, cached: int, batch: Any, seconds: float) -> float:
        seconds *= float(np.exp(self.rng.normal(0, self.noise)))
        seqs = batch.num_seqs if batch is not None else 0
        kv = float(batch.total_context()) if seqs else 0.0
        self.steps.append(LoggedStep(new, prompts, cached, seqs, kv, seconds))
        return seconds


def simulated_steps(
    model: str, gpu: str, trace: Trace, truth: Calibration, noise: float = 0.0, **plan: Any
) -> list[LoggedStep]:
    """What every step of a server took on which a calibration is true, with noise from a fixed seed."""
    steps: list[LoggedStep] = []
    pool = build_pool(build_request(model, gpu, calibration=truth, **plan), 1, trace)
    rng = np.random.default_rng(1)
    recorded: Any = [RecordedCost(stage, steps, noise, rng) for stage in pool.stages]
    options = ServingOptions(scheduler="vllm", fast_forward=False)
    outcome = serve(trace, [("both", pool._replace(stages=recorded))], options)
    assert outcome.done.all()
    return steps


def vllm_lines(steps: Sequence[LoggedStep], capacity: int, untimed: float = 0.0, v26: bool = True) -> Iterable[str]:
    """vLLM's iterations with the clock of its log; ``untimed`` seconds of each step are not in its timing."""
    now, used = 3600.0, 0.0
    yield f"INFO 11-18 00:59:00 [kv_cache_utils.py:1880] GPU KV cache size: {capacity:,} tokens, Maximum …"
    for number, step in enumerate(steps):
        now += step.seconds
        used = 100 * (step.prefill_tokens + step.prefill_cached + step.decode_kv) / capacity
        clock = f"{int(now // 3600):02d}:{int(now % 3600 // 60):02d}:{int(now % 60):02d}"
        yield (
            f"INFO 11-18 {clock} [loggers.py:182] {'Engine 000: ' if v26 else ''}Iteration({number}): "
            f"{step.prefill_seqs} context requests, {step.prefill_tokens} context tokens, {step.decode_seqs} "
            f"generation requests, {step.decode_seqs} generation tokens, iteration elapsed time: "
            f"{(step.seconds - untimed) * 1e3:.2f} ms" + (f", GPU KV cache usage: {used:.1f}%" if v26 else "")
        )
        if not v26 and number % 50 == 0:
            yield (
                f"INFO 11-18 {clock} [loggers.py:310] Engine 000: Avg prompt throughput: 900.0 tokens/s, Avg "
                f"generation throughput: 400.0 tokens/s, Running: 9 reqs, Waiting: 0 reqs, GPU KV cache "
                f"usage: {used:.1f}%, Prefix cache hit rate: 0.0%"
            )


def forward_pass_lines(steps: Sequence[LoggedStep], traced: bool) -> Iterable[str]:
    """Dynamo's records, alone or inside of those of its trace; an idle engine's has no time."""
    idle = {"version": 1, "wall_time": 0.0, "scheduled_requests": {}, "queued_requests": {}}
    for record in [idle, *map(_forward_pass, steps)]:
        yield json.dumps({"schema": "dynamo.fpm.trace.v1", "fpm": record} if traced else record)


def _forward_pass(step: LoggedStep) -> dict[str, Any]:
    return {
        "version": 1,
        "worker_id": "7",
        "dp_rank": 0,
        "wall_time": step.seconds,
        "scheduled_requests": {
            "num_prefill_requests": step.prefill_seqs,
            "sum_prefill_tokens": step.prefill_tokens,
            "sum_prefill_kv_tokens": step.prefill_cached,
            "num_decode_requests": step.decode_seqs,
            "sum_decode_kv_tokens": int(step.decode_kv),
            "var_decode_kv_tokens": 0.0,
        },
        "queued_requests": {"num_prefill_requests": 0},
    }
