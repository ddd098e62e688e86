"""The prediction of a training step: structs that are also the JSON contract (schema ``inferometer.train/1``).

report = inferometer.train("llama-3.1-8b", gpu="h100-sxm", data_parallel_size=8, zero=1)
report.step_seconds        report.memory.total_bytes        report.phases["backward"].ops[0].name
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..base.result import ComparableResult
from ..base.units import percent, seconds, size
from ..inference.report import JsonResult, ModelInfo, OpRow, ops_csv
from .training_run import TrainRun
from .training_timeline import StepTimeline, TrainStage

SCHEMA = "inferometer.train/1"


class TrainMemory(msgspec.Struct):
    """Bytes on a GPU of the fullest pipeline stage."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    working_bytes: float  # alive beside the activations at the peak: gradients of activations, what is recomputed
    buffers_bytes: float  # that the engine keeps allocated: placeholders of weight gradients
    overhead_bytes: float
    total_bytes: float
    usable_bytes: float
    capacity_bytes: float
    stage: int


class Breakdown(msgspec.Struct):
    """Seconds of a step, on the slowest pipeline stage; communication is what is not hidden."""

    forward: float
    backward: float
    recompute: float
    optimizer: float
    tp_comm: float
    cp_comm: float
    ep_comm: float
    pp_comm: float
    dp_comm: float
    pp_bubble: float
    host: float


class TrainPhase(msgspec.Struct):
    """A pass of all micro-batches of a step on one GPU, operator by operator."""

    seconds: float
    flops: float
    bytes: float
    ops: list[OpRow]


class TrainReport(ComparableResult, JsonResult, msgspec.Struct, dict=True):
    """Everything about one optimizer step, and what follows for a budget of tokens."""

    model: ModelInfo
    device: dict[str, Any]
    engine: dict[str, Any]
    plan: dict[str, Any]
    recipe: dict[str, Any]
    feasible: bool
    reason: str | None
    step_seconds: float
    roofline_step_seconds: float
    tokens_per_step: int
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    micro_batches: int
    model_flops: float
    hardware_flops: float
    model_flops_utilization: float
    hardware_flops_utilization: float
    breakdown: Breakdown
    memory: TrainMemory
    stages: list[TrainStage]  # of the pipeline, each with what fills it and how long it waits
    phases: dict[str, TrainPhase]
    days: float | None = None
    gpu_hours: float | None = None
    cost: float | None = None
    run: TrainRun | None = None  # the whole training, failures included; None without --tokens
    timeline: StepTimeline | None = None  # every pass of every stage; None without `timeline`
    summary: str = ""
    warnings: list[str] = []
    schema: str = SCHEMA

    def __repr__(self) -> str:
        where = f"{self.model.name[:80]} on {self.plan['gpus']} × {self.device['name'][:40]}"
        verdict = "" if self.feasible else "infeasible, "
        return (
            f"<TrainReport {where}: {verdict}step {seconds(self.step_seconds)}, "
            f"{self.tokens_per_second:,.0f} tokens/s, "
            f"MFU {percent(self.model_flops_utilization)}, {size(self.memory.total_bytes)}>"
        )

    def to_csv(self) -> str:
        """One line per operator and phase."""
        return ops_csv(self.phases)
