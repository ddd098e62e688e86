"""What a deployment carries: runs in a steady state, at any rate and up to the highest that holds.

RequestSupply(trace=trace).requests(4000, 8.0)  # 4,000 requests at 8/s, though the trace has 150; bursts stay bursts
server = SteadyServer(pools, options, RequestSupply(trace=trace), {"ttft": 500.0, "tpot": 50.0}, 0.9)
server.saturation_rate()        # 68.2 requests/s are answered while others always wait
server.max_rate(50.0)           # the highest rate at which nine in ten keep both limits, with its confidence interval

A rate holds if enough requests keep the limits in a steady state, and if it is carried: an open queue is stable below
the throughput of a server that never runs empty (the saturation rule of Baccelli and Foss, 1995). That throughput needs
one short run; whether a queue grows by two percent needs thousands of arrivals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import ceil, exp, gcd, hypot, inf, log, sqrt
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from .deployment import Pools, ServingOptions, serve
from .metrics import latencies
from .outcome import Outcome
from .synthetic import at_rate, own_rate, scale_to_rate, synthetic
from .trace import Trace

OVERLOAD = 0.02  # seconds that a wait grows by in a second of arrivals: limits must show at least such a backlog
MIN_REQUESTS, MAX_REQUESTS = 200, 20_000  # that are counted in a run at least; of all runs at most
POISSON_REQUESTS, GLANCE = 1500, 500  # counted where arrivals are Poisson, which varies more; for a first look
SATURATED_REQUESTS = 1000  # at once; more where more run at a time
SPREAD = 0.2  # of the answers' lengths then, where all have one
DRAWS, SAMPLES = 3, 50  # independent draws of requests behind a highest rate; points of the state over time
STUDENT = {2: 4.30, 11: 2.20}  # quantile of Student's t for 95%, two-sided, by degrees of freedom
CONSECUTIVE, CLEAR, DOUBT = 4, 3.2, 2.0  # parts of a run; standard errors of a clear verdict, and of two runs by chance
FAR = 1.5  # SLO ratio beyond which a longer run cannot say anything else
STRIDE = 0.15  # between the logarithms of the first two rates, at most
NEAR, PRECISION = 0.015, 0.015  # of the highest rate: with one draw, and with all
SLOPES = (0.7, 40.0)  # that a secant may have
TRACE_REQUESTS, STRETCHES = 4000, 5  # of a long trace with arrivals one replica gets so many, in so many pieces
SAMPLE, LONGEST = 2000, 2  # requests for tables; how much longer one may be than all of these
COMMON = 0.1  # of the requests: blocks that so many have are a system prompt, which every repetition has again
_COLUMNS = ("input_tokens", "output_tokens", "priority")


# ------------------------------------------------------------------ requests without end


class RequestSupply(NamedTuple):
    """Requests without end: ``RequestSupply(trace=trace)``, or ``RequestSupply(synthetic_args={"input_len": 512})``"""

    trace: Trace | None = None
    synthetic_args: Mapping[str, Any] = MappingProxyType({})  # keywords of `synthetic`, where there is no trace
    burstiness: float = 1.0  # of arrivals that a trace does not have
    seed: int = 0

    @property
    def lengths_vary(self) -> bool:
        """Whether other seeds draw other lengths."""
        return self.trace is None and any(
            isinstance(self.synthetic_args.get(name), str) for name in ("input_len", "output_len")
        )

    @property
    def has_arrivals(self) -> bool:
        """Whether a trace says when its requests come."""
        return self.trace is not None and own_rate(self.trace) is not None

    def whole_trace(self, parts: int) -> int:
        """Requests of one of ``parts`` equal parts in one pass of a trace with arrivals; 0 where any number will do."""
        if self.trace is None or not self.has_arrivals:
            return 0
        return min(ceil(len(self.trace) / parts), TRACE_REQUESTS)

    def sample(self) -> Trace:
        """Requests that say which lengths there are; the last is longer than others will be, so that tables suffice."""
        trace = self.requests(SAMPLE, 1.0)
        outputs = trace.output_tokens.copy()
        longest = int((trace.input_tokens + outputs).max())
        outputs[-1] = LONGEST * longest if self.lengths_vary else ceil(outputs.max() * (1 + SPREAD)) + 1
        return msgspec.structs.replace(trace, output_tokens=outputs)

    def requests(self, count: int, rate: float, parts: int = 1, draw: int = 0, lead: int = 0) -> Trace:
        """``count`` requests at ``rate`` a second, as one of ``parts`` equal parts gets them from a round-robin router.

        Every n-th arrival of a Poisson process: gaps are gamma distributed with shape n. A trace is thinned as it is,
        and its pass begins after the first ``lead`` requests. Another ``draw`` gives other requests of the same kind.
        """
        if self.trace is None:
            kwargs = {**self.synthetic_args, "burstiness": self.burstiness * parts}
            trace = synthetic(num_prompts=count, request_rate=rate, seed=self.seed + draw, **kwargs)
            return trace if rate == inf else scale_to_rate(trace, rate)  # few requests have another rate by chance
        trace = self._repeated(count, parts, draw, lead)
        if rate == inf:
            return msgspec.structs.replace(trace, arrival_s=np.zeros(count))
        if trace.arrival_s is None:
            return scale_to_rate(at_rate(trace, rate, self.burstiness * parts, self.seed + draw), rate)
        times = (trace.arrival_s - trace.arrival_s[0]) / (rate * parts)
        return msgspec.structs.replace(trace, arrival_s=times)

    def _repeated(self, count: int, parts: int, draw: int, lead: int) -> Trace:
        """Every ``parts``-th request of the trace over and over; arrivals, where it has some, at one a second."""
        trace = self.trace
        assert trace is not None
        order, times = np.arange(len(trace)), None
        if self.has_arrivals and trace.arrival_s is not None:
            order = np.argsort(trace.arrival_s, kind="stable")[stretches(len(trace), parts * TRACE_REQUESTS)]
            gaps = np.diff(trace.arrival_s[order], prepend=trace.arrival_s[order[0]]) * (own_rate(trace) or 1.0)
            if len(order) < len(trace):  # between two stretches is the pause of two requests
                gaps[:: len(order) // STRETCHES] = 1.0
            times = np.cumsum(gaps)
        total = len(order)
        index = (np.arange(count) - lead) * parts + draw * (1 + total // 3)
        turn, place = index // total, index % total
        arrival = times[place] + turn * (times[-1] + 1) if times is not None else None
        rows = order[place]
        columns = {name: column[rows] for name in _COLUMNS if (column := getattr(trace, name)) is not None}
        blocks = None
        if trace.blocks is not None:
            blocks = _repeated_blocks(trace.blocks, rows.tolist(), (turn - turn.min()).tolist())
        return msgspec.structs.replace(
            trace, **columns, arrival_s=arrival, blocks=blocks, after=None, think_s=None, measured={}
        )


def stretches(total: int, most: int) -> np.ndarray:
    """Places in a trace of ``total`` requests: all, or stretches evenly spread, so that busy hours count as they do.

    ``stretches(100, 10)  # [0, 1, 24, 25, …, 98, 99]``
    """
    if total <= most:
        return np.arange(total)
    length = most // STRETCHES
    begins = np.linspace(0, total - length, STRETCHES).astype(int)
    return (begins[:, None] + np.arange(length)).ravel()


def _repeated_blocks(blocks: tuple[np.ndarray, ...], places: list[int], turns: list[int]) -> tuple[np.ndarray, ...]:
    """Ids of blocks of the requests at some places, in some repetition of a trace.

    What many requests have in common is the same in every repetition; all else is new in each, or a repetition would
    find the cache full of its own prompts.
    """
    arrays = {id(ids): ids for ids in blocks}
    holders = Counter(id(ids) for ids in blocks)
    uses: Counter[int] = Counter()
    for key, ids in arrays.items():
        for block in ids.tolist():
            uses[block] += holders[key]
    common = np.array(sorted(block for block, count in uses.items() if count > COMMON * len(blocks)), np.int64)
    step = max(uses, default=0) + 1
    made: dict[tuple[int, int], np.ndarray] = {}
    for place, turn in zip(places, turns, strict=True):
        ids = blocks[place]
        if (id(ids), turn) not in made:
            made[id(ids), turn] = np.where(np.isin(ids, common), ids, ids + turn * step)
    return tuple(made[id(blocks[place]), turn] for place, turn in zip(places, turns, strict=True))


# ------------------------------------------------------------------ runs that are long enough


class RateRun(NamedTuple):
    """What runs at one rate say of it, in a steady state: requests between filling up and running empty."""

    request_rate: float  # requests/s of the whole deployment
    latencies: dict[str, np.ndarray]  # ms, of the counted requests of all draws
    ratio: np.ndarray  # of every counted request, its latency over the limit, of the limit that it is nearest to
    draws: tuple[float, ...]  # of every draw of requests: log of the ratio that the share that counts keeps
    error: float  # standard error of their mean, from CONSECUTIVE parts of every draw
    share: float  # of the requests that must keep every limit
    lasted: float  # s of arrivals of the shortest run
    carried: float = inf  # requests/s that can be carried at most, where the runs are too short to show a backlog

    @property
    def slo_ratio(self) -> float:
        """What the share that counts keeps, over its limit: up to 1 the limits hold."""
        return _at_share(self.ratio, self.share)

    @property
    def good(self) -> float:
        """The share of the requests that keep every limit."""
        return float((self.ratio <= 1).mean()) if len(self.ratio) else 0.0

    @property
    def keeps_up(self) -> bool:
        """Whether requests are answered as fast as they come."""
        return self.request_rate <= self.carried * (1 + 1e-9)

    @property
    def holds(self) -> bool:
        """Whether enough requests keep every limit, and the servers keep up with the arrivals."""
        return self.slo_ratio <= 1 and self.keeps_up

    @property
    def is_clear(self) -> bool:
        """Whether further draws of requests could hardly change the verdict."""
        return not self.keeps_up or len(self.draws) > 1 or abs(log_ratio(self.slo_ratio)) > CLEAR * self.error


class MaxRate(NamedTuple):
    """The highest rate that holds, with what chance makes of it."""

    run: RateRun  # at that rate
    low: float  # requests/s: 95% confidence interval, from independent draws of requests
    high: float


class SteadyServer:
    """A deployment under endless requests: ``SteadyServer(pools, options, supply, {"ttft": 500.0}, 0.9).max_rate(8.0)``

    Round robin sends every n-th request to a replica. So one of n replicas stands for all, and one is simulated; of
    prefill and decode pools, the smallest part that has both in the same proportion.
    """

    def __init__(
        self,
        pools: Pools,
        options: ServingOptions,
        supply: RequestSupply,
        goodput: Mapping[str, float],
        share: float,
        e2el: float = 0.0,
        precision: float = PRECISION,
    ) -> None:
        """``goodput``: limits in ms; ``e2el``: seconds that a request takes, as far as they are known."""
        self.options, self.supply, self.goodput, self.share = options, supply, goodput, share
        self.e2el, self.precision = e2el, precision
        # data-parallel ranks of a mixture step together: a server of them is not cut. On a decode server their loads
        # are alike, since no prompt is computed there, and a step of ranks alike is that of one.
        pools = [(role, pool._replace(alike=role == "decode")) for role, pool in pools]
        servers = [pool.replicas // pool.ranks_per_server for _, pool in pools]
        self.parts = gcd(*servers) if options.router == "round_robin" else 1
        self.pools = [(role, pool._replace(replicas=pool.replicas // self.parts)) for role, pool in pools]
        self.reason = next((pool.reason for _, pool in pools if pool.reason), "")
        self.simulations = 0
        self.seconds_per_run = 0.0  # of the last simulation
        self.tried: dict[float, RateRun] = {}
        self.run_draws: Callable[[SteadyServer, float, list[int], float], list[tuple[RateRun, float]]] = _one_by_one
        self.on_run: Callable[[], None] = lambda: None
        self._single: dict[tuple[float, int], RateRun] = {}
        self._saturated: list[float] = []  # of every draw

    # -------------------------------------------------------------- one rate

    def at(self, rate: float, draws: int = 1) -> RateRun:
        """Runs at a rate of the whole deployment, with so many independent draws of requests."""
        missing = [draw for draw in range(draws) if (rate, draw) not in self._single]
        for draw, (run, e2el) in zip(missing, self.run_draws(self, rate, missing, self.e2el), strict=True):
            self._single[rate, draw] = run
            self.e2el = max(self.e2el, e2el)
        runs = [self._single[rate, draw] for draw in range(draws)]
        run = runs[0]
        if draws > 1:
            run = run._replace(
                latencies={name: np.concatenate([one.latencies[name] for one in runs]) for name in run.latencies},
                ratio=np.concatenate([one.ratio for one in runs]),
                draws=tuple(one.draws[0] for one in runs),
                error=sqrt(sum(one.error**2 for one in runs)) / draws,
                lasted=min(one.lasted for one in runs),
            )
        return self._noted(run)

    def glance(self, rate: float) -> RateRun:
        """A shorter run, to see roughly where a rate stands."""
        if (rate, 0) in self._single:
            return self._noted(self._single[rate, 0])
        least = max(MIN_REQUESTS, rate * self.e2el / self.parts, self.supply.whole_trace(self.parts))
        if POISSON_REQUESTS / self.parts < 1.5 * least:
            return self.at(rate)  # which is hardly longer
        run, e2el = self.run_draw(rate, 0, self.e2el, GLANCE)
        self.e2el = max(self.e2el, e2el)
        return self._noted(run)

    def _noted(self, run: RateRun) -> RateRun:
        if run.slo_ratio <= 1 and not self._shows_backlog(run):
            run = run._replace(carried=self.saturation_rate())
        self.tried[run.request_rate] = run
        self.on_run()
        return run

    def judged(self, rate: float) -> RateRun:
        """A rate with as many requests as its verdict needs: a glance, a run, DRAWS of them."""
        run = self.glance(rate)
        if not run.is_clear:
            run = self.at(rate)
        return run if run.is_clear else self.at(rate, DRAWS)

    def _shows_backlog(self, run: RateRun) -> bool:
        """Whether a queue that grows by OVERLOAD would have broken a limit in so long a run."""
        limits = [limit for name, limit in self.goodput.items() if name in ("ttft", "e2el")]
        return bool(limits) and min(limits) / 1e3 < OVERLOAD * run.lasted

    def run_draw(
        self, rate: float, draw: int, e2el: float, poisson_requests: int = POISSON_REQUESTS
    ) -> tuple[RateRun, float]:
        """One simulation, longer if more requests are in flight than was expected; and how long a request takes."""
        part_rate = rate / self.parts
        while True:
            in_flight = part_rate * e2el
            warm_up = min(ceil(in_flight), MAX_REQUESTS // 4)  # the engine fills up, and runs empty in the end
            run_out = warm_up // 2
            counted = max(MIN_REQUESTS, ceil(poisson_requests / self.parts), warm_up)
            counted = max(counted, min(self.supply.whole_trace(self.parts), MAX_REQUESTS))
            total = warm_up + counted + run_out
            trace = self.supply.requests(total, part_rate, self.parts, draw, warm_up)
            began = perf_counter()
            run = self._summary(serve(trace, self.pools, self.options, SAMPLES), slice(warm_up, total - run_out), rate)
            self.seconds_per_run = perf_counter() - began
            self.simulations += 1
            measured = _mean(run.latencies["e2el"]) / 1e3
            if measured <= 1.3 * e2el or part_rate * measured < 1 or total >= MAX_REQUESTS or run.slo_ratio > FAR:
                return run, e2el
            e2el = 1.1 * measured

    def _summary(self, outcome: Outcome, counted: slice, rate: float) -> RateRun:
        values = {name: column[counted] for name, column in latencies(outcome).items()}
        ratio = np.where(np.isnan(values["e2el"]), inf, 0.0)  # what never ended keeps no limit
        for name, limit in self.goodput.items():
            ratio = np.fmax(ratio, values[name] / limit)  # what a request has not (the TPOT of one token) it keeps
        logs = [log_ratio(_at_share(part, self.share)) for part in np.array_split(ratio, CONSECUTIVE) if len(part)]
        return RateRun(
            request_rate=rate,
            latencies=values,
            ratio=ratio,
            draws=(log_ratio(_at_share(ratio, self.share)),),
            error=float(np.std(logs, ddof=1)) / sqrt(len(logs)) if len(logs) > 1 else inf,
            share=self.share,
            lasted=float(np.ptp(outcome.arrival_s)),
        )

    # -------------------------------------------------------------- the highest rates

    def saturation_rate(self, draws: int = 1) -> float:
        """Requests a second that are answered while others always wait: no higher rate of arrivals can last.

        All requests come at once, and those that end between the first that run and the last that begins are counted.
        """
        while len(self._saturated) < draws:
            draw, running, count = len(self._saturated), 0, SATURATED_REQUESTS
            outcome = self._at_once(count // 2, 0, draw)
            while _most_running(outcome) > running and running < MAX_REQUESTS // 8:
                running = _most_running(outcome)
                count = max(SATURATED_REQUESTS, 4 * running)
                outcome = self._at_once(running + count, running, draw)
            ends = np.sort(outcome.finished_s[outcome.done])[running:]
            last = float(np.nanmax(outcome.scheduled_s)) if len(ends) else 0.0
            counted = int((ends <= last).sum())
            rate = (counted - 1) / float(ends[counted - 1] - ends[0]) if counted > 1 else inf
            self._saturated.append(self.parts * rate)
            if not self.e2el and len(ends):
                self.e2el = float(np.nanmin(outcome.finished_s - outcome.scheduled_s))
        return float(np.mean(self._saturated[:draws]))

    def _at_once(self, count: int, begun: int, draw: int) -> Outcome:
        """So many requests at once, of which the first ``begun`` have a part of their answers behind them.

        Answers of one length are varied: else all would end together for thousands of requests, and prompts and answers
        would take turns, which is a throughput that requests at times of their own never see.
        """
        self.simulations += 1
        trace = self.supply.requests(count, inf, self.parts, draw)
        rng, outputs = np.random.default_rng(draw), trace.output_tokens.astype(float)
        if not np.ptp(outputs):
            outputs *= rng.uniform(1 - SPREAD, 1 + SPREAD, count)
        outputs[:begun] *= rng.permutation((np.arange(begun) + 0.5) / max(begun, 1))
        outputs = np.maximum(np.round(outputs), np.minimum(trace.output_tokens, 1)).astype(np.int64)
        return serve(msgspec.structs.replace(trace, output_tokens=outputs), self.pools, self.options, SAMPLES)

    def max_rate(self, start: float) -> MaxRate | None:
        """The highest rate that holds, within the precision; None if not even a hundredth of ``start`` does.

        Secants of the SLO ratio over the rate, both as logarithms, from ``start`` on with one draw of requests;
        what they lead to is corrected with DRAWS of them.
        """
        rate = self._root(start)
        return self._confirmed(rate) if rate is not None else None

    def _root(self, start: float) -> float | None:
        low, high, rate, least, most = 0.0, inf, start, NEAR, STRIDE
        for _ in range(30):
            run = self.glance(rate)
            ratio, slope = log_ratio(run.slo_ratio), self._slope(rate)
            if run.holds:
                low = rate
            else:
                high = min(high, run.carried if ratio <= 0 else rate)
            near = run.holds and -ratio < NEAR * slope
            if near or (low and high <= low * (1 + NEAR)) or (not low and rate < start / 100):
                break
            if low and high < inf:
                rate = self._between(low, high)
            elif ratio <= 0 and not run.holds:
                rate = high  # what is carried at most
            else:
                step = min(max(abs(ratio) / slope, least), most)
                least, most = 2 * least, min(2 * most, 1.0)  # further each time
                rate *= exp(step if low else -step)
        return low or None

    def _between(self, low: float, high: float) -> float:
        """The secant's root between a rate that holds and one that does not, away from both ends."""
        ends = [self.tried.get(rate) for rate in (low, high)]
        at = 0.5
        if ends[0] is not None and ends[1] is not None and ends[1].slo_ratio > 1:
            below, above = log_ratio(ends[0].slo_ratio), log_ratio(ends[1].slo_ratio)
            at = min(max(-below / (above - below), 0.2), 0.8)
        elif ends[1] is None:
            return high  # what is carried at most was not tried yet
        return float(low * (high / low) ** at)

    def _slope(self, rate: float, *, sure: bool = False) -> float:
        """By how many percent the SLO ratio grows for one of the rate, near it; 1 where a single rate was tried.

        Of the nearest rates that keep the limits and that do not, or of the two nearest; ``sure``: less what is chance.
        """
        nearest = sorted(self.tried.values(), key=lambda one: abs(log(one.request_rate / rate)))
        sides = [next((one for one in nearest if (one.slo_ratio <= 1) is kept), None) for kept in (True, False)]
        first, second = sides if None not in sides else (*nearest[:2], None, None)[:2]
        if first is None or second is None or first.request_rate == second.request_rate:
            return 1.0
        apart = log(first.request_rate / second.request_rate)
        slope = float(np.mean(first.draws) - np.mean(second.draws)) / apart
        if sure:
            slope -= DOUBT * hypot(first.error, second.error) / abs(apart)
        return float(min(max(slope, SLOPES[0]), SLOPES[1]))

    def estimate(self) -> float:
        """The highest rate, roughly, from the rates that were tried: the secant's root."""
        nearest = min(self.tried.values(), key=lambda one: abs(one.draws[0]))
        rate = nearest.request_rate
        return rate * exp(min(max(-float(np.mean(nearest.draws)) / max(self._slope(rate), 1.5), -0.3), 0.3))

    def _confirmed(self, rate: float) -> MaxRate | None:
        low: RateRun | None = None
        high, step = inf, self.precision
        for _ in range(16):
            run = self.at(rate, DRAWS)
            ratio, slope = log_ratio(run.slo_ratio), self._slope(rate, sure=True)
            if run.holds:
                low = run
                if -ratio <= self.precision * slope or rate >= run.carried * (1 - 1e-9):
                    break
            else:
                high = min(high, run.carried if ratio <= 0 else rate)
            if low is not None and high <= low.request_rate * (1 + self.precision):
                break
            if low is not None and high < inf:
                rate = self._between(low.request_rate, high)
            elif ratio <= 0 and not run.holds:
                rate = high
            else:
                rate = min(rate * exp(min(max(abs(ratio) / slope, step), 0.15) * (1 if run.holds else -1)), run.carried)
                step *= 2
        return self._interval(low, self._slope(low.request_rate, sure=True)) if low is not None else None

    def _interval(self, run: RateRun, slope: float) -> MaxRate:
        """Each part of each draw would have its own highest rate: what they scatter by is the interval."""
        if run.request_rate >= run.carried * (1 - 1e-9):
            self.saturation_rate(DRAWS if self.supply.lengths_vary else 1)
            logs, centre = [log(one) for one in self._saturated], run.request_rate
            half = STUDENT[DRAWS - 1] * float(np.std(logs, ddof=1)) / sqrt(len(logs)) if len(logs) > 1 else 0.0
        else:
            centre = run.request_rate * exp(-float(np.mean(run.draws)) / slope)
            half = STUDENT[CONSECUTIVE * DRAWS - 1] * run.error / slope
        return MaxRate(run, min(centre * exp(-half), run.request_rate), max(centre * exp(half), run.request_rate))


def _one_by_one(server: SteadyServer, rate: float, draws: list[int], e2el: float) -> list[tuple[RateRun, float]]:
    """Runs of some draws, in this process."""
    return [server.run_draw(rate, draw, e2el) for draw in draws]


def log_ratio(ratio: float) -> float:
    """The logarithm of an SLO ratio, cut off where it says no more than "far away"."""
    return log(min(max(ratio, 1e-3), 1e3))


def _at_share(ratio: np.ndarray, share: float) -> float:
    """The ratio that so many of the requests keep."""
    if not len(ratio):
        return inf
    place = min(ceil(share * len(ratio) - 1e-9), len(ratio)) - 1
    return float(np.partition(ratio, place)[place])


def _mean(values: np.ndarray) -> float:
    finite = values[~np.isnan(values)]
    return float(finite.mean()) if len(finite) else 0.0


def _most_running(outcome: Outcome) -> int:
    """Requests that were being served at one time at most."""
    begun = ~(np.isnan(outcome.scheduled_s) | np.isnan(outcome.finished_s))
    times = np.concatenate([outcome.scheduled_s[begun], outcome.finished_s[begun]])
    change = np.repeat([1, -1], int(begun.sum()))
    return int(np.cumsum(change[np.lexsort((change, times))]).max(initial=0))
