"""The result of a sensitivity analysis: plain structs that are also the JSON (``inferometer.sensitivity/1``).

report = inferometer.sensitivity("llama-3.1-8b", gpu="h200", target="tpot:4")
report.figures["memory_bandwidth"].up.change["tpot_ms"]        report.targets["tpot"].figures["memory_bandwidth"].value
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ..inference.report import JsonResult, ModelInfo
from .evaluation import Evaluation
from .parameters import Parameter

SCHEMA = "inferometer.sensitivity/1"
COMPARED = ("ttft_ms", "tpot_ms", "output_throughput")  # the metrics of comparisons


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter times ``factor``: relative changes of all metrics, and their elasticities."""

    factor: float
    change: dict[str, float | None]
    elasticity: dict[str, float | None]  # ln(metric ratio) / ln(factor)

    @classmethod
    def between(cls, before: Mapping[str, float | None], after: Mapping[str, float | None], factor: float) -> Change:
        """From some metrics to others; an elasticity is the share of a change that arrives: ln(ratio) / ln(factor)."""
        pairs = {name: (here, after[name]) for name, here in before.items()}
        return cls(
            factor=factor,
            change={name: there / here - 1 if here and there else None for name, (here, there) in pairs.items()},
            elasticity={
                name: math.log(there / here) / math.log(factor) if here and there else None
                for name, (here, there) in pairs.items()
            },
        )


class ParameterEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter, a tenth up and a tenth down."""

    label: str
    unit: str
    value: float | None
    used: bool
    of: str
    within: str
    up: Change
    down: Change

    @classmethod
    def from_changes(cls, parameter: Parameter, up: Change, down: Change) -> ParameterEffect:
        """A parameter beside what it moves."""
        own = {name: getattr(parameter, name) for name in ("label", "unit", "value", "used", "of", "within")}
        return cls(**own, up=up, down=down)


class ScalingCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies at several factors on one parameter."""

    factor: list[float]
    ttft_ms: list[float | None]
    tpot_ms: list[float | None]


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """What one parameter alone must be for a target: `targets.solve` says what each ``status`` means."""

    status: str
    factor: float | None = None
    value: float | None = None
    best: float | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on one metric, and each parameter's part in keeping it."""

    metric: str
    limit: float
    now: float | None  # None: nothing fits yet
    holds: bool
    figures: dict[str, Solution]


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """So many GPUs in their best layout: whether they do, and what they lack."""

    gpu: str
    gpus: int
    layout: str  # '-tp 4 -pp 2'; empty where no layout was worth evaluating
    works: bool
    ranks: tuple[int, int, int] | None = None  # tp, pp, dp
    binding: str = ""  # weights, kv_cache, layout, or the metric that is missed the most
    short: float | None = None  # how far it is off, as a share; None where it cannot be said in numbers
    reason: str = ""
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    output_throughput: float | None = None
    memory_share: float | None = None  # of what may be used, on the fullest GPU
    price_per_hour: float | None = None


class Size(msgspec.Struct, frozen=True, kw_only=True, rename={"smallest": "found"}):
    """The smallest platform of one GPU type, and the next smaller one (or, if none does, the closest) with its lack."""

    gpu: str
    smallest: Platform | None
    smaller: Platform | None
    tried: list[Platform]


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a task asks of each GPU of a layout: factors on its figures as they are, and the figures themselves."""

    flops: float | None  # factor; None where no speed of this layout is enough
    memory_bandwidth: float | None
    memory: float  # factor
    flops_value: float | None
    memory_bandwidth_value: float | None
    memory_value: float
    binding: str  # the figure with the largest factor, or what keeps speed from helping


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model or use case on the same machine: its metrics, what it would need, how many GPUs would do."""

    name: str
    label: str
    workload: dict[str, Any]
    params: int
    fits: bool
    reason: str | None
    meets: bool  # fits and keeps every limit
    limits: dict[str, float]  # metric -> limit
    ttft_ms: float | None
    tpot_ms: float | None
    output_throughput: float | None
    demand: Demand
    alone: dict[str, dict[str, Solution]]  # parameter -> target -> what that parameter alone would have to be
    size: Size | None


class Sensitivity(JsonResult, msgspec.Struct, kw_only=True, dict=True):
    """The plan, its metrics, and the answer to one question; the fields of the other questions are empty."""

    model: ModelInfo
    device: dict[str, Any]
    engine: dict[str, Any]
    plan: dict[str, Any]
    workload: dict[str, Any]
    feasible: bool
    reason: str | None
    metrics: Evaluation
    memory_needed: float
    figures: dict[str, ParameterEffect] = {}
    curves: dict[str, ScalingCurve] = {}
    targets: dict[str, Target] = {}
    size: list[Size] = []
    compare: list[ComparisonRow] = []
    usecases: list[ComparisonRow] = []
    summary: str = ""
    warnings: list[str] = []
    schema: str = SCHEMA

    def __repr__(self) -> str:
        answers = {
            "figures": f"{len(self.figures)} figures of the machine",
            "targets": f"targets {', '.join(self.targets)}",
            "size": "the smallest platform",
            "compare": f"{len(self.compare)} models",
            "usecases": f"{len(self.usecases)} use cases",
        }
        shown = ", ".join(text for field, text in answers.items() if getattr(self, field))
        return f"<Sensitivity of {self.model.name[:80]} on {self.plan['gpus']} × {self.device['name'][:40]}: {shown}>"

    def rows(self) -> list[dict[str, Any]]:
        """As a table: a row per parameter, per platform that was tried, per model or per use case."""
        if self.size:
            return [_platform_row(platform) for size in self.size for platform in size.tried]
        if self.compare or self.usecases:
            return [_comparison_row(row) for row in self.compare or self.usecases]
        return [figure_row(key, effect, self.targets) for key, effect in self.figures.items()]


def figure_row(key: str, effect: ParameterEffect, targets: Mapping[str, Target]) -> dict[str, Any]:
    """A figure of the machine as a row of a table: what it moves, and what it alone must be for each target."""
    row: dict[str, Any] = {name: getattr(effect, name) for name in ("label", "unit", "value", "used")}
    row = {"figure": key, **row}
    for direction, change in (("up", effect.up), ("down", effect.down)):
        row |= {f"{direction}_change_{field}": value for field, value in change.change.items()}
        row |= {f"{direction}_elasticity_{field}": value for field, value in change.elasticity.items()}
    for metric, target in targets.items():
        row |= {f"target_{metric}_{field}": v for field, v in msgspec.to_builtins(target.figures[key]).items()}
    return row


def _platform_row(platform: Platform) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(platform)
    return {key: value for key, value in row.items() if key != "ranks"}  # which its layout says


def _comparison_row(compared: ComparisonRow) -> dict[str, Any]:
    best = compared.size.smallest if compared.size else None
    row = {key: getattr(compared, key) for key in ("name", "label", "params", "fits", "meets", *COMPARED)}
    row |= {f"limit_{metric}": limit for metric, limit in compared.limits.items()}
    row |= {f"needs_{key}": value for key, value in msgspec.to_builtins(compared.demand).items()}
    return row | {"gpus_needed": best.gpus if best else None, "layout_needed": best.layout if best else None}
