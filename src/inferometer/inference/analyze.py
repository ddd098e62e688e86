"""One plan, explained: the main job. ``analyze("llama-3.1-8b", gpu="h200", batch_size=8)`` gives a `Report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..base.errors import BadValue, UnknownName
from ..base.result import keep
from ..costs import kernels, parallelism, precision
from ..costs.binding import BoundPlan
from ..specs.arguments import signature
from ..specs.plan_args import PlanArgs
from ..specs.structs import Engine, Hardware, Workload
from .advice import bottleneck_summary
from .breakdown import phase_tables
from .expected_error import expected_errors, waits_for_host
from .kv_offload import tier_rows
from .latency import predict, throughput_and_cost
from .memory import cache_offloaded, memory_table
from .remedies import infeasibility_of
from .report import Metrics, ModelInfo, Report, Roofline, TurnRow
from .request import Request, build_request
from .step_cliffs import budget_cliff, graph_cliff
from .weights import active_parameters, parameters
from .workload import BatchShape, batch_shape_of

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import PlanKwargs

PHASES = ("prefill", "decode", "all")
_RATES = (
    "output_throughput",
    "total_token_throughput",
    "output_throughput_per_gpu",
    "cost_per_million_output_tokens",
    "joules_per_output_token",
    "watts_per_gpu",
)


@signature(PlanArgs)
def analyze(model: str, gpu: str = "h100-sxm", *, phase: str = "all", **kwargs: Unpack[PlanKwargs]) -> Report:
    """Predict and explain one plan; the keywords are the command's long flags with underscores.

    ``analyze("llama-3.1-8b", gpu="h200", batch_size=8, input_len=1024, output_len=128).metrics.tpot_ms``
    """
    if phase not in PHASES:
        raise UnknownName("`phase`", phase, PHASES)
    return report_of(build_request(model, gpu, **kwargs), phase)


def check_phase(request: Request, phase: str) -> None:
    """Refuse a phase that there is none of, or that the request has not."""
    if phase not in PHASES:
        raise UnknownName("`phase`", phase, PHASES)
    if phase == "decode" and request.model.kind != "decoder":
        raise BadValue("`phase` decode does not apply to a diffusion model: it has no decode phase")
    work = request.workload
    if phase == "decode" and (work.turns[-1].output_len if work.turns else work.output_len) < 2:
        raise BadValue("`phase` decode needs at least 2 output tokens: the first one comes from prefill")


def report_of(request: Request, phase: str = "all") -> Report:
    """The report of a checked request."""
    check_phase(request, phase)
    bound_plan = request.bind()
    work = request.workload
    batch_shape = batch_shape_of(bound_plan, work)
    bound_plan = cache_offloaded(bound_plan, batch_shape)
    phases = phase_tables(bound_plan, batch_shape, phase, _decodes(batch_shape, phase))
    held = memory_table(bound_plan, batch_shape)
    metrics, turns = metrics_of(bound_plan, work, phase)
    bound, _ = metrics_of(_perfect(bound_plan), work, phase)
    infeasibility = infeasibility_of(request, bound_plan, held)
    report = Report(
        model=model_info(request),
        device=device_info(request.device),
        engine={**engine_info(request.engine), "kernels_of": kernel_lenders(request)},
        plan={
            **msgspec.to_builtins(request.plan),
            "gpus": request.plan.gpus,
            "placement": parallelism.placement_summary(request.plan, request.device),
        },
        workload=msgspec.to_builtins(work),
        feasible=infeasibility is None,
        reason=infeasibility.reason if infeasibility else None,
        infeasibility=infeasibility,
        metrics=metrics,
        roofline=Roofline(bound.ttft_ms, bound.tpot_ms),
        memory=held,
        phases=phases,
        turns=turns,
        kv_tiers=tier_rows(
            bound_plan, batch_shape, metrics.ttft_ms and metrics.ttft_ms / 1e3, float(held.kv_capacity_bytes)
        ),
        expected_error=expected_errors(request, "static", waits_for_host(phases)),
        warnings=[
            *request.warnings,
            *provenance_warnings(request),
            *bound_plan.notes,
            *_cap_effect(request, metrics, phase),
            *_cliffs(request, bound_plan, batch_shape, phase),
        ],
    )
    report.summary = bottleneck_summary(request, bound_plan, report)
    return keep(report, request=request)


def _cap_effect(request: Request, metrics: Metrics, phase: str) -> list[str]:
    """What a power cap costs in time and saves in energy: a sentence, where there is a cap."""
    cap, device = request.plan.power_cap, request.device
    if not cap:
        return []
    if cap >= device.power:
        return [f"a power cap of {cap:g} W changes nothing: {device.name.upper()} draws {device.power:g} W at most"]
    uncapped = request._replace(plan=msgspec.structs.replace(request.plan, power_cap=0.0))
    before, _ = metrics_of(uncapped.bind(), request.workload, phase)
    changes = [
        f"{label} {after / value - 1:+.1%}"
        for label, after, value in (
            ("TTFT", metrics.ttft_ms, before.ttft_ms),
            ("TPOT", metrics.tpot_ms, before.tpot_ms),
            ("J per output token", metrics.joules_per_output_token, before.joules_per_output_token),
        )
        if after and value
    ]
    return [f"under a power cap of {cap:g} W instead of {device.power:g} W: {', '.join(changes)}"]


def _cliffs(request: Request, bound_plan: BoundPlan, batch_shape: BatchShape, phase: str) -> list[str]:
    """Limits of the engine at which a batch of this size would not run as one, or only slowly."""
    if not _decodes(batch_shape, phase):
        return []
    seqs = float(batch_shape.sequences)
    context = float(batch_shape.context + batch_shape.output_len / 2)
    cliffs = (
        budget_cliff(request.engine, request.plan, float(batch_shape.new_tokens), seqs),
        graph_cliff(bound_plan, seqs, context),
    )
    return [sentence for sentence in cliffs if sentence]


def kernel_lenders(request: Request) -> list[str]:
    """The devices whose kernel tables serve one that has none: ``["l40s", "a100-sxm-80gb"]`` for an A6000."""
    device = request.device
    if not request.engine.kernels_from or request.efficiency is not None or device.name in kernels.installed():
        return []
    return [donor.device.name for donor in kernels.donors(device, request.engine.profile)[:2]]


def provenance_warnings(request: Request) -> list[str]:
    """What holds for another device than the one that it was seen on."""
    seen, device = request.engine.kernels_from, request.device
    if not seen or request.efficiency is not None or request.profile is not None:
        return []
    others = kernels.donors(device, request.engine.profile)
    if not others:
        return [f"kernel efficiencies are assumed from measurements of one {seen.upper()}"]
    if device.name not in kernels.installed() and not others[0].same_generation:
        nearest = " and ".join(donor.label for donor in others[:2])
        return [f"no GPU like the {device.name.upper()} was measured: kernels are scaled from the {nearest}"]
    return []


def _decodes(batch_shape: BatchShape, phase: str) -> bool:
    return phase != "prefill" and batch_shape.output_len > 1


def metrics_of(bound_plan: BoundPlan, workload: Workload, phase: str = "all") -> tuple[Metrics, list[TurnRow]]:
    """What a user sees, of one prompt and answer or of a conversation with its turns."""
    if not workload.turns:
        metrics, joules = _metrics(bound_plan, batch_shape_of(bound_plan, workload), phase)
        return (_with_images(bound_plan, workload, metrics, joules) if workload.num_inference_steps else metrics), []
    turns = _turns(bound_plan, workload, phase)
    rows = [
        TurnRow(turn.input_len, turn.output_len, batch_shape.cached_tokens, m.ttft_ms, m.tpot_ms, m.e2el_ms)
        for turn, (batch_shape, m, _) in zip(workload.turns, turns, strict=True)
    ]
    return _conversation_metrics(bound_plan, turns, phase), rows


def _metrics(bound_plan: BoundPlan, batch_shape: BatchShape, phase: str) -> tuple[Metrics, float | None]:
    """The prediction in the report's units, and all GPUs' joules; None is what a phase or kind of model has not."""
    if phase == "decode" and not _decodes(batch_shape, phase):
        return Metrics(), None  # the one output token comes out of the prefill
    prediction = predict(bound_plan, batch_shape, phase)
    metrics = Metrics(e2el_ms=prediction.e2el * 1e3 if prediction.e2el else None)
    if phase != "decode":
        metrics.ttft_ms, metrics.prefill_throughput = prediction.ttft * 1e3, prediction.prefill_throughput
    if _decodes(batch_shape, phase):
        metrics.tpot_ms = prediction.tpot * 1e3
    if phase != "prefill" and batch_shape.output_len and prediction.e2el:
        for name in _RATES:
            setattr(metrics, name, getattr(prediction, name))
    watts = prediction.watts_per_gpu
    return metrics, None if watts is None else float(watts * bound_plan.plan.gpus * prediction.e2el)


def _with_images(bound_plan: BoundPlan, workload: Workload, metrics: Metrics, joules: float | None) -> Metrics:
    """The figures of whole images beside those of a denoising step of the batch."""
    took = workload.num_inference_steps * (metrics.ttft_ms or 0.0) / 1e3
    if not took:  # another phase was chosen, and it has none
        return metrics
    gpu_seconds = took / workload.batch_size * bound_plan.plan.gpus  # of an image
    price = bound_plan.device.price_per_hour
    metrics.image_latency_ms, metrics.images_per_second = took * 1e3, workload.batch_size / took
    metrics.cost_per_thousand_images = gpu_seconds * price / 3600 * 1e3 if price else None
    if joules is not None:  # of one step
        metrics.joules_per_image = workload.num_inference_steps * joules / workload.batch_size
        metrics.watts_per_gpu = metrics.joules_per_image / gpu_seconds
    return metrics


Turns = list[tuple[BatchShape, Metrics, float | None]]  # with the joules of each


def _turns(bound_plan: BoundPlan, workload: Workload, phase: str) -> Turns:
    """Each turn of a conversation over the context that grew before it; images come with the first."""
    turns: Turns = []
    context = 0
    for turn in workload.turns:
        alone = Workload(
            batch_size=workload.batch_size,
            input_len=context + turn.input_len,
            prefix_len=context,
            output_len=turn.output_len,
            beam_width=workload.beam_width,
            images=None if turns else workload.images,
        )
        batch_shape = batch_shape_of(bound_plan, alone)
        turns.append((batch_shape, *_metrics(bound_plan, batch_shape, phase)))
        context = batch_shape.length
    return turns


def _conversation_metrics(bound_plan: BoundPlan, turns: Turns, phase: str) -> Metrics:
    """A conversation's figures: mean TTFT, mean time per token, and the sum of its turns."""
    batch = turns[0][0].batch_size
    e2el = sum(m.e2el_ms or 0.0 for _, m, _ in turns) / 1e3
    joules = sum(j or 0.0 for _, _, j in turns) if bound_plan.device.power else None
    metrics = Metrics(e2el_ms=e2el * 1e3)
    waits = [m.ttft_ms for _, m, _ in turns if m.ttft_ms is not None]
    steps = [(m.tpot_ms, batch_shape.output_len - 1) for batch_shape, m, _ in turns if m.tpot_ms is not None]
    input_tokens = batch * sum(batch_shape.new_tokens for batch_shape, _, _ in turns)
    output_tokens = batch * sum(batch_shape.output_len for batch_shape, _, _ in turns)
    if waits:
        metrics.ttft_ms, metrics.prefill_throughput = sum(waits) / len(waits), input_tokens / (sum(waits) / 1e3)
    if steps:
        metrics.tpot_ms = sum(ms * n for ms, n in steps) / sum(n for _, n in steps)
    if phase != "prefill":
        for name, value in throughput_and_cost(bound_plan, e2el, joules, output_tokens, input_tokens).items():
            setattr(metrics, name, value)
    return metrics


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
        params=round(parameters(m)),
        active_params=round(active_parameters(m)),
        layers=m.num_layers,
        dtype=request.plan.dtype,
        quantization=request.roles,
        computed_as=precision.formats(
            request.device,
            precision.computed_as(request.engine, m, request.device, request.roles),
            request.plan.dtype,
        ),
        max_position=m.max_position or None,
        source=request.source,
        kind=m.kind,
        vision=m.vision is not None,
    )


def device_info(device: Hardware) -> dict[str, Any]:
    """The figures of a device, without their sources and its other names: ``device_info(request.device)["memory"]``"""
    return {k: v for k, v in msgspec.to_builtins(device).items() if k not in ("source", "aliases")}


def engine_info(engine: Engine) -> dict[str, Any]:
    """Which engine, host and defaults: ``{"name": "vllm", "version": "0.28", "host": "server", "defaults": […], …}``"""
    return {
        "name": engine.name,
        "label": engine.label,
        "version": engine.version,
        "host": engine.host if engine.launch else "",
        "defaults": [msgspec.to_builtins(default) for default in engine.defaults] if engine.versions else [],
    }
