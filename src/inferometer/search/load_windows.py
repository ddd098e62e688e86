"""Load over time: windows of a trace, and the fewest replicas of a plan that keep the limits in each.

    sizer = WindowSizer(trace, unit, gpus, objective, ServingOptions())
    sizer.sized(windows(trace, 300.0))      # per window: rate, lengths, replicas, and the share that keeps the limits

The requests of a window are simulated as they came, lengths and bursts and all, after those just before it. Round robin
sends every n-th of them to a replica, so of n replicas as many are simulated as have enough requests to judge by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from ..serving.deployment import Pools, ServingOptions, serve
from ..serving.metrics import good_requests, latencies
from ..serving.trace import Trace
from .objective import Objective, requests_at
from .search_result import LoadWindow

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
