"""A plan over a trace's day: the fewest replicas in each window, and what static and autoscaled deployments come to.

    sizer = WindowSizer(trace, unit, gpus, objective, ServingOptions())
    sizer.sized(windows(trace, 300.0))      # per window: rate, lengths, replicas, and the share that keeps the limits
    day = DayPlanner(simulator, 300.0, price_per_hour=3.6).plan("tp1 fp8", 4, "startup=90", 8)
    day.policies[0].gpu_hours, day.peak.replicas

The requests of a window are simulated as they came, lengths and bursts and all, after those just before it. Round robin
sends every n-th of them to a replica, so of n replicas as many are simulated as have enough requests to judge by.
Policies serve the whole trace, request by request: static deployments, an autoscaler that reacts, replicas that start
ahead of the load, and the bound: in every window the fewest replicas that keep the limits, there at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, is_number
from ..serving.autoscaling import AutoscalingOptions, parse_autoscaling, replica_use, startup_seconds
from ..serving.deployment import Pools, ServingOptions, serve
from ..serving.metrics import good_requests, latencies
from ..serving.outcome import Outcome
from ..serving.trace import Trace
from .objective import Objective, Traffic, requests_at
from .plan_simulation import PlanSimulator
from .search_result import Day, LoadWindow, PolicyResult

WIDTHS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)  # s: windows that a trace may be cut into
MAX_WINDOWS = 300
REQUESTS_EACH = 150  # of a window, in the mean
LEAST_SPAN = 1800.0  # s: a shorter trace is no day
SIMULATED = 400  # requests that judge a window, if it has as many
LEAD_IN = 50  # requests before a window that fill the engines up
MOST_REPLICAS = 4096
HOPELESS = 0.01  # of a window's requests that may be worse off than alone, where too many miss a limit even so
ALONE_GAP = 1e4  # s between requests that are served alone
DISPERSION, VARIATION = 4.0, 0.15  # of counts over windows, beyond which the load varies: variance/mean, std/mean
BOUND = "lower bound"
HEADROOM = 0.2  # of an autoscaler's target: it sees the load after it has come


# ------------------------------------------------------------------ windows


class WindowSpan(NamedTuple):
    """The requests from ``first`` up to ``last``, which come within ``duration_s`` from ``start_s`` on."""

    start_s: float
    duration_s: float
    first: int
    last: int


def window_width(trace: Trace) -> float:
    """Seconds of a window: the shortest of some round widths in which there are enough requests to judge by."""
    assert trace.arrival_s is not None
    span, count = float(np.ptp(trace.arrival_s)), len(trace)
    for width in WIDTHS:
        if span / width <= MAX_WINDOWS and count * width >= REQUESTS_EACH * span:
            return float(width)
    return float(WIDTHS[-1])


def varies(trace: Trace, width: float) -> bool:
    """Whether requests come so unevenly over time that it is no chance, and matters."""
    if trace.arrival_s is None or float(np.ptp(trace.arrival_s)) < max(LEAST_SPAN, 4 * width):
        return False
    times = trace.arrival_s - trace.arrival_s.min()
    whole = int(times.max() // width)  # the last window may be a short one
    counts = np.bincount((times // width).astype(int))[:whole]
    mean, variance = float(counts.mean()), float(counts.var())
    return mean > 0 and variance > DISPERSION * mean and variance > (VARIATION * mean) ** 2


def windows(trace: Trace, width: float) -> list[WindowSpan]:
    """All windows of a trace that is ordered by time; those without a request, too."""
    assert trace.arrival_s is not None
    times = trace.arrival_s - trace.arrival_s[0]
    end = float(times[-1])
    edges = np.arange(0.0, max(end, 1e-9), width)
    lengths = np.minimum(edges + width, end) - edges
    first = np.searchsorted(times, edges).tolist()
    columns = (edges.tolist(), lengths.tolist(), first, [*first[1:], len(trace)])
    return [WindowSpan(*one) for one in zip(*columns, strict=True)]


class WindowRun(NamedTuple):
    """A simulation of a window on some replicas."""

    good: float  # share of its requests
    e2el: float  # s, mean


class WindowSizer:
    """``WindowSizer(trace, unit, gpus, objective, options).sized(windows(trace, 300.0))``

    ``unit`` are the pools of one replica (of disaggregated plans: the smallest part that has both in proportion) with
    the engines that each has, ``gpus`` those of a unit.
    """

    def __init__(
        self, trace: Trace, unit: Pools, gpus: int, objective: Objective, options: ServingOptions | None = None
    ) -> None:
        self.trace, self.unit, self.gpus, self.objective = trace, unit, gpus, objective
        self.options = options or ServingOptions()
        self.limits = {name: limit * 1e3 for name, limit in objective.slo.items()}
        self.simulations = 0
        self.work = trace.input_tokens + 8.0 * trace.output_tokens  # to guess one window's replicas from another's

    def sized(self, spans: list[WindowSpan], progress: Callable[[int], None] = lambda done: None) -> list[LoadWindow]:
        """The fewest replicas in every window; none without requests."""
        sized: list[LoadWindow] = []
        work_each = 0.0  # of a replica in the windows so far
        for number, span in enumerate(spans):
            work = float(self.work[span.first : span.last].sum())
            guess = max(1, round(work / work_each)) if work_each else 1
            window = self.size(span, guess)
            sized.append(window)
            if window.replicas and window.holds:
                work_each = max(work / window.replicas, 0.5 * work_each)
            progress(number + 1)
        return sized

    def size(self, span: WindowSpan, guess: int = 1) -> LoadWindow:
        """The fewest replicas in one window, from a guess up or down."""
        rows, count = slice(span.first, span.last), span.last - span.first
        if not count:
            return _window(span, self.trace, 0, 0, WindowRun(1.0, 0.0), True)
        share = needed = self.objective.goodput_share
        most = min(max(count, guess), MOST_REPLICAS)  # beyond, a replica has no request at all
        high, runs = guess, {guess: self.run(rows, guess)}
        while runs[high].good < needed and high < most:
            high = min(most, high + max(1, high // 2))
            runs[high] = self.run(rows, high)
            if high > 4 * guess + 4 and needed == share:  # perhaps more replicas do not help at all
                needed = min(needed, self.alone(rows) - HOPELESS)
        high = min((n for n, run in runs.items() if run.good >= needed), default=high)
        low = max((n for n in runs if n < high), default=0)
        while high - low > 1:
            one_less = high == guess and low == 0  # a guess that holds is mostly right
            middle = high - 1 if one_less else (low + high) // 2
            runs[middle] = self.run(rows, middle)
            low, high = (low, middle) if runs[middle].good >= needed else (middle, high)
        return _window(span, self.trace, high, high * self.gpus, runs[high], runs[high].good >= share)

    def run(self, rows: slice, replicas: int) -> WindowRun:
        """Simulate a window on so many replicas, or on some of them with their part of the requests."""
        engines = replicas * self.unit[0][1].replicas  # that requests are dealt out to in turn
        count = rows.stop - rows.start
        simulated = min(replicas, max(1, math.ceil(SIMULATED * replicas / count)))
        dealt_to = np.arange(max(0, rows.start - LEAD_IN * replicas), rows.stop)
        kept = dealt_to[dealt_to % engines < simulated * self.unit[0][1].replicas]
        pools = [(role, pool._replace(replicas=pool.replicas * simulated)) for role, pool in self.unit]
        return self._judged(requests_at(self.trace, kept.tolist()), pools, kept >= rows.start)

    def alone(self, rows: slice) -> float:
        """The share of a window's requests that keep the limits when each has a replica to itself."""
        some = np.unique(np.linspace(rows.start, rows.stop - 1, SIMULATED).astype(int))
        requests = requests_at(self.trace, some.tolist())
        apart = msgspec.structs.replace(requests, arrival_s=np.arange(len(some)) * ALONE_GAP)
        return self._judged(apart, self.unit, np.ones(len(some), bool)).good

    def _judged(self, requests: Trace, pools: Pools, counted: np.ndarray) -> WindowRun:
        self.simulations += 1
        outcome = serve(requests, pools, self.options)
        if not counted.any():  # so few requests that none of them goes to these replicas
            return WindowRun(1.0, 0.0)
        by_metric = {name: values[counted] for name, values in latencies(outcome).items()}
        e2el = by_metric["e2el"][~np.isnan(by_metric["e2el"])]
        good = float(good_requests(by_metric, self.limits).mean())
        return WindowRun(good, float(e2el.mean()) / 1e3 if len(e2el) else 0.0)


def _window(span: WindowSpan, trace: Trace, replicas: int, gpus: int, run: WindowRun, holds: bool) -> LoadWindow:
    rows, count = slice(span.first, span.last), span.last - span.first
    rate = count / span.duration_s if span.duration_s else 0.0
    return LoadWindow(
        start_s=span.start_s,
        duration_s=span.duration_s,
        requests=count,
        request_rate=rate,
        input_len=float(trace.input_tokens[rows].mean()) if count else 0.0,
        output_len=float(trace.output_tokens[rows].mean()) if count else 0.0,
        replicas=replicas,
        gpus=gpus,
        good=run.good,
        holds=holds,
        concurrency=rate * run.e2el,
    )


# ------------------------------------------------------------------ a day


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


def check_day(
    window: float | None, autoscale: str | Mapping[str, Any] | None, traffic: Traffic, objective: Objective
) -> None:
    """Refuse windows and autoscalers without a load that comes over time, or limits that must hold."""
    if autoscale is not None:
        parse_autoscaling(autoscale)
    if window is not None and not (is_number(window) and (window == 0 or 1 <= window <= 1e7)):
        raise BadValue(field="window", given=window, allowed="from 1 to 1e7 seconds, or 0 for no windows")
    if not window and autoscale is None:
        return
    if day_window(traffic, window, True) is None or not objective.slo:
        name = "window" if autoscale is None else "autoscale"
        raise BadValue(
            f"`{name}` is for load over time: it needs a `trace` with arrivals, at its own or a given `request_rate`,"
            " and `goodput` limits"
        )


class DayPlanner:
    """One day under way: ``DayPlanner(simulator, width, price_per_hour).plan(unit, replicas, autoscale, num_gpus)``"""

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

    def plan(self, unit: str, replicas: int, autoscale: str | Mapping[str, Any] | None, num_gpus: int) -> Day:
        """Size every window, then serve the day in each of the ways; ``replicas`` are those of the search's winner.

        Of ``num_gpus`` the autoscaler has no more than there are, unless its ``max`` says so.
        """
        given = parse_autoscaling(autoscale or {})
        sizer = WindowSizer(self.trace, self.unit, self.gpus, self.objective, self.options)
        sized = sizer.sized(windows(self.trace, self.width), lambda done: self.progress("windows", done))
        peak = max(window.replicas for window in sized)
        startup = self.startup if given.startup is None else given.startup
        most = max(1, min(peak, num_gpus // self.gpus)) if given.max is None else given.max
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
            notes=_notes(sized, num_gpus),
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


def _notes(sized: list[LoadWindow], num_gpus: int) -> list[str]:
    """What a reader must know of the windows."""
    notes = []
    missed, most = sum(not window.holds for window in sized), max(window.gpus for window in sized)
    if missed:
        notes.append(
            f"in {missed} of {len(sized)} windows too many requests miss a limit "
            "even on an idle replica; there, replicas are "
            "added only while they help"
        )
    if most > num_gpus:
        short = sum(window.gpus > num_gpus for window in sized)
        notes.append(f"{short} of {len(sized)} windows need more than the {num_gpus} GPUs available: up to {most}")
    return notes
