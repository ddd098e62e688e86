"""The highest request rate at which the goodput limits hold.

capacity = find_capacity("llama-3.1-8b", gpu="h200", trace=trace, goodput={"ttft": 500, "tpot": 50})
capacity.request_rate           # 37.2 requests a second: 90% of them keep both limits
capacity.request_rate_low       # 36.8: with other requests of the same kind it might be this

The requests go on for as long as a steady state takes, so how many the trace has does not matter; `search` judges its
plans by the same runs (`steady_run`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..base.errors import BadValue, UnknownName, abbreviate, check_positive, is_number
from ..base.files import noted_files
from ..base.parallel_map import TaskPool, check_backend, worker_pool
from ..base.result import ComparableResult, keep, kept
from ..base.units import percent
from ..specs.arguments import arguments, check_names, signature
from ..specs.command_args import ServedPlanArgs, ServingArgs, TrafficArgs
from .deployment import ServingOptions
from .metrics import GOODPUT_METRICS, metrics, parse_goodput
from .outcome import Interrupted
from .simulate import build_deployment, plain_options, run_header, simulate
from .steady_run import PRECISION, RateRun, RequestSupply, SteadyServer
from .trace import Trace
from .trace_formats import BLOCK
from .traffic import LoadedTraffic, load_traffic

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import CapacityKwargs

AGAIN = 2000  # requests at the highest rate, or those of a minute, for the result's latencies
WORTH_WORKERS = 3.0  # s of simulations: starting processes takes about half a second each
BEGIN = 0.8  # of what is answered at most: the first rate that is tried
_SERVING = frozenset(ServingOptions.__struct_fields__)
_OF_SERVING = (_SERVING | {*arguments(ServingArgs), "pools", "async_scheduling"}) - {*arguments(ServedPlanArgs)}


class TriedRate(msgspec.Struct, kw_only=True):
    """One rate, and how requests fared at it."""

    request_rate: float
    good: float  # share of the requests that kept every limit
    holds: bool
    seeds: int = 1  # independent draws of requests


class Capacity(ComparableResult, msgspec.Struct, kw_only=True, dict=True):
    """The highest rate that holds, and all that were tried, in order of the rate."""

    request_rate: float  # requests a second; 0 if not even single requests keep the limits
    request_rate_low: float = 0.0  # its 95% confidence interval, over independent draws of requests
    request_rate_high: float = 0.0
    seeds: int = 0  # draws
    goodput: dict[str, float]  # limits in ms
    share: float  # of the requests that must keep them
    highest: float  # requests a second that are answered while others always wait: no rate above it can last
    tried: list[TriedRate]

    def __repr__(self) -> str:
        limits = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in self.goodput.items())
        return f"<Capacity {self.request_rate:,.4g} requests/s: {percent(self.share)} of the requests keep {limits}>"

    def summary(self) -> dict[str, Any]:
        """The capacity with labels, and latencies at the highest rate: ``capacity.summary()["p99_ttft_ms"]``"""
        summarize = kept(self, "summarize")
        if summarize is None:
            raise BadValue("this capacity has no plan: `summary` needs the result of `find_capacity`")
        summary: dict[str, Any] = summarize(self)
        return summary


@signature(ServingArgs, TrafficArgs)
def find_capacity(
    model: str,
    gpu: str = "h100-sxm",
    *,
    trace: Trace | str | PathLike[str] | None = None,
    goodput: str | Iterable[str] | Mapping[str, float] = (),
    share: float = 0.9,
    precision: float = PRECISION,
    backend: str = "processes",
    jobs: int | None = None,
    address: str | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    **kwargs: Unpack[CapacityKwargs],
) -> Capacity:
    """The highest rate of a trace's requests, or of synthetic ones, at which a ``share`` of them meets all limits.

    ``find_capacity("llama-3.1-8b", gpu="h200", input_len=512, output_len=64, goodput="ttft:500,tpot:50").request_rate``

    The requests are repeated until a steady state is reached. Arrivals are stretched to each rate, so that bursts stay
    bursts; a trace without any gets Poisson arrivals. Independent runs go to ``jobs`` workers, which
    affects only the run time: processes, or a Dask or Ray cluster at an ``address``. Further keywords are those of
    `simulate`.
    """
    options: dict[str, Any] = {**kwargs, "trace": trace, "seed": seed}
    check_names(ServingArgs, options, *arguments(TrafficArgs), *_OF_SERVING, "goodput", "share")
    scheduling = {name: options.pop(name) for name in list(options) if name in _OF_SERVING}
    question = CapacityQuestion.of(model, gpu, parse_goodput(goodput), share, precision, scheduling, options)
    with DrawWorkers(backend, jobs, address) as workers:
        capacity = _find(question.case, progress, workers)
    if workers.lost:
        warnings.warn(workers.lost, stacklevel=2)
    return keep(capacity, summarize=question.summarize, settings=question.settings)


class CapacityCase(NamedTuple):
    """A deployment and its requests, as plain data that can go to another process."""

    model: str
    gpu: str
    supply: RequestSupply
    goodput: dict[str, float]
    share: float
    precision: float
    options: dict[str, Any]  # keywords of `simulate`

    def server(self) -> SteadyServer:
        """The deployment, ready to be tried at any rate."""
        given = dict(self.options)
        serving = {name: given.pop(name) for name in list(given) if name in _SERVING}
        options = ServingOptions(**{**serving, "scheduler": serving.get("scheduler") or ""})
        pools, options = build_deployment(self.model, self.gpu, self.supply.sample(), options, **given)
        return SteadyServer(pools, options, self.supply, self.goodput, self.share, precision=self.precision)


def _find(
    case: CapacityCase,
    progress: Callable[[int, int], None] | None,
    workers: DrawWorkers | None = None,
) -> Capacity:
    limits = {name: float(limit) for name, limit in case.goodput.items()}
    _check(limits, case.share, case.precision)
    capacity = Capacity(request_rate=0.0, goodput=limits, share=case.share, highest=0.0, tried=[])
    case = case._replace(goodput=limits)
    with noted_files() as files:
        server = case.server()
    if server.reason:
        return capacity
    if workers is not None:
        server.run_draws = workers.runner(case, files)

    def report() -> None:
        capacity.tried = [
            TriedRate(request_rate=run.request_rate, good=run.good, holds=run.holds, seeds=len(run.draws))
            for _, run in sorted(server.tried.items())
        ]
        if progress is not None:
            progress(len(capacity.tried), 0)

    server.on_run = report
    try:
        capacity.highest = server.saturation_rate()
        best = server.max_rate(BEGIN * capacity.highest) if capacity.highest else None
    except KeyboardInterrupt:
        capacity.request_rate = max((one.request_rate for one in capacity.tried if one.holds), default=0.0)
        raise Interrupted(capacity) from None
    report()
    if best is not None:
        capacity.request_rate, capacity.seeds = best.run.request_rate, len(best.run.draws)
        capacity.request_rate_low, capacity.request_rate_high = best.low, best.high
    return capacity


RunDraws = Callable[[SteadyServer, float, list[int], float], list[tuple[RateRun, float]]]


class DrawWorkers:
    """Where further draws of requests run: a cluster is reached at once, processes begin when they are worth it.

    ``with DrawWorkers("dask", None, "tcp://scheduler:8786") as workers: …``
    """

    def __init__(self, backend: str = "processes", jobs: int | None = None, address: str | None = None) -> None:
        self.backend, self.jobs, self.address = backend, jobs, address
        self.stack = ExitStack()
        self.pool: TaskPool | None = None

    def __enter__(self) -> DrawWorkers:
        check_backend(self.backend, self.jobs, self.address)
        if self.backend != "processes":
            self.begin()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.stack.close()

    @property
    def lost(self) -> str:
        """How a cluster went away, as a sentence; what was left ran here."""
        return self.pool.lost if self.pool is not None else ""

    def begin(self) -> TaskPool:
        """The workers, begun if they are not there yet."""
        if self.pool is None:
            self.pool = self.stack.enter_context(worker_pool(self.backend, self.jobs, self.address))
        return self.pool

    def runner(self, case: CapacityCase, files: Mapping[str, Path]) -> RunDraws:
        """A function that runs some draws, here or on the workers: they are the same."""

        def run_draws(server: SteadyServer, rate: float, draws: list[int], e2el: float) -> list[tuple[RateRun, float]]:
            is_small = self.jobs == 1 or len(draws) * server.seconds_per_run < WORTH_WORKERS
            if len(draws) < 2 or (self.backend == "processes" and is_small):
                return [server.run_draw(rate, draw, e2el) for draw in draws]
            pool = self.begin()
            pool.carry(files)
            return pool.run(_run_draw, [(case, rate, draw, e2el) for draw in draws])

        return run_draws


def _run_draw(work: tuple[CapacityCase, float, int, float]) -> tuple[RateRun, float]:
    """One run in a worker."""
    case, rate, draw, e2el = work
    return case.server().run_draw(rate, draw, e2el)


def _check_trace(trace: Trace, options: Mapping[str, Any]) -> None:
    if options.get("autoscale") is not None:
        raise BadValue("`find_capacity` needs a fixed number of replicas: leave out `autoscale`")
    if len(trace) < 2:
        raise BadValue(f"`find_capacity` needs at least two requests, not {len(trace)}")
    if options.get("max_concurrency") is not None or (trace.after is not None and (trace.after >= 0).any()):
        raise BadValue(
            "`find_capacity` needs independent arrivals, not requests that wait for others "
            "(`max_concurrency`, the turns of a conversation)"
        )


def _check(limits: dict[str, float], share: Any, precision: Any) -> None:
    for name, limit in limits.items():
        if name not in GOODPUT_METRICS:
            raise UnknownName("`goodput` metric", name, GOODPUT_METRICS)
        check_positive(f"`goodput` {name}", limit)
    if not limits:
        raise BadValue("`find_capacity` needs latency limits: `goodput` ttft:500,tpot:50")
    if not is_number(share) or not 0 < share <= 1:
        raise BadValue(
            f"the share of requests that must meet the limits is above 0 and at most 1, not {abbreviate(share)}"
        )
    check_positive("precision", precision, 1.0)


class CapacityQuestion(NamedTuple):
    """A case with its requests and labels: ``question.summarize(capacity)["p99_ttft_ms"]``"""

    case: CapacityCase
    traffic: LoadedTraffic
    scheduler_options: dict[str, Any]
    plan_options: dict[str, Any]

    @classmethod
    def of(
        cls,
        model: str,
        gpu: str,
        goodput: dict[str, float],
        share: float,
        precision: float,
        scheduler_options: dict[str, Any],
        options: dict[str, Any],
    ) -> CapacityQuestion:
        """The requests and the plan that some keywords ask for."""
        if not goodput:
            raise BadValue("`find_capacity` needs latency limits: `goodput` ttft:500,tpot:50")
        if options.get("request_rate") is not None:
            raise BadValue("`find_capacity` finds the rate: leave out `request_rate`")
        plan_options = dict(options)
        seed = plan_options.get("seed") or 0
        supply = _supply(plan_options)
        traffic = load_traffic(plan_options, None)
        if supply is not None or traffic.trace.arrival_s is None:
            traffic = traffic._replace(schedule="at the highest rate")
        supply = supply or RequestSupply(traffic.trace, {}, seed=seed)  # a dict: it goes to other processes
        _check_trace(traffic.trace, scheduler_options)
        given = {**scheduler_options, **plan_options}
        case = CapacityCase(model, gpu, supply, goodput, share, precision, given)
        return cls(case, traffic, scheduler_options, plan_options)

    def header(self) -> dict[str, Any]:
        """The labels of the run, and its warnings; a bad value is an error here."""
        trace, case = self.traffic.trace, self.case
        options = self.scheduler_options
        header = run_header(case.model, case.gpu, self.plan_options, self.traffic.label, len(trace), options)
        return {"schema": "inferometer.capacity/1", **header, "warnings": [*header["warnings"], *trace.notes]}

    def settings(self) -> dict[str, Any]:
        """Its arguments by name, to be compared with those of another capacity."""
        case = self.case
        named = {"model": case.model, "gpu": case.gpu, "requests": self.traffic.lengths, "share": case.share}
        return named | plain_options({**case.options, "goodput": case.goodput})

    def summarize(self, capacity: Capacity, header: dict[str, Any] | None = None) -> dict[str, Any]:
        """The keys of ``simulate --find-capacity --json``: the requests are served once more at the highest rate."""
        labels = self.header() if header is None else header
        result = {**labels, **msgspec.to_builtins(capacity), "interrupted": False}
        if not capacity.request_rate:
            return {**result, "completed": 0}
        case = self.case
        count = max(len(self.traffic.trace), min(AGAIN, round(60 * capacity.request_rate)))
        again = case.supply.requests(count, capacity.request_rate)
        return {**result, **metrics(simulate(case.model, case.gpu, trace=again, **case.options), case.goodput)}


def capacity_and_summarize(
    model: str,
    gpu: str,
    goodput: dict[str, float],
    search_options: dict[str, Any],
    scheduler_options: dict[str, Any],
    plan_options: dict[str, Any],
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Find the highest rate that holds, and serve the requests once more at it; Ctrl-C leaves the rates tried by then.

    ``search_options`` are keywords of `find_capacity`; ``plan_options`` also say which requests there are. Gives the
    keys of ``simulate --find-capacity --json``.
    """
    judged_by = dict(search_options)
    where = {name: judged_by.pop(name) for name in ("backend", "jobs", "address") if name in judged_by}
    share, precision = judged_by.get("share", 0.9), judged_by.get("precision", PRECISION)
    question = CapacityQuestion.of(model, gpu, goodput, share, precision, scheduler_options, plan_options)
    header = question.header()
    with DrawWorkers(**where) as workers:
        try:
            capacity = _find(question.case, lambda done, _: progress(done), workers)
        except Interrupted as stop:
            return {**header, **msgspec.to_builtins(stop.result), "interrupted": True}
        header["warnings"] += [workers.lost] if workers.lost else []
        return question.summarize(capacity, header)


def _supply(plan_options: dict[str, Any]) -> RequestSupply | None:
    """Synthetic requests of the kind that some keywords ask for; None where they are those of a trace.

    Those keywords stay where they are, with arrivals for `load_traffic`.
    """
    if plan_options.get("trace") is not None:
        return None
    plan_options["request_rate"] = 1.0
    lengths = {"input_len": 1024, "output_len": 128, "prefix_len": 0}
    given = {name: plan_options.get(name) for name in lengths}
    args = {name: lengths[name] if value is None else value for name, value in given.items()}
    args["block_tokens"] = plan_options.get("block_size") or BLOCK
    return RequestSupply(
        synthetic_args=args, burstiness=plan_options.get("burstiness", 1.0), seed=plan_options.get("seed", 0)
    )
