"""A plan over a trace's day: what it needs in each window, and what static and autoscaled deployments make of it.

    day = DayPlanner(simulator, 300.0, price_per_hour=3.6).plan("tp1 fp8", 4, "startup=90")
    day.policies[0].gpu_hours, day.peak.replicas

Every policy serves the whole trace, request by request: the static deployments, an autoscaler that reacts, replicas
that start ahead of the load, and the bound: in every window the fewest replicas that keep the limits, there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import gcd
from typing import Any

import msgspec
import numpy as np

from ..serving.autoscaling import AutoscalingOptions, parse_autoscaling, replica_use, startup_seconds
from ..serving.deployment import Pools, serve
from ..serving.metrics import good_requests, latencies
from ..serving.outcome import Outcome
from .load_windows import WindowSizer, varies, window_width, windows
from .objective import Traffic
from .plan_simulation import PlanSimulator
from .search_result import Day, LoadWindow, PolicyResult

BOUND = "lower bound"
HEADROOM = 0.2  # of an autoscaler's target: it sees the load after it has come


def day_window(traffic: Traffic, window: float | None, asked_for: bool) -> float | None:
    """Seconds of the windows that a search's trace is looked at in; None: it is not.

    ``asked_for``: an autoscaler was given, so that the load need not vary.
    """
    trace = traffic.trace
    if trace is None or trace.arrival_s is None or traffic.request_rate is None or not np.ptp(trace.arrival_s):
        return None
    if window is not None:
        return window or None
    width = window_width(trace)
    return width if asked_for or varies(trace, width) else None


class DayPlanner:
    """One day under way: ``DayPlanner(simulator, width, price_per_hour).plan(replicas, autoscale)``"""

    def __init__(
        self,
        simulator: PlanSimulator,
        width: float,
        price_per_hour: float | None,
        progress: Callable[[str, int], None] = lambda stage, done: None,
    ) -> None:
        case = simulator.case
        assert case.traffic.trace is not None
        self.trace, self.objective, self.width = case.traffic.trace, case.objective, width
        self.price, self.progress, self.options = price_per_hour, progress, simulator.options
        times = self.trace.arrival_s
        assert times is not None
        self.trace = msgspec.structs.replace(self.trace, arrival_s=times - times.min())
        self.span = float(times.max() - times.min())
        parts = gcd(*(pool.replicas for pool in case.pools))
        self.unit: Pools = []
        self.gpus = 0
        for (role, server), pool in zip(simulator.pools, case.pools, strict=True):
            plan, count = server.bound_plan.plan, pool.replicas // parts
            self.unit.append((role, server._replace(replicas=count * plan.data_parallel_size)))
            self.gpus += count * plan.gpus
        self.startup = startup_seconds(self.unit[0][1].bound_plan)
        self.limits = {name: limit * 1e3 for name, limit in self.objective.slo.items()}

    def plan(self, unit: str, replicas: int, autoscale: str | Mapping[str, Any] | None) -> Day:
        """Size every window, then serve the day in each of the ways; ``replicas`` are those of the search's winner."""
        given = parse_autoscaling(autoscale or {})
        sizer = WindowSizer(self.trace, self.unit, self.gpus, self.objective, self.options)
        sized = sizer.sized(windows(self.trace, self.width), lambda done: self.progress("windows", done))
        peak = max(window.replicas for window in sized)
        startup = self.startup if given.startup is None else given.startup
        most = peak if given.max is None else given.max
        target = given.target or default_target(sized)
        day = Day(
            window_s=self.width,
            span_s=self.span,
            requests=len(self.trace),
            unit=unit,
            gpus_per_replica=self.gpus,
            price_per_hour=self.price,
            windows=sized,
            startup_s=startup,
            target=target,
            max_replicas=max(most, given.min),
            policies=[],
            simulations=sizer.simulations,
            notes=_notes(sized),
        )
        self.starts = [window.start_s for window in sized]
        day.policies.append(self._static("static, for the peak", peak))
        if replicas != peak:
            day.policies.append(self._static("static, as above", replicas))
        if len(self.unit) > 1:
            day.notes.append("prefill and decode pools scale together here, and only the windows are simulated")
            day.policies.append(self._bound(sized, None))
            return day
        schedule = tuple((window.start_s, max(1, window.replicas)) for window in sized)
        first = max(1, sized[0].replicas)
        options = msgspec.structs.replace(
            given, target=target, startup=startup, max=day.max_replicas, initial=given.initial or first
        )
        day.policies.append(self._autoscaled(f"autoscaled ({given.policy})", options))
        ahead = AutoscalingOptions(policy="schedule", schedule=schedule, startup=startup, initial=first)
        day.policies.append(self._autoscaled("scheduled, a start-up ahead", ahead))
        at_once = msgspec.structs.replace(ahead, startup=0.0, period=min(self.width, 15.0))
        day.policies.append(self._bound(sized, at_once))
        return day

    def _static(self, name: str, replicas: int) -> PolicyResult:
        pools = [(role, pool._replace(replicas=pool.replicas * replicas)) for role, pool in self.unit]
        outcome = serve(self.trace, pools, self.options)
        return self._result(name, "static", outcome, self.span / 3600 * replicas, [0.0], [replicas])

    def _autoscaled(self, name: str, autoscaling: AutoscalingOptions) -> PolicyResult:
        outcome = serve(self.trace, self.unit, msgspec.structs.replace(self.options, autoscale=autoscaling))
        use = replica_use(outcome.lives, 0.0, self.span)
        return self._result(
            name, autoscaling.policy, outcome, use.hours, use.times.tolist(), use.serving.astype(int).tolist()
        )

    def _bound(self, sized: list[LoadWindow], autoscaling: AutoscalingOptions | None) -> PolicyResult:
        """What the windows need; simulated one after the other, with what each leaves to the next."""
        outcome = None
        if autoscaling is not None:
            outcome = serve(self.trace, self.unit, msgspec.structs.replace(self.options, autoscale=autoscaling))
        hours = sum(window.replicas * window.duration_s for window in sized) / 3600
        starts, counts = [window.start_s for window in sized], [window.replicas for window in sized]
        return self._result(BOUND, "schedule", outcome, hours, starts, counts)

    def _result(
        self, name: str, policy: str, outcome: Outcome | None, hours: float, times: list[float], replicas: list[int]
    ) -> PolicyResult:
        """What a run of the whole day comes to; ``hours`` are of its replicas."""
        self.progress("day", 0)
        good, by_window, ttft = self._judged(outcome) if outcome is not None else (None, None, None)
        gpu_hours = hours * self.gpus
        return PolicyResult(
            name=name,
            policy=policy,
            gpu_hours=gpu_hours,
            cost=gpu_hours * self.price if self.price else None,
            good=good,
            window_good=by_window,
            p90_ttft_ms=ttft,
            peak_replicas=max(replicas),
            mean_replicas=hours * 3600 / (self.span or 1.0),
            times_s=times,
            replicas=replicas,
        )

    def _judged(self, outcome: Outcome) -> tuple[float, list[float], float | None]:
        """The share of all requests that keep the limits, that of each window, and TTFT's 90th percentile."""
        by_metric = latencies(outcome)
        kept = good_requests(by_metric, self.limits)
        assert self.trace.arrival_s is not None
        edges = np.searchsorted(self.trace.arrival_s, [*self.starts, np.inf])
        shares = [float(kept[a:b].mean()) if b > a else 1.0 for a, b in pairwise(edges.tolist())]
        ttft = by_metric["ttft"][~np.isnan(by_metric["ttft"])]
        return float(kept.mean()), shares, float(np.percentile(ttft, 90)) if len(ttft) else None


def default_target(sized: list[LoadWindow]) -> float:
    """Requests in flight of a replica in busy windows, less some headroom.

    Busy are those that need more than half of the peak: what a replica holds depends on the lengths, which at night are
    others. Of n replicas that a window needs, the last is half empty in the mean.
    """
    peak = max(one.replicas for one in sized)
    busy = [one.concurrency / max(1.0, one.replicas - 0.5) for one in sized if 2 * one.replicas > peak and one.holds]
    return max(1.0, (1 - HEADROOM) * float(np.median(busy))) if busy else 1.0


def _notes(sized: list[LoadWindow]) -> list[str]:
    """What a reader must know of the windows."""
    missed = sum(not window.holds for window in sized)
    if not missed:
        return []
    return [
        f"in {missed} of {len(sized)} windows too many requests miss a limit even alone: there the replicas are "
        "counted beyond which more do not help"
    ]
