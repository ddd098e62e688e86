"""What is read off a plan at a point: latencies, rates and cost at its batch, and at the largest batch that fits."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ..costs import parallelism
from ..costs.binding import BoundPlan
from ..inference import latency
from ..inference.analyze import metrics_of
from ..inference.latency import batch_shape_of
from ..inference.memory import cache_offloaded, memory_table
from ..inference.report import Memory, Metrics
from ..inference.request import Request


class Reading(msgspec.Struct, frozen=True, kw_only=True):
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


class Metric(NamedTuple):
    """A figure that people set targets for."""

    field: str  # of `Reading`
    label: str
    unit: str
    better: int  # -1: less of it is better

    def holds(self, value: float | None, limit: float) -> bool:
        """Whether a value keeps a limit; what is not there keeps none."""
        return self.gap(value, limit) <= 0

    def gap(self, value: float | None, limit: float) -> float:
        """Octaves that are missing: ``METRICS["tpot"].gap(40, 20)  # 1.0``; not above 0 where the limit is kept."""
        return math.inf if not value else math.log2(value / limit) * -self.better


METRICS = {
    "ttft": Metric("ttft_ms", "TTFT", "ms", -1),
    "tpot": Metric("tpot_ms", "TPOT", "ms", -1),
    "e2el": Metric("e2el_ms", "end to end", "ms", -1),
    "throughput": Metric("output_throughput", "output rate", "tokens/s", 1),
    "cost": Metric("cost_per_million_output_tokens", "cost", "$/M tokens", -1),
    "energy": Metric("joules_per_output_token", "energy", "J/token", -1),
    "full-throughput": Metric("full_output_throughput", "output rate, full load", "tokens/s", 1),
    "full-cost": Metric("full_cost_per_million_output_tokens", "cost, full load", "$/M tokens", -1),
}
FULL = "full_"
_PHASES = {"ttft_ms": "prefill", "tpot_ms": "decode"}  # what needs only one of the two


class Point(NamedTuple):
    """A request bound to names, with what it keeps in memory."""

    request: Request
    bound_plan: BoundPlan
    held: Memory

    @property
    def fits(self) -> bool:
        """Whether the plan's batch fits."""
        return self.held.total_bytes <= self.held.usable_bytes

    @property
    def needed(self) -> float:
        """Memory, in bytes, that a device of this plan needs."""
        return self.held.total_bytes / self.request.plan.gpu_memory_utilization

    @property
    def largest(self) -> int:
        """The largest batch that fits and that the engine runs at once."""
        plan = self.request.plan
        most = plan.max_num_seqs // self.request.workload.beam_width * plan.data_parallel_size
        return min(self.held.max_batch_size, most)

    def metrics(self, phase: str = "all") -> Metrics:
        """At the plan's batch."""
        return metrics_of(self.bound_plan, self.request.workload, phase)[0]

    def full(self) -> Metrics:
        """At the largest batch."""
        if not self.largest:
            return Metrics()
        return metrics_of(self.bound_plan, replace(self.request.workload, batch_size=self.largest))[0]


def bound(request: Request) -> BoundPlan:
    """The request bound to names, its share of the cache on the host where there is one."""
    bound_plan = request.bind()
    return cache_offloaded(bound_plan, batch_shape_of(bound_plan, request.workload))


def point(request: Request) -> Point:
    """``point(request("llama-3.1-8b", "h200")).fits``"""
    bound_plan = bound(request)
    return Point(request, bound_plan, memory_table(bound_plan, batch_shape_of(bound_plan, request.workload)))


def unusable(request: Request) -> str:
    """Why a layout cannot be run at all, as a sentence; empty if it can."""
    why = parallelism.illegal_reason(request.model, request.plan, request.device)
    return why or (latency.draft_reason(request.bind()) if request.plan.speculation else "")


def reading(request: Request) -> Reading:
    """Everything at a point."""
    here = point(request)
    now, full = here.metrics(), here.full()
    return Reading(
        ttft_ms=now.ttft_ms,
        tpot_ms=now.tpot_ms,
        e2el_ms=now.e2el_ms,
        output_throughput=now.output_throughput,
        cost_per_million_output_tokens=now.cost_per_million_output_tokens,
        joules_per_output_token=now.joules_per_output_token,
        full_batch_size=here.largest,
        full_output_throughput=full.output_throughput,
        full_cost_per_million_output_tokens=full.cost_per_million_output_tokens,
    )


def read(request: Request, metric: Metric) -> float | None:
    """One figure alone, without pricing what it does not need."""
    if metric.field.startswith(FULL):
        found: float | None = getattr(point(request).full(), metric.field.removeprefix(FULL))
        return found
    now: float | None = getattr(
        metrics_of(bound(request), request.workload, _PHASES.get(metric.field, "all"))[0], metric.field
    )
    return now
