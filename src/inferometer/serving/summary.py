"""What a run was about, for its header and its JSON: model, machine, engine, requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from ..base.errors import BadValue
from ..specs.catalog import engine
from .arrivals import load_traffic
from .capacity import find_capacity, scale_to_rate
from .metrics import metrics
from .outcome import Interrupted, Outcome
from .simulate import simulate
from .trace import Trace


def run_header(model: str, gpu: str, words: dict[str, Any], traffic: str, count: int) -> dict[str, Any]:
    """The labels of a checked request, and what it warns of; a bad word is an error here, before anything is run."""
    from ..inference.request import build_request

    asked = build_request(model, gpu, **words)
    plan = asked.plan
    label = asked.device.label or asked.device.name
    kv = "" if plan.kv_cache_dtype == plan.dtype else f", KV {plan.kv_cache_dtype}"
    return {
        "model": asked.model.name,
        "quantization": f"{plan.quantization}{kv}",
        "gpu": asked.device.name,
        "gpus": plan.gpus,
        "machine": f"{plan.gpus} × {label}",
        "engine": asked.engine.label or asked.engine.name,
        "engine_name": asked.engine.name,
        "frontend": plan.frontend,
        "num_prompts": count,
        "traffic": traffic,
        "warnings": list(asked.warnings),
    }


# ------------------------------------------------------------------ runs
# Runs as results: a simulation, or the search for the highest rate, with the labels and the keys that JSON has.
#
# result, outcome = served("llama-3.1-8b", "h200", trace, "of chat.csv, as they came", {"ttft": 500.0}, {}, {})
# result["p99_ttft_ms"], outcome.finished_s


Reached = Callable[[int], None]


def simulate_and_summarize(
    model: str,
    gpu: str,
    trace: Trace,
    source: str,
    goals: dict[str, float],
    ways: dict[str, Any],
    words: dict[str, Any],
    reached: Reached = lambda done: None,
) -> tuple[dict[str, Any], Outcome]:
    """Run a simulation and sum it up; ``ways`` are the scheduler's words, ``words`` the plan's."""
    result = {"schema": "inferometer.simulate/1", **run_header(model, gpu, words, source, len(trace))}
    outcome = simulate(model, gpu, trace=trace, progress=lambda done, _: reached(done), **ways, **words)
    result |= metrics(outcome, goals)
    used = outcome.series.get("kv_used", ())
    result |= {
        "goodput": goals or None,
        "policy": ways.get("policy") or "fcfs",
        "scheduler": ways.get("scheduler") or engine(words.get("engine") or "vllm").scheduler,
        "prefix_cache_hit_rate": outcome.prefix_hit_rate,
        "preemptions": int(outcome.preemptions.sum()),
        "kv_cache_tokens": outcome.kv_cache_tokens,
        "max_kv_cache_usage": float(max(used)) if len(used) else None,
        "steps": outcome.steps,
        "reason": outcome.reason,
        "rejection_reasons": _reasons(outcome.rejected),
        "warnings": list(dict.fromkeys([*result["warnings"], *outcome.warnings])),
    }
    return result, outcome


def _reasons(rejected: dict[int, str]) -> dict[str, int]:
    """Each kind of reason with how often it was given; those that differ by numbers only are one, told by the first."""
    kinds: dict[str, list[str]] = {}
    for reason in rejected.values():
        kinds.setdefault(re.sub(r"\d[\d,]*", "", reason), []).append(reason)
    return {given[0]: len(given) for given in sorted(kinds.values(), key=len, reverse=True)}


def capacity_and_summarize(
    model: str,
    gpu: str,
    goals: dict[str, float],
    search: dict[str, Any],
    ways: dict[str, Any],
    words: dict[str, Any],
    reached: Reached = lambda done: None,
) -> dict[str, Any]:
    """Find the highest rate that holds, and serve the requests once more at it; Ctrl-C leaves what was found by then.

    ``search`` are the words of `find_capacity`; ``words`` also say which requests there are.
    """
    if not goals:
        raise BadValue("--find-capacity needs limits that must hold: --goodput ttft:500,tpot:50")
    if words.get("request_rate") is not None:
        raise BadValue("--find-capacity looks for the rate itself: leave --request-rate away")
    words = dict(words)
    seed = words.get("seed", 0)
    # what is made up gets arrivals, so that its burstiness is stretched to every rate; a trace has its own
    words["request_rate"] = 1.0 if words.get("trace") is None else None
    trace, source = load_traffic(words, None)
    source = source.replace("at 1/s", "at the highest rate")
    result = {"schema": "inferometer.capacity/1", **run_header(model, gpu, words, source, len(trace))}
    cut = False
    try:
        found = find_capacity(
            model,
            gpu,
            trace=trace,
            goodput=goals,
            seed=seed,
            progress=lambda done, _: reached(done),
            **search,
            **ways,
            **words,
        )
    except Interrupted as stop:
        cut, found = True, stop.found
    result |= {**msgspec.to_builtins(found), "interrupted": cut}
    if cut:
        return result
    if not found.request_rate:
        return {**result, "completed": 0}
    again = scale_to_rate(trace, found.request_rate, seed)
    return {**result, **metrics(simulate(model, gpu, trace=again, **ways, **words), goals)}
