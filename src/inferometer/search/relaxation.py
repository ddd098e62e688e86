"""What would make a plan possible where none is: every relaxation is a search of its own that has a winner."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..base.errors import InferometerError
from ..serving.synthetic import own_rate
from ..specs.arguments import flag
from ..specs.catalog import hardware
from .objective import MAX_RATE
from .plan_table import PlanTable, Status, latencies, slo_ratio
from .search_result import Relaxation, Search

MORE_GPUS = (2, 4, 8, 16)  # times the GPUs
SMALLER = ("fp8", "nvfp4", "mxfp4", "w4a16")  # precisions, in the order they are tried
FACTORS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)  # times the limit that is possible by estimates
FLOPS_OF = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}  # the rate of a GPU that makes a precision worth trying


class Relaxer:
    """Searches again with one thing changed: ``Relaxer(search, kwargs, limits).relaxations(table)``

    ``kwargs`` are those of the search that had no winner, ``limits`` its SLO in ms.
    """

    def __init__(
        self,
        search: Callable[..., Search],
        kwargs: dict[str, Any],
        limits: dict[str, float],
        progress: Callable[[str, int], None] | None = None,
    ) -> None:
        self.search, self.limits, self.progress = search, limits, progress
        self.kwargs = {**kwargs, "goodput": limits}
        self.attempts = 0

    def relaxations(self, table: PlanTable | None) -> list[Relaxation]:
        """One of each kind that helps: another limit, a lower rate, more GPUs, another precision."""
        relaxed = [one for name in self.limits for one in self._one_limit(name, table)]
        if not relaxed and len(self.limits) > 1:
            relaxed = self._all_limits(table)
        return [*relaxed, *self._lower_rate(), *self._more_gpus(), *self._smaller_precision()]

    def attempt(self, **changes: Any) -> Search | None:
        """The search with some keywords changed; None if it has no winner, or the change is not allowed."""
        self.attempts += 1
        if self.progress is not None:
            self.progress("relaxing", self.attempts)
        try:
            result = self.search(**{**self.kwargs, **changes})
        except InferometerError:
            return None
        return result if result.feasible else None

    def _one_limit(self, name: str, table: PlanTable | None) -> list[Relaxation]:
        """The smallest value of one limit that a plan keeps together with the others, as far as it is tried."""
        lowest = lowest_metric(name, table) if table is not None else None
        if lowest is None:
            return []
        values = [round_up(max(lowest * factor * 1e3, self.limits[name])) for factor in FACTORS]
        return self._smallest([{name: value} for value in values])

    def _all_limits(self, table: PlanTable | None) -> list[Relaxation]:
        """All limits by one factor: the SLO ratio of the closest plan, and more if need be."""
        if table is None:
            return []
        ratios = [max(float(table.plans.slo_ratio.min()) * factor, 1.0) for factor in FACTORS]
        return self._smallest([{name: round_up(limit * r) for name, limit in self.limits.items()} for r in ratios])

    def _smallest(self, looser: Sequence[dict[str, float]]) -> list[Relaxation]:
        """The first of limits, each looser than the one before, with which a plan is possible.

        Estimates are mostly right, so the first is tried first; of the others half are ruled out by each search.
        """
        best: tuple[dict[str, float], Search] | None = None
        low, at, end = 0, 0, len(looser)
        while low < end:
            result = self.attempt(goodput={**self.limits, **looser[at]})
            if result is not None:
                best, end = (looser[at], result), at
            else:
                low = at + 1
            at = (low + end) // 2
        if best is None:
            return []
        limits = ",".join(f"{name}:{limit:g}" for name, limit in best[0].items())
        return [_relaxation(f"{flag('goodput')} {limits}", best[1])]

    def _lower_rate(self) -> list[Relaxation]:
        """The highest rate that the GPUs carry within the limits."""
        rate, trace = self.kwargs.get("request_rate"), self.kwargs.get("trace")
        if rate is None and trace is not None:
            rate = own_rate(trace)
        if rate in (None, MAX_RATE) or not self.limits:
            return []
        result = self.attempt(request_rate=MAX_RATE)
        if result is None or result.winner is None or result.winner.trial is None:
            return []
        return [_relaxation(f"{flag('request_rate')} {round_down(result.winner.trial.request_rate):.6g}", result)]

    def _more_gpus(self) -> list[Relaxation]:
        for times in MORE_GPUS:
            num_gpus = times * self.kwargs["num_gpus"]
            result = self.attempt(num_gpus=num_gpus)
            if result is not None:
                return [_relaxation(f"{flag('num_gpus')} {num_gpus}", result)]
        return []

    def _smaller_precision(self) -> list[Relaxation]:
        """The first smaller precision of weights that helps; fp8 has been tried unless a precision was given."""
        tried = ("fp8",) if self.kwargs.get("quantization") is None else ()
        for precision in SMALLER:
            if precision in tried or not multiplies(self.kwargs["gpu"], precision):
                continue
            result = self.attempt(quantization=precision)
            if result is not None:
                return [_relaxation(f"-q {precision}", result)]
        return []


def lowest_metric(name: str, table: PlanTable) -> float | None:
    """The lowest value (s) of a metric, by estimates, among plans that keep the other limits; None if none does.

    Without a given rate any load of any server counts, else the load that carries it.
    """
    traffic, objective = table.problem.traffic, table.problem.objective
    others = objective._replace(slo={other: limit for other, limit in objective.slo.items() if other != name})
    if traffic.request_rate:
        ttft, tpot = table.plans.ttft_at_slo_share, table.plans.tpot
        possible = table.plans.status <= Status.MISSES_SLO
    else:
        ttft, tpot = table.servers.base_ttft, table.servers.tpot
        possible = table.servers.served()
    kept = possible & (slo_ratio(others, traffic, ttft, tpot) <= 1)
    return float(latencies(traffic, ttft, tpot)[name][kept].min()) if kept.any() else None


def multiplies(gpus: Sequence[str], precision: str) -> bool:
    """Whether all GPUs multiply in a precision, or need not: ``multiplies(["a100"], "fp8")  # False``"""
    flops = FLOPS_OF.get(precision)
    return flops is None or all(
        any(key.startswith(flops) or key == precision for key in hardware(gpu).flops) for gpu in gpus
    )


def _relaxation(change: str, result: Search) -> Relaxation:
    assert result.winner is not None
    return Relaxation(change=change, plan=result.winner.label, simulated=result.winner.trial is not None)


def round_up(value: float) -> float:
    """Two significant digits, up: ``round_up(613)  # 620.0``"""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.6g}")


def round_down(value: float) -> float:
    """Two significant digits, down: ``round_down(12.39)  # 12.0``"""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / step + 1e-9) * step:.6g}")
