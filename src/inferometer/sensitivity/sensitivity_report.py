"""The result of a look at a machine's figures: plain structs that are also the JSON (``inferometer.sensitivity/1``).

found = inferometer.sensitivity("llama-3.1-8b", gpu="h200", target="tpot:4")
found.figures["memory_bandwidth"].up.change["tpot_ms"]        found.targets["tpot"].figures["memory_bandwidth"].value
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..inference.report import ModelInfo, as_dict, as_json
from .evaluation import Reading

SCHEMA = "inferometer.sensitivity/1"
SEEN = ("ttft_ms", "tpot_ms", "output_throughput")  # what comparisons show


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A figure times ``factor``: relative changes of all metrics, and the share of the figure's change that arrives."""

    factor: float
    change: dict[str, float | None]
    elasticity: dict[str, float | None]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, a tenth up and a tenth down."""

    label: str
    unit: str
    value: float | None
    used: bool
    of: str
    within: str
    up: Change
    down: Change


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies at several factors on one figure."""

    factor: list[float]
    ttft_ms: list[float | None]
    tpot_ms: list[float | None]


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """What one figure alone must be for a target: see `levers.target.solved` for the words of ``status``."""

    status: str
    factor: float | None = None
    value: float | None = None
    best: float | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on one metric, and each figure's part in keeping it."""

    metric: str
    limit: float
    now: float | None  # None: nothing fits yet
    holds: bool
    figures: dict[str, Solution]


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """So many GPUs in their best layout: whether they do, and what they lack."""

    gpu: str
    gpus: int
    layout: str  # '-tp 4 -pp 2'; empty where no layout was worth pricing
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


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest platform of one GPU type, and the next smaller one (or, if none does, the closest) with its lack."""

    gpu: str
    found: Tried | None
    smaller: Tried | None
    tried: list[Tried]


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a task asks of each GPU of a layout: factors on its figures as they are, and the figures themselves."""

    flops: float | None  # factor; None where no speed of this layout is enough
    memory_bandwidth: float | None
    memory: float  # factor
    flops_value: float | None
    memory_bandwidth_value: float | None
    memory_value: float
    binding: str  # the figure that is asked for the most, or what keeps speed from helping


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One model or use case on the same machine: how it fares, what it would need, how many GPUs would do."""

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
    alone: dict[str, dict[str, Solution]]  # figure -> target -> what that figure alone would have to be
    size: Size | None


class Sensitivity(msgspec.Struct, kw_only=True):
    """Everything that was found; what was not asked for is empty."""

    model: ModelInfo
    device: dict[str, Any]
    engine: dict[str, Any]
    plan: dict[str, Any]
    workload: dict[str, Any]
    feasible: bool
    reason: str | None
    metrics: Reading
    memory_needed: float
    figures: dict[str, Figure] = {}
    curves: dict[str, Curve] = {}
    targets: dict[str, Target] = {}
    size: list[Size] = []
    compare: list[Row] = []
    usecases: list[Row] = []
    summary: str = ""
    warnings: list[str] = []
    schema: str = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """As plain dicts and lists, ``schema`` first."""
        return as_dict(self)

    def to_json(self) -> bytes:
        """As indented JSON."""
        return as_json(self)

    def rows(self) -> list[dict[str, Any]]:
        """As a table: a row per figure, per platform that was tried, per model or per use case."""
        if self.size:
            return [_platform(tried) for size in self.size for tried in size.tried]
        if self.compare or self.usecases:
            return [_flat(row) for row in self.compare or self.usecases]
        return [self._row(key, figure) for key, figure in self.figures.items()]

    def _row(self, key: str, figure: Figure) -> dict[str, Any]:
        found = {"figure": key, "label": figure.label, "unit": figure.unit, "value": figure.value, "used": figure.used}
        for word, change in (("up", figure.up), ("down", figure.down)):
            found |= {f"{word}_change_{field}": value for field, value in change.change.items()}
            found |= {f"{word}_elasticity_{field}": value for field, value in change.elasticity.items()}
        for word, target in self.targets.items():
            solution = msgspec.to_builtins(target.figures[key])
            found |= {f"target_{word}_{field}": value for field, value in solution.items()}
        return found


def _platform(tried: Tried) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(tried)
    return {key: value for key, value in found.items() if key != "ranks"}  # which its layout says


def _flat(row: Row) -> dict[str, Any]:
    best = row.size.found if row.size else None
    found = {key: getattr(row, key) for key in ("name", "label", "params", "fits", "meets", *SEEN)}
    found |= {f"limit_{word}": limit for word, limit in row.limits.items()}
    found |= {f"needs_{key}": value for key, value in msgspec.to_builtins(row.demand).items()}
    return found | {"gpus_needed": best.gpus if best else None, "layout_needed": best.layout if best else None}
