"""One plan, explained: the main job. ``analyze("llama-3.1-8b", gpu="h200", batch_size=8)`` gives a `Report`."""

from __future__ import annotations

from typing import Any

import msgspec

from ..base.errors import BadValue, UnknownName
from ..costs import kernels, parallelism
from ..costs.binding import BoundPlan
from ..specs import catalog
from ..specs.structs import Engine, Hardware, Workload
from . import latency, memory
from .advice import bottleneck_summary, fits_with
from .breakdown import phase_tables
from .latency import BatchShape, batch_shape_of, frontend_seconds, prompt_seconds, throughput_and_cost, token_seconds
from .memory import cache_offloaded, memory_table
from .report import Metrics, ModelInfo, Report, Roofline, TurnRow
from .request import Request, build_request

PHASES = ("prefill", "decode", "all")


def analyze(model: str, gpu: str = "h100-sxm", *, phase: str = "all", **words: Any) -> Report:
    """Predict and explain one plan; the keywords are the command's long flags with underscores.

    ``analyze("llama-3.1-8b", gpu="h200", batch_size=8, input_len=1024, output_len=128).metrics.tpot_ms``
    """
    if phase not in PHASES:
        raise UnknownName("--phase", phase, PHASES)
    return report_of(build_request(model, gpu, **words), phase)


def check_phase(request: Request, phase: str) -> None:
    """Refuse a phase that there is none of, or that the request has not."""
    if phase not in PHASES:
        raise UnknownName("--phase", phase, PHASES)
    if phase == "decode" and request.model.kind != "decoder":
        raise BadValue("--phase decode does not apply to a diffusion model: it has no decode phase")
    work = request.workload
    if phase == "decode" and (work.turns[-1].output_len if work.turns else work.output_len) < 2:
        raise BadValue("--phase decode needs an answer of at least 2 tokens: the first one comes out of the prefill")


def report_of(request: Request, phase: str = "all") -> Report:
    """The report of a checked request."""
    check_phase(request, phase)
    bound_plan = request.bind()
    work = request.workload
    illegal = parallelism.illegal_reason(request.model, request.plan, request.device) or latency.draft_reason(
        bound_plan
    )
    batch_shape = batch_shape_of(bound_plan, work)
    bound_plan = cache_offloaded(bound_plan, batch_shape)
    priced = phase_tables(bound_plan, batch_shape, phase, _decodes(batch_shape, phase))
    held = memory_table(bound_plan, batch_shape)
    metrics, turns = metrics_of(bound_plan, work, phase)
    bound, _ = metrics_of(_perfect(bound_plan), work, phase)
    fits = held.total_bytes <= held.usable_bytes
    reason = illegal or (None if fits else fits_with(request, bound_plan, held))
    report = Report(
        model=model_info(request),
        device=device_info(request.device),
        engine=engine_info(request.engine),
        plan={
            **msgspec.to_builtins(request.plan),
            "gpus": request.plan.gpus,
            "placement": parallelism.placement_summary(request.plan, request.device),
        },
        workload=msgspec.to_builtins(work),
        feasible=fits and not illegal,
        reason=reason,
        metrics=metrics,
        roofline=Roofline(bound.ttft_ms, bound.tpot_ms),
        memory=held,
        phases=priced,
        turns=turns,
        warnings=[*request.warnings, *provenance_warnings(request), *bound_plan.notes],
    )
    report.summary = bottleneck_summary(request, bound_plan, report)
    return report


def provenance_warnings(request: Request) -> list[str]:
    """What holds for another device than the one that it was seen on."""
    seen, device = request.engine.kernels_from, request.device
    if not seen or request.efficiency is not None or request.profile is not None:
        return []
    nearest = next(iter(kernels.fallback_order(device, request.engine.profile)), None)
    if nearest is None:
        return [f"kernel efficiencies are assumed from one {seen.upper()}"]
    if catalog.hardware(nearest[0]).architecture != device.architecture:
        return [f"no {device.architecture} GPU was measured: kernels of the {nearest[0].upper()} stand in"]
    return []


def _decodes(batch_shape: BatchShape, phase: str) -> bool:
    return phase != "prefill" and batch_shape.output_len > 1


def metrics_of(bound_plan: BoundPlan, work: Workload, phase: str = "all") -> tuple[Metrics, list[TurnRow]]:
    """What a user sees, of one prompt and answer or of a conversation with its turns."""
    if not work.turns:
        return _metrics(bound_plan, batch_shape_of(bound_plan, work), phase), []
    found = _turns(bound_plan, work, phase)
    rows = [
        TurnRow(turn.input_len, turn.output_len, batch_shape.cached_tokens, m.ttft_ms, m.tpot_ms, m.e2el_ms)
        for turn, (batch_shape, m) in zip(work.turns, found, strict=True)
    ]
    return _talk_metrics(bound_plan, found, phase), rows


def _metrics(bound_plan: BoundPlan, batch_shape: BatchShape, phase: str) -> Metrics:
    """TTFT, TPOT and what follows from them."""
    found = Metrics()
    whole = 0.0
    if phase != "decode":
        whole = float(frontend_seconds(bound_plan, batch_shape.batch_size * batch_shape.context)) + float(
            prompt_seconds(bound_plan, batch_shape)
        )
        found.ttft_ms = whole * 1e3
        found.prefill_throughput = batch_shape.batch_size * batch_shape.new_tokens / whole if whole else None
    if _decodes(batch_shape, phase):
        tpot = float(token_seconds(bound_plan, batch_shape))
        found.tpot_ms = tpot * 1e3
        whole += (batch_shape.output_len - 1) * tpot
    found.e2el_ms = whole * 1e3 if whole else None
    if phase == "prefill" or not batch_shape.output_len or not whole:
        return found
    return _rates(
        found,
        bound_plan,
        batch_shape.batch_size * batch_shape.output_len,
        batch_shape.batch_size * batch_shape.context,
        whole,
    )


def _rates(found: Metrics, bound_plan: BoundPlan, produced: int, read: int, whole: float) -> Metrics:
    """What follows from the time of it all: rates, cost, energy."""
    rates = throughput_and_cost(bound_plan, whole, 0.0, whole, 0, produced, read)
    found.output_throughput, found.total_token_throughput = rates.output_throughput, rates.total_token_throughput
    found.output_throughput_per_gpu = rates.output_throughput_per_gpu
    found.cost_per_million_output_tokens = rates.cost_per_million_output_tokens
    found.joules_per_output_token = rates.joules_per_output_token
    return found


def _turns(bound_plan: BoundPlan, work: Workload, phase: str) -> list[tuple[BatchShape, Metrics]]:
    """Each turn of a conversation over the context that grew before it; images come with the first."""
    found: list[tuple[BatchShape, Metrics]] = []
    context = 0
    for turn in work.turns:
        alone = Workload(
            batch_size=work.batch_size,
            input_len=context + turn.input_len,
            prefix_len=context,
            output_len=turn.output_len,
            beam_width=work.beam_width,
            images=None if found else work.images,
        )
        batch_shape = batch_shape_of(bound_plan, alone)
        found.append((batch_shape, _metrics(bound_plan, batch_shape, phase)))
        context = batch_shape.length
    return found


def _talk_metrics(bound_plan: BoundPlan, turns: list[tuple[BatchShape, Metrics]], phase: str) -> Metrics:
    """A conversation's figures: mean wait, mean time per token, and the sum of its turns."""
    found = Metrics()
    batch = turns[0][0].batch_size
    whole = sum(m.e2el_ms or 0.0 for _, m in turns) / 1e3
    found.e2el_ms = whole * 1e3
    waits = [m.ttft_ms for _, m in turns if m.ttft_ms is not None]
    steps = [(m.tpot_ms, batch_shape.output_len - 1) for batch_shape, m in turns if m.tpot_ms is not None]
    read = batch * sum(batch_shape.new_tokens for batch_shape, _ in turns)
    if waits:
        found.ttft_ms, found.prefill_throughput = sum(waits) / len(waits), read / (sum(waits) / 1e3)
    if steps:
        found.tpot_ms = sum(ms * n for ms, n in steps) / sum(n for _, n in steps)
    if phase == "prefill":
        return found
    return _rates(found, bound_plan, batch * sum(batch_shape.output_len for batch_shape, _ in turns), read, whole)


def _perfect(bound_plan: BoundPlan) -> BoundPlan:
    """The same plan at the speed of light."""
    return bound_plan._replace(engine=Engine(), sources=(kernels.ideal(),), env={**bound_plan.env, "throttle": 0.0})


# ------------------------------------------------------------------ names


def model_info(request: Request) -> ModelInfo:
    """Which network a request is about, and how large it is."""
    m = request.model
    return ModelInfo(
        name=m.name,
        family=m.family,
        params=round(memory.parameters(m)),
        active_params=round(memory.parameters(m, "active")),
        layers=m.num_layers,
        dtype=request.plan.dtype,
        quantization=request.roles,
        max_position=m.max_position or None,
        source=request.source,
    )


def device_info(device: Hardware) -> dict[str, Any]:
    """The figures of a device, without their sources and its other names: ``device_info(request.device)["memory"]``"""
    return {k: v for k, v in msgspec.to_builtins(device).items() if k not in ("source", "aliases")}


def engine_info(engine: Engine) -> dict[str, Any]:
    """Which engine and version: ``{"name": "vllm", "label": "vLLM", "version": "0.15"}``"""
    return {"name": engine.name, "label": engine.label, "version": engine.version}
