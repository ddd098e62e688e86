"""The result of a training search, as structs that are its JSON (``inferometer.training_search/1``).

result = inferometer.training_search("llama-3.1-8b", num_gpus=64, global_batch_size=512)
result.winner.label      result.winner.tokens_per_second_per_gpu      result.commands["megatron-lm"]
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..base.result import kept
from ..base.units import percent, seconds, size
from ..inference.report import JsonResult
from .search_result import Relaxation
from .training_space import TrainingLayout

SCHEMA = "inferometer.training_search/1"
ESTIMATED, SLOWER, TOO_LARGE, ILLEGAL = "estimated", "slower", "too large", "illegal"


class TrainingPlan(msgspec.Struct, kw_only=True):
    """A layout that was estimated as `train` estimates it, and fits."""

    label: str
    arguments: dict[str, Any]  # keywords of `train` in which the layouts differ
    step_seconds: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    model_flops_utilization: float
    memory_bytes: float  # of the fullest GPU
    micro_batches: int
    days: float | None = None  # of the whole run; None without --tokens
    gpu_hours: float | None = None
    cost: float | None = None  # USD


class TrainingSearch(JsonResult, msgspec.Struct, kw_only=True, dict=True):
    """The best layout for so many GPUs, the next ones, what memory costs in speed, and why others do not work."""

    schema: str = SCHEMA
    model: str
    gpu: str
    engine: str
    num_gpus: int
    global_batch_size: int
    seq_len: int
    precision: str
    feasible: bool
    reason: str
    winner: TrainingPlan | None
    why: list[str]  # sentences
    margin: dict[str, float]  # shares: how much slower the runner-up is, and how much memory is left
    plans: list[TrainingPlan]  # the fastest, best first
    front: list[TrainingPlan]  # no layout is faster in as little memory; fastest first
    usable_bytes: float  # of a GPU
    breakdown: dict[str, float]  # seconds of the winner's step
    memory: dict[str, float]  # bytes of the winner's fullest GPU
    rejections: dict[str, int]  # reason -> layouts
    counts: dict[str, int]
    space: dict[str, Any]
    commands: dict[str, list[str]]  # lines of a shell: the winner with Megatron-LM, and with `inferometer train`
    relaxations: list[Relaxation]
    seconds: dict[str, float]
    warnings: list[str]

    def __repr__(self) -> str:
        where = f"{self.model[:60]} on {self.num_gpus:,} × {self.gpu[:40]}"
        if self.winner is None:
            return f"<TrainingSearch {where}: no layout fits>"
        return (
            f"<TrainingSearch {where}: {self.winner.label[:80]}, step {seconds(self.winner.step_seconds)}, "
            f"MFU {percent(self.winner.model_flops_utilization)}, {size(self.winner.memory_bytes)}>"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Every layout of the space; of a copy of a result, those that are in it."""
        layouts: list[LayoutRow] = kept(self, "layouts") or []
        return [row.columns() for row in layouts] or [_plan_row(plan) for plan in self.plans]


class LayoutRow(msgspec.Struct, kw_only=True):
    """What is known of a layout: exact figures of those that were estimated, bounds of all others that are legal."""

    layout: TrainingLayout
    status: str
    reason: str = ""
    step_seconds: float | None = None
    step_seconds_least: float | None = None
    tokens_per_second_per_gpu: float | None = None
    memory_bytes: float | None = None
    memory_bytes_least: float | None = None

    def columns(self) -> dict[str, Any]:
        """A line of a table: the axes, the status, the figures."""
        axes = self.layout._asdict() | {"recomputation": str(self.layout.recomputation)}
        figures = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("layout", "reason")}
        return {**axes, **figures, "reason": self.reason}


def _plan_row(plan: TrainingPlan) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(plan)
    return {**{name: value for name, value in row.items() if name != "arguments"}, **row["arguments"]}
