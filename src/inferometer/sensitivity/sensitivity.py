"""Which hardware figures drive latency, throughput and cost, and what hardware a target, model or use case needs.

sensitivity("llama-3.1-8b", gpu="h200", batch_size=8).summary
sensitivity("llama-3.1-8b", gpu="h200", target="tpot:4").targets["tpot"].figures["memory_bandwidth"].value
sensitivity("llama-3.1-70b", gpu="h100-sxm", size=True, batch_size=32).size[0].smallest.layout
sensitivity("llama-2-7b", gpu="h100-sxm", compare="llama-2-70b").compare[1].demand.memory_bandwidth
sensitivity("llama-3.1-8b", gpu="h100-sxm", compare_usecases=True).usecases[0].meets
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from ..base.errors import BadValue, abbreviate
from ..inference.analyze import device_info, engine_info, model_info
from ..inference.request import Request, build_request
from ..inference.workload import refuse
from ..specs import catalog
from ..specs.arguments import check_names, signature
from ..specs.plan_args import PlanArgs
from . import findings, sizing
from .evaluation import Evaluation, bind_request, evaluate
from .parameters import Parameter, parameters
from .sensitivity_report import Change, ParameterEffect, ScalingCurve, Sensitivity
from .targets import current_value, parse_targets, solve_target

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import PlanKwargs

STEP = 0.1  # a tenth up and a tenth down, apart: rooflines have kinks
CURVE_FACTORS = tuple(2.0 ** (n / 2) for n in range(-4, 9))  # a quarter to sixteen times
LAYOUT = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nodes")
WORKLOAD = ("batch_size", "input_len", "output_len", "beam_width", "turns", "usecase")


@signature(PlanArgs)
def sensitivity(
    model: str | None = None,
    gpu: str = "h100-sxm",
    *,
    target: Any = None,
    size: bool = False,
    compare: str | Iterable[str] | None = None,
    compare_usecases: bool = False,
    curves: bool = False,
    **kwargs: Unpack[PlanKwargs],
) -> Sensitivity:
    """Which hardware figures drive latency, throughput and cost, and what hardware a target, model or use case needs.

    ``sensitivity("llama-3.1-8b", gpu="h200").figures["memory_bandwidth"].up.elasticity["tpot_ms"]``
    ``sensitivity("llama-3.1-70b", gpu="h200", tensor_parallel_size=2, target="tpot:20,ttft:500").targets["tpot"]``
    ``sensitivity("llama-3.1-70b", gpu="h100-sxm,h200", size=True, target="tpot:20").size``

    ``target`` is ``"tpot:20,ttft:500"`` or a mapping; without ``model``, the first of ``compare`` is the one that the
    others are compared with. With ``curves``, latencies are also estimated far beyond a tenth of each parameter. All
    other keywords are those of ``analyze``.
    """
    check_names(PlanArgs, kwargs, "target", "size", "compare", "compare_usecases", "curves")
    limits = parse_targets(target)
    question = _question(size=size, compare=compare is not None, compare_usecases=compare_usecases)
    names = sizing.model_names(compare) if compare is not None else []
    if model is None and not names:
        raise BadValue("sensitivity needs a MODEL, or `compare` with the models to compare")
    gpus = catalog.gpu_names(str(gpu))
    if len(gpus) > 1 and not size:
        raise BadValue("only `size` takes several GPU types; give one name to `gpu`")
    if limits and question and not size:
        raise BadValue(f"`target` cannot be combined with `{question}`, which has its own limits")
    first = model if model is not None else names.pop(0)

    def build(name: str = first, **more: Any) -> Request:
        return build_request(name, gpus[0], **{**kwargs, **more})

    if size:
        requests = [build_request(first, name, **kwargs) for name in gpus]
        _refuse_layout(kwargs)
        return _sized(requests, limits)
    if compare_usecases:
        _refuse_workload(kwargs)
        return _usecases(build)
    if compare is not None:
        return _models(build, names)
    return _parameters(build(), limits, curves)


def _question(**given: bool) -> str:
    """The name of the one argument that asks something else than parameters and targets; empty if none does."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise BadValue(f"`{name}` must be True or False, not {abbreviate(value)}")
    chosen = [name for name, value in given.items() if value]
    if len(chosen) > 1:
        raise BadValue(f"`{chosen[0]}` and `{chosen[1]}` are two questions: give only one")
    return chosen[0] if chosen else ""


def _refuse_layout(kwargs: Mapping[str, Any]) -> None:
    given = {name: kwargs.get(name) not in (None, 1) for name in LAYOUT}
    refuse("`size` chooses the layout and cannot be combined with {}", given)


def _refuse_workload(kwargs: Mapping[str, Any]) -> None:
    given = {name: kwargs.get(name) is not None for name in WORKLOAD}
    refuse(
        "`compare_usecases` sets its own lengths and batch sizes and cannot be combined with {}",
        given | {"prefix_len": kwargs.get("prefix_len")},
    )


# ------------------------------------------------------------------ one answer per question


def _base_report(request: Request) -> Sensitivity:
    """The plan and its metrics, before any question."""
    bound, reason = bind_request(request), sizing.infeasible_reason(request)
    return Sensitivity(
        model=model_info(request),
        device=device_info(request.device),
        engine=engine_info(request.engine),
        plan={**msgspec.to_builtins(request.plan), "gpus": request.plan.gpus},
        workload=msgspec.to_builtins(request.workload),
        feasible=reason is None,
        reason=reason,
        metrics=evaluate(request),
        memory_needed=bound.memory_needed,
        warnings=[*request.warnings, *bound.bound_plan.notes],
    )


def _parameters(request: Request, limits: Mapping[str, float], curves: bool) -> Sensitivity:
    """What each parameter moves, and what it would have to be for the targets."""
    report = _base_report(request)
    report.figures = elasticities(request, report.metrics)
    report.curves = scaling_curves(request) if curves else {}
    report.targets = {name: solve_target(request, name, limit) for name, limit in limits.items()}
    report.summary = findings.parameters_summary(report)
    for name, target in report.targets.items():
        if report.feasible and all(one.status == "never" for one in target.figures.values()):
            report.feasible, report.reason = False, findings.unreachable_reason(name, target)
    return report


def _models(build: sizing.BuildRequest, others: list[str]) -> Sensitivity:
    """What other models lose on the same machine."""
    request = build()
    report = _base_report(request)
    report.compare = sizing.compare_models(request, report.metrics, others, build)
    if len(report.compare) < 2:
        raise BadValue(f"`compare` needs another model than {request.model.name}")
    report.summary = findings.models_summary(report)
    return report


def _usecases(build: sizing.BuildRequest) -> Sensitivity:
    """Which use cases the machine serves."""
    request = build()
    report = _base_report(request)
    if request.model.kind != "decoder":
        raise BadValue("`compare_usecases` does not apply to a diffusion model: its use cases are conversations")
    report.usecases = sizing.compare_usecases(build)
    report.feasible, report.reason = True, None
    report.summary = findings.usecases_summary(report)
    return report


def _sized(requests: list[Request], limits: Mapping[str, float]) -> Sensitivity:
    """The smallest platform of each GPU type, and the plan on the best of them."""
    for request in requests:
        for name in limits:
            if not name.startswith("full"):
                current_value(request, name)  # refuses what the plan never has
    sizes = [sizing.smallest_platform(request, limits) for request in requests]
    able = [size.smallest for size in sizes if size.smallest]
    best = min(able, key=lambda platform: (platform.gpus, platform.price_per_hour or 0.0), default=None)
    chosen = next(one for one, size in zip(requests, sizes, strict=True) if not best or size.smallest is best)
    report = _base_report(sizing.with_layout(chosen, *best.ranks) if best and best.ranks else chosen)
    report.size = sizes
    report.feasible = best is not None
    report.reason = None if best else findings.no_platform_reason(sizes)
    report.summary = findings.platform_summary(report, best)
    return report


# ------------------------------------------------------------------ elasticities


def elasticities(request: Request, base: Evaluation) -> dict[str, ParameterEffect]:
    """Every parameter by key: ``elasticities(request, evaluate(request))["flops"].up.elasticity["ttft_ms"]``"""
    return {key: _effect(request, base, parameter) for key, parameter in parameters(request).items()}


def _effect(request: Request, base: Evaluation, parameter: Parameter) -> ParameterEffect:
    up, down = (_change(request, base, parameter, factor) for factor in (1 + STEP, 1 - STEP))
    return ParameterEffect.from_changes(parameter, up, down)


def _change(request: Request, base: Evaluation, parameter: Parameter, factor: float) -> Change:
    scaled = evaluate(parameter.scaled_request(request, factor)) if parameter.used else base
    return Change.between(asdict(base), asdict(scaled), factor)


def scaling_curves(request: Request) -> dict[str, ScalingCurve]:
    """Latencies along every parameter that the plan uses, far beyond a tenth: where more of it stops helping."""
    curves = {}
    for key, parameter in parameters(request).items():
        if parameter.used and not parameter.within:
            points = [bind_request(parameter.scaled_request(request, factor)).metrics() for factor in CURVE_FACTORS]
            curves[key] = ScalingCurve(
                factor=list(CURVE_FACTORS), ttft_ms=[m.ttft_ms for m in points], tpot_ms=[m.tpot_ms for m in points]
            )
    return curves
