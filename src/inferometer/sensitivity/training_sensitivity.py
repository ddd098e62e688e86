"""Which hardware figures drive a training step, and what one of them alone would have to be for a target.

training_sensitivity("llama-3.1-70b", tensor_parallel_size=8, num_gpus=64, zero=1).figures["flops"].up.change
training_sensitivity("llama-3.1-8b", num_gpus=8, zero=1, target="step:1.5").targets["step"].figures["flops"].value
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from ..base.errors import BadValue
from ..base.units import percent, seconds, si
from ..inference.analyze import device_info, engine_info, model_info
from ..inference.report import JsonResult, ModelInfo
from ..inference.request import Request
from ..specs.arguments import signature
from ..specs.train_args import TrainArgs, TrainSensitivityArgs
from ..training.iteration import iteration_time, model_flops, stage_times
from ..training.passes import Recipe
from ..training.train import build_training, report_of
from ..training.training_memory import fullest_stage
from ..training.training_run import training_run
from ..training.training_setup import bind_training
from .evaluation import TargetMetric
from .findings import NOTABLE, factor_text, percent_change, short_label, with_unit
from .parameters import Parameter, parameters, power_limit
from .sensitivity_report import Change, ParameterEffect, Solution, Target, figure_row
from .targets import parse_targets, solved

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import TrainKwargs

SCHEMA = "inferometer.training_sensitivity/1"
STEP = 0.1  # a tenth up and a tenth down, apart: rooflines have kinks
METRICS = {
    "step": TargetMetric("step_seconds", "a step", "s", -1),
    "tokens-per-second": TargetMetric("tokens_per_second", "the rate", "tokens/s", 1),
    "tokens-per-gpu": TargetMetric("tokens_per_second_per_gpu", "the rate per GPU", "tokens/s", 1),
    "mfu": TargetMetric("model_flops_utilization", "MFU", "", 1),
    "days": TargetMetric("days", "the run", "days", -1),
}
UNUSED = 1e-9  # a relative change that is rounding


class TrainingMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Under the names of `train`."""

    step_seconds: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    model_flops_utilization: float
    days: float | None = None
    cost: float | None = None


class TrainingSensitivity(JsonResult, msgspec.Struct, kw_only=True, dict=True):
    """A training step, what each figure of the machine moves in it, and what each alone must be for the targets."""

    schema: str = SCHEMA
    model: ModelInfo
    device: dict[str, Any]
    engine: dict[str, Any]
    plan: dict[str, Any]
    recipe: dict[str, Any]
    feasible: bool
    reason: str | None
    metrics: TrainingMetrics
    memory_needed: float  # bytes of the fullest GPU
    figures: dict[str, ParameterEffect]  # by the keys of a hardware file
    targets: dict[str, Target]  # by metric
    summary: str
    warnings: list[str]

    def __repr__(self) -> str:
        where = f"{self.model.name[:80]} on {self.plan['gpus']} × {self.device['name'][:40]}"
        return f"<TrainingSensitivity of {where}: step {seconds(self.metrics.step_seconds)}, {self.summary[:60]} …>"

    def rows(self) -> list[dict[str, Any]]:
        """As a table: a row per figure."""
        return [figure_row(key, effect, self.targets) for key, effect in self.figures.items()]


@signature(TrainSensitivityArgs, TrainArgs)
def training_sensitivity(
    model: str,
    gpu: str = "h100-sxm",
    *,
    target: str | Iterable[str] | Mapping[str, float] | None = None,
    **kwargs: Unpack[TrainKwargs],
) -> TrainingSensitivity:
    """Which hardware figures drive a training step; the keywords are those of `train`.

    ``training_sensitivity("llama-3.1-8b", num_gpus=8, zero=1).figures["memory_bandwidth"].up.elasticity``
    ``training_sensitivity("llama-3.1-8b", num_gpus=8, zero=1, target="mfu:0.5").targets["mfu"]``
    """
    limits = parse_targets(target, METRICS, "step:5 (seconds)")
    request, recipe = build_training(model, gpu, kwargs)
    if "days" in limits and recipe.tokens is None:
        raise BadValue("`target` days needs `tokens`, the budget of the whole run")
    base, report = evaluate_training(request, recipe), report_of(request, recipe)
    known = parameters(request) | {"power": power_limit(request)}
    every = {key: _tried(request, recipe, base, one) for key, one in known.items()}
    result = TrainingSensitivity(
        model=model_info(request),
        device=device_info(request.device),
        engine=engine_info(request.engine),
        plan=report.plan,
        recipe=report.recipe,
        feasible=report.feasible,
        reason=report.reason,
        metrics=base,
        memory_needed=report.memory.total_bytes,
        figures={key: effect for key, (_, effect) in every.items()},
        targets={
            name: solve_training_target(request, recipe, {key: one for key, (one, _) in every.items()}, name, limit)
            for name, limit in limits.items()
        },
        summary="",
        warnings=report.warnings,
    )
    result.summary = " ".join([_follows(result), *(_target_sentence(result, name) for name in limits)])
    for name, one in result.targets.items():
        if result.feasible and not one.holds and all(s.status == "never" for s in one.figures.values()):
            result.feasible = False
            result.reason = f"no single figure makes {METRICS[name].label} {_amount(name, one.limit)}"
    return result


def evaluate_training(request: Request, recipe: Recipe) -> TrainingMetrics:
    """The metrics of a step, without its operators: ``evaluate_training(request, recipe).step_seconds``"""
    training = bind_training(request, recipe)
    total = iteration_time(training, stage_times(training))[0].total
    rate = recipe.global_batch_size * recipe.length / total
    gpus = request.plan.gpus
    needed_flops = model_flops(training) * training.micro_batches * training.layout.dp
    run = training_run(recipe, request.plan, request.device, rate)
    return TrainingMetrics(
        step_seconds=total,
        tokens_per_second=rate,
        tokens_per_second_per_gpu=rate / gpus,
        model_flops_utilization=needed_flops / (total * training.bound_plan.env["mlp_peak_flops"] * gpus),
        days=run.days if run is not None else None,
        cost=run.cost if run is not None else None,
    )


def _tried(
    request: Request, recipe: Recipe, base: TrainingMetrics, parameter: Parameter
) -> tuple[Parameter, ParameterEffect]:
    """A parameter, used or not, and what it moves: links of training's axes are others than those of a server's."""

    def change(factor: float) -> Change:
        scaled = evaluate_training(parameter.scaled_request(request, factor), recipe)
        return Change.between(asdict(base), asdict(scaled), factor)

    up, down = change(1 + STEP), change(1 - STEP)
    used = any(abs(value or 0.0) > UNUSED for one in (up, down) for value in one.change.values())
    parameter = parameter._replace(used=used or parameter.key == "memory")
    return parameter, ParameterEffect.from_changes(parameter, up, down)


def solve_training_target(
    request: Request, recipe: Recipe, known: Mapping[str, Parameter], name: str, limit: float
) -> Target:
    """What every parameter alone can do for one target."""
    metric = METRICS[name]

    def value(scaled: Request) -> float | None:
        number: float | None = getattr(evaluate_training(scaled, recipe), metric.field)
        return number

    def gap(scaled: Request) -> float:
        if scaled.device.memory != request.device.memory and not _fits(scaled, recipe):
            return math.inf
        return metric.gap(value(scaled), limit)

    now = value(request)
    figures = {key: solved(request, parameter, gap, value) for key, parameter in known.items()}
    return Target(metric=metric.field, limit=limit, now=now, holds=metric.holds(now, limit), figures=figures)


def _fits(request: Request, recipe: Recipe) -> bool:
    held, _ = fullest_stage(bind_training(request, recipe))
    return held.total <= request.device.memory * request.plan.gpu_memory_utilization


# ------------------------------------------------------------------ sentences


def ranked_figures(result: TrainingSensitivity) -> list[tuple[str, ParameterEffect]]:
    """Figures that the step depends on and that are no part of another, the strongest first."""
    alone = [(key, one) for key, one in result.figures.items() if one.used and not one.within]
    return sorted(alone, key=lambda pair: -largest_step_change(pair[1]))


def largest_step_change(effect: ParameterEffect) -> float:
    """The larger of the changes of the step's time."""
    return max(abs(change.change["step_seconds"] or 0.0) for change in (effect.up, effect.down))


def _follows(result: TrainingSensitivity) -> str:
    """``A step depends most on FLOP/s (−5.9% for 10% more, +7.2% for 10% less), then …``"""
    notable = [one for _, one in ranked_figures(result) if largest_step_change(one) >= NOTABLE]
    if not notable:
        return "No single figure changes a step by 1%."
    first, *others = notable
    up, down = (percent_change(change.change["step_seconds"]) for change in (first.up, first.down))
    pairs = [
        f"{short_label(one)} ({percent_change(one.up.change['step_seconds'])}, "
        f"{percent_change(one.down.change['step_seconds'])})"
        for one in others
    ]
    then = f", then {', '.join(pairs)}" if pairs else ""
    return f"A step depends most on {short_label(first)} ({up} for 10% more, {down} for 10% less){then}."


def _target_sentence(result: TrainingSensitivity, name: str) -> str:
    target, metric = result.targets[name], METRICS[name]
    now = _amount(name, target.now or 0.0)
    sign = "≤" if metric.better < 0 else "≥"
    head = f"{metric.label[0].upper()}{metric.label[1:]} {sign} {_amount(name, target.limit)}"
    if target.holds:
        return f"{head} is met (now {now})."
    whole = ((result.figures[key], one) for key, one in target.figures.items() if not result.figures[key].within)
    ways = [solution_text(effect, one) for effect, one in whole if one.status == "reached"]
    return f"{head} (now {now}) needs {' or '.join(ways) or 'changes to more than one figure'}."


def solution_text(effect: ParameterEffect, one: Solution) -> str:
    """``FLOP/s of 1.48 PFLOP/s (×1.5)``"""
    value = "" if one.value is None else f" of {with_unit(one.value, effect.unit)}"
    return f"{short_label(effect)}{value} ({factor_text(one.factor)})"


def _amount(name: str, value: float) -> str:
    """A metric with its unit."""
    if name == "step":
        return seconds(value)
    return percent(value) if name == "mfu" else si(value, METRICS[name].unit)
