"""The result of a search, as structs that are its JSON: plans with their metrics, the front, rejections, commands."""

from __future__ import annotations

from math import gcd
from typing import Any

import msgspec

from ..base.result import ComparableResult
from ..inference.report import ExpectedError
from ..specs.structs import Plan
from .launch.processes import Launch
from .space import Layout, precision_label

_SIGNS = {"below": "<", "at least": "≥"}
_OPPOSITE = {"<": ">", "≥": "≤"}


class SimulationResult(msgspec.Struct, kw_only=True, frozen=True):
    """One simulation of a plan. Latencies in ms, of the requests between filling up and running empty."""

    request_rate: float  # requests/s of the whole plan
    request_rate_low: float | None = None  # of a highest rate: its 95% confidence interval over draws of requests
    request_rate_high: float | None = None
    holds: bool  # enough requests keep every limit, and the servers keep up with the arrivals
    good: float  # goodput: share of the requests that keep every limit
    slo_ratio: float | None = None  # what the share that counts keeps, over its limit; None: some never end
    requests: int  # counted requests
    seeds: int = 1  # independent draws of them
    saturation_rate: float | None = None  # requests/s that are answered at most; None: limits break before that
    concurrency: float  # mean requests in flight in the whole plan
    ttft_ms: dict[str, float]  # mean, p50, p90, p99, and "share": the percentile of --goodput-share
    tpot_ms: dict[str, float]
    e2el_ms: dict[str, float]


class PoolSpec(msgspec.Struct, kw_only=True, frozen=True):
    """Identical servers, each on its own GPUs."""

    role: str  # both, prefill, decode
    replicas: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    quantization: str
    kv_cache_dtype: str
    max_num_batched_tokens: int
    max_num_seqs: int
    kv_offloading_size: float = 0.0  # GiB of CPU memory for KV blocks of a replica

    @classmethod
    def of(cls, layout: Layout, plan: Plan, **others: Any) -> PoolSpec:
        """Servers of a layout in a plan's formats and, unless given, with its limits of a step."""
        limits = {"max_num_batched_tokens": plan.max_num_batched_tokens, "max_num_seqs": plan.max_num_seqs}
        return cls(
            tensor_parallel_size=layout.tp,
            pipeline_parallel_size=layout.pp,
            data_parallel_size=layout.dp,
            enable_expert_parallel=layout.ep,
            quantization=plan.quantization,
            kv_cache_dtype=plan.kv_cache_dtype,
            **{**limits, **others},
        )

    @property
    def precision(self) -> str:
        """``fp8, KV fp8``; with KV blocks in CPU memory ``fp8, KV fp8 + 64 GiB``"""
        return precision_label(self.quantization, self.kv_cache_dtype, self.kv_offloading_size)

    @property
    def gpus(self) -> int:
        """GPUs of one of the servers."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def layout(self) -> str:
        """``tp4·pp2``"""
        sizes = (self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size)
        return str(Layout(*sizes, self.enable_expert_parallel))


class PlanMetrics(msgspec.Struct, kw_only=True, frozen=True):
    """Throughput, latency and cost of a plan at one request rate."""

    request_rate: float
    output_throughput: float  # tokens/s
    output_throughput_per_gpu: float  # of all GPUs that are given; of those in use where a rate is given
    output_throughput_per_user: float
    ttft_ms: float  # means
    tpot_ms: float
    e2el_ms: float
    cost_per_million_output_tokens: float | None
    joules_per_output_token: float | None


class Candidate(msgspec.Struct, kw_only=True):
    """A plan in the result: its pools, its estimated metrics (``priced``), and its simulation if it had one."""

    gpu: str
    mode: str  # aggregated, disaggregated
    pools: list[PoolSpec]
    gpus: int
    idle_gpus: int
    priced: PlanMetrics  # estimated from steady-state means
    simulated: PlanMetrics | None = None
    trial: SimulationResult | None = None
    simulations: int = 0
    verdict: str = ""  # wins, ties (within the prediction's error), holds (the limits), beaten, fails, misses
    bound: str = ""  # what the simulated rate is, if not its highest: "at least", or "below" one that it failed
    missed: dict[str, float | None] = {}  # limits that it misses: ms that the share that counts takes; None: never ends
    reason: str = ""  # why it is not the winner, where that takes a sentence
    commands: dict[str, list[str]] = {}  # of a plan that holds: lines of a shell by engine
    label: str = ""  # 8 × tp2 fp8, KV fp8; of two pools 2 × tp1 → 3 × tp2 fp8, KV fp8

    def __post_init__(self) -> None:
        precision = self.pools[0].precision
        self.label = f"{' → '.join(f'{pool.replicas} × {pool.layout}' for pool in self.pools)} {precision}"

    @property
    def rate_sign(self) -> str:
        """What stands before a simulated rate that is not the highest: ``<`` of a plan that fails at it."""
        return _SIGNS.get(self.bound, "")

    @property
    def cost_sign(self) -> str:
        """The same before cost and energy of a token, which fall with the rate."""
        return _OPPOSITE.get(self.rate_sign, "")

    @property
    def unit_label(self) -> str:
        """The smallest part of the plan that can stand alone: ``tp2 fp8, KV fp8``, ``2 × tp1 → 1 × tp2 fp8, KV fp8``"""
        parts = gcd(*(pool.replicas for pool in self.pools))
        precision = self.pools[0].precision
        if len(self.pools) == 1:
            return f"{self.pools[0].layout} {precision}"
        return f"{' → '.join(f'{pool.replicas // parts} × {pool.layout}' for pool in self.pools)} {precision}"


class Relaxation(msgspec.Struct, kw_only=True, frozen=True):
    """One change to the request with which another search has a winner."""

    change: str  # as flags of the command line: --num-gpus 16
    plan: str
    simulated: bool  # whether the simulator has confirmed it


# ------------------------------------------------------------------ load over time


class LoadWindow(msgspec.Struct, kw_only=True, frozen=True):
    """A window of a trace, and what carries it."""

    start_s: float  # since the trace's first request
    duration_s: float  # the last window ends with the trace
    requests: int
    request_rate: float  # requests/s
    input_len: float  # means, tokens
    output_len: float
    replicas: int  # the fewest that keep the limits
    gpus: int
    good: float  # share of the simulated requests that keep all limits then
    holds: bool  # False: some of its requests miss a limit even alone, and more replicas do not help
    concurrency: float  # mean requests in flight


class PolicyResult(msgspec.Struct, kw_only=True):
    """A way to run the replicas over the day, and what it comes to."""

    name: str
    policy: str  # static, hpa, schedule
    gpu_hours: float
    cost: float | None  # USD; None where the GPU's price is not known
    good: float | None  # share of the day's requests that keep all limits; None: not simulated
    window_good: list[float] | None  # the same of every window
    p90_ttft_ms: float | None
    peak_replicas: int
    mean_replicas: float
    times_s: list[float]  # from when on …
    replicas: list[int]  # … so many replicas serve


class Day(msgspec.Struct, kw_only=True):
    """Load over time for the winning kind of replica."""

    window_s: float
    span_s: float
    requests: int
    unit: str  # what a replica is: tp2 fp8
    gpus_per_replica: int
    price_per_hour: float | None  # USD of one GPU
    windows: list[LoadWindow]
    startup_s: float  # of a replica
    target: float | None  # requests, running and waiting, of a replica that the autoscaler aims at
    max_replicas: int  # of the autoscaler
    policies: list[PolicyResult]
    simulations: int  # of windows
    notes: list[str]

    @property
    def peak(self) -> LoadWindow:
        """The first of the windows that need the most."""
        return max(self.windows, key=lambda window: window.replicas)

    @property
    def mean_replicas(self) -> float:
        """What the windows need, over time."""
        return sum(one.replicas * one.duration_s for one in self.windows) / (self.span_s or 1.0)


# ------------------------------------------------------------------ the result


class Search(ComparableResult, msgspec.Struct, kw_only=True, dict=True):
    """The result of a search."""

    schema: str = "inferometer.search/1"
    model: str
    engine: str
    engine_version: str = ""
    num_gpus: int
    objective: str
    goodput: dict[str, float]  # limits in ms
    goodput_share: float
    workload: dict[str, Any]
    feasible: bool
    reason: str
    winner: Candidate | None
    why: list[str]  # sentences
    margin: dict[str, float]  # of the winner: to each limit, to the runner-up, and the prediction's error; shares
    plans: list[Candidate]  # simulated: the winner, those that hold, those that are beaten
    rejected: list[Candidate]  # the plans with the highest throughput among those that are not possible
    rejections: dict[str, int]  # reason -> plans
    front: list[dict[str, Any]]
    space: dict[str, Any]
    counts: dict[str, int]
    commands: dict[str, list[str]]  # lines of a shell by engine
    launches: dict[str, Launch] = {}  # the same as processes
    relaxations: list[Relaxation]
    seconds: dict[str, float]
    origins: dict[str, float] = {}  # shares of the winner's decode step that were measured, fitted, assumed
    expected_error: dict[str, ExpectedError] = {}  # of the winner's ttft, tpot, e2el and output_throughput
    warnings: list[str]
    day: Day | None = None  # load over time, where a trace's load varies or an autoscaler was given

    def __repr__(self) -> str:
        where = f"{self.model[:60]} on {self.num_gpus} × {' or '.join(self.space['gpu'])[:40]}"
        if self.winner is None:
            return f"<Search {where}: no plan is possible>"
        metrics = self.winner.simulated or self.winner.priced
        return (
            f"<Search {where}: {self.winner.label}, {metrics.request_rate:,.4g} requests/s, "
            f"{metrics.output_throughput_per_gpu:,.0f} output tokens/s per GPU>"
        )
