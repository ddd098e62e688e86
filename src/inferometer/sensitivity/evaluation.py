"""The metrics of a plan: latencies, rates and cost at its batch, and at the largest batch that fits."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ..costs import parallelism
from ..costs.binding import BoundPlan
from ..inference import speculation
from ..inference.analyze import metrics_of
from ..inference.memory import cache_offloaded, memory_table, needed_memory
from ..inference.report import Memory, Metrics
from ..inference.request import Request
from ..inference.workload import batch_shape_of


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Under the names of ``analyze``; ``full_…`` is at the largest batch that fits and that the engine runs."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None
    output_throughput: float | None = None
    cost_per_million_output_tokens: float | None = None
    joules_per_output_token: float | None = None
    full_batch_size: int = 0
    full_output_throughput: float | None = None
    full_cost_per_million_output_tokens: float | None = None


class TargetMetric(NamedTuple):
    """A metric that targets are set for."""

    field: str  # of `Evaluation`
    label: str
    unit: str
    better: int  # -1: less of it is better

    def holds(self, value: float | None, limit: float) -> bool:
        """Whether a value keeps a limit; a missing one keeps none."""
        return self.gap(value, limit) <= 0

    def gap(self, value: float | None, limit: float) -> float:
        """Octaves that are missing: ``METRICS["tpot"].gap(40, 20)  # 1.0``; not above 0 where the limit is kept."""
        return math.inf if not value else math.log2(value / limit) * -self.better


METRICS = {
    "ttft": TargetMetric("ttft_ms", "TTFT", "ms", -1),
    "tpot": TargetMetric("tpot_ms", "TPOT", "ms", -1),
    "e2el": TargetMetric("e2el_ms", "end to end", "ms", -1),
    "throughput": TargetMetric("output_throughput", "output rate", "tokens/s", 1),
    "cost": TargetMetric("cost_per_million_output_tokens", "cost", "$/M tokens", -1),
    "energy": TargetMetric("joules_per_output_token", "energy", "J/token", -1),
    "full-throughput": TargetMetric("full_output_throughput", "output throughput, full load", "tokens/s", 1),
    "full-cost": TargetMetric("full_cost_per_million_output_tokens", "cost, full load", "$/M tokens", -1),
}
FULL_LOAD = "full_"  # how the fields at the largest batch begin
_PHASES = {"ttft_ms": "prefill", "tpot_ms": "decode"}  # metrics that need only one of the two


class BoundRequest(NamedTuple):
    """A request bound to names, with what it keeps in memory."""

    request: Request
    bound_plan: BoundPlan
    memory: Memory

    @property
    def fits(self) -> bool:
        """Whether the plan's batch fits."""
        return self.memory.total_bytes <= self.memory.usable_bytes

    @property
    def memory_needed(self) -> float:
        """Memory, in bytes, that a device of this plan needs."""
        return needed_memory(self.request.engine, self.request.plan.gpu_memory_utilization, self.memory)

    @property
    def largest_batch(self) -> int:
        """The largest batch that fits and that the engine runs at once."""
        plan = self.request.plan
        most = plan.max_num_seqs // self.request.workload.beam_width * plan.data_parallel_size
        return min(self.memory.max_batch_size, most)

    def metrics(self) -> Metrics:
        """At the plan's batch."""
        return metrics_of(self.bound_plan, self.request.workload)[0]

    def full_load_metrics(self) -> Metrics:
        """At the largest batch."""
        if not self.largest_batch:
            return Metrics()
        return metrics_of(self.bound_plan, replace(self.request.workload, batch_size=self.largest_batch))[0]


def bind_offloaded(request: Request) -> BoundPlan:
    """The request bound to names, its share of the KV cache on the host where there is one."""
    bound_plan = request.bind()
    return cache_offloaded(bound_plan, batch_shape_of(bound_plan, request.workload))


def bind_request(request: Request) -> BoundRequest:
    """``bind_request(build_request("llama-3.1-8b", "h200")).fits``"""
    bound_plan = bind_offloaded(request)
    return BoundRequest(request, bound_plan, memory_table(bound_plan, batch_shape_of(bound_plan, request.workload)))


def illegal_layout(request: Request) -> str:
    """Why a layout cannot be run at all, as a sentence; empty if it can."""
    reason = parallelism.illegal_reason(request.model, request.plan, request.device)
    return reason or (speculation.draft_reason(request.bind()) if request.plan.speculation else "")


def evaluate(request: Request) -> Evaluation:
    """All metrics of a plan: ``evaluate(build_request("llama-3.1-8b", "h200")).tpot_ms``"""
    bound = bind_request(request)
    metrics, full_load = bound.metrics(), bound.full_load_metrics()
    return Evaluation(
        ttft_ms=metrics.ttft_ms,
        tpot_ms=metrics.tpot_ms,
        e2el_ms=metrics.e2el_ms,
        output_throughput=metrics.output_throughput,
        cost_per_million_output_tokens=metrics.cost_per_million_output_tokens,
        joules_per_output_token=metrics.joules_per_output_token,
        full_batch_size=bound.largest_batch,
        full_output_throughput=full_load.output_throughput,
        full_cost_per_million_output_tokens=full_load.cost_per_million_output_tokens,
    )


def evaluate_metric(request: Request, metric: TargetMetric) -> float | None:
    """One metric alone, without the phases that it does not need: ``evaluate_metric(request, METRICS["tpot"])``"""
    if metric.field.startswith(FULL_LOAD):
        metrics = bind_request(request).full_load_metrics()
    else:
        phase = _PHASES.get(metric.field, "all")
        metrics = metrics_of(bind_offloaded(request), request.workload, phase)[0]
    value: float | None = getattr(metrics, metric.field.removeprefix(FULL_LOAD))
    return value
