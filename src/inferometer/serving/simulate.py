"""A trace, served: ``simulate("llama-3.1-8b", gpu="h200", trace=trace)`` gives an `Outcome`, request by request.

result, outcome = simulate_and_summarize("llama-3.1-8b", "h200", traffic, {"ttft": 500.0}, {}, {})
result["p99_ttft_ms"], outcome.finished_s       # the keys of ``vllm bench serve``, and the run itself
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, UnknownName, abbreviate, check_fraction, check_int
from ..base.result import keep
from ..costs.binding import BoundPlan
from ..inference.analyze import engine_info
from ..inference.expected_error import expected_errors
from ..inference.request import Request, build_request
from ..specs.arguments import arguments, check_names, signature
from ..specs.catalog import engine, hardware
from ..specs.command_args import ServingArgs, SessionArgs, TrafficArgs
from ..specs.engine_rules import version_number
from ..specs.plan_args import PlanArgs
from .autoscaling import AutoscalingOptions, parse_autoscaling, replica_use
from .deployment import Pools, ServingOptions, serve
from .metrics import metrics, parse_goodput
from .outcome import Outcome
from .replica_pool import ReplicaPool, build_pool
from .request_table import Rejection, RejectionKind
from .router import ROUTERS
from .run_warnings import with_run_warnings
from .schedulers import SCHEDULERS
from .session_metrics import session_metrics
from .trace import Trace
from .traffic import LoadedTraffic, load_traffic

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import SimulatedKwargs

POLICIES = ("fcfs", "priority")
STOPS = ("length", "token")
SCHEDULE_INTERVAL_SINCE = (0, 24)  # vLLM v0.24.0 vllm/config/scheduler.py: prefill_schedule_interval
ROLES = ("both", "prefill", "decode")
_PLAN_KEYWORDS = frozenset(arguments(PlanArgs)) | {"gpu"}


@signature(ServingArgs, TrafficArgs, SessionArgs)
def simulate(
    model: str,
    gpu: str = "h100-sxm",
    *,
    trace: Trace | str | PathLike[str] | None = None,
    goodput: str | Iterable[str] | Mapping[str, float] | None = None,
    scheduler: str | None = None,
    policy: str = "fcfs",
    max_concurrency: int | None = None,
    concurrent_sessions: int | None = None,
    router: str = "round_robin",
    prefill_replicas: int | None = None,
    decode_replicas: int | None = None,
    pools: Sequence[Mapping[str, Any]] | None = None,
    enable_prefix_caching: bool | None = None,
    num_gpu_blocks_override: int | None = None,
    long_prefill_token_threshold: int = 0,
    async_scheduling: bool | None = None,
    prefill_schedule_interval: int = 1,
    prefill_max_requests: int | None = None,
    scheduler_recv_interval: int = 1,
    batch_wait_timeout_iters: int = 0,
    batch_wait_max_tokens_ratio: float = 0.0,
    attention_dp_timeout_iters: int = 0,
    attention_dp_batching_wait_iters: int = 0,
    api_server_count: int = 1,
    stops: str = "length",
    fast_forward: bool = True,
    autoscale: str | Mapping[str, Any] | AutoscalingOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
    **kwargs: Unpack[SimulatedKwargs],
) -> Outcome:
    """Serve requests on a model, a machine and an engine: those of a trace, or synthetic ones.

    ``simulate("llama-3.1-8b", gpu="h200", trace="requests.csv", goodput="ttft:500,tpot:50")``
    ``simulate("llama-3.1-8b", gpu="h200", request_rate=8, num_prompts=200, input_len=512, output_len=128)``

    Further keywords are those of `analyze`. ``data_parallel_size`` replicas share the requests by the ``router``;
    those of an MoE model step together. With ``prefill_replicas`` and ``decode_replicas`` prefill and decode are
    disaggregated. ``pools`` names replicas that differ:
    ``[{"gpu": "h200", "replicas": 2}, {"gpu": "a100-sxm-80gb", "role": "decode"}]``, with keywords of a plan.
    ``stops``: outputs end at their ``length``, which an engine knows, or with a stop ``token``.
    ``autoscale="target=24,startup=90,max=8"``: the number of replicas follows the load; `Outcome.lives` has them.
    """
    given = locals()
    return _simulate(given.pop("model"), given.pop("gpu"), given.pop("kwargs"), given)


def _simulate(model: str, gpu: str, keywords: dict[str, Any], given: dict[str, Any]) -> Outcome:
    """Serve requests: ``given`` are the arguments of `simulate` by name, ``keywords`` those of traffic and plan."""
    check_names(ServingArgs, keywords, *arguments(PlanArgs), *arguments(TrafficArgs), *arguments(SessionArgs))
    plan_options = {**keywords, "trace": given["trace"]}
    traffic = load_traffic(plan_options, given["max_concurrency"], given["concurrent_sessions"])
    goals, autoscale, trace = parse_goodput(given["goodput"] or ()), given["autoscale"], traffic.trace
    given |= {
        "max_concurrency": traffic.max_concurrency,
        "autoscale": None if autoscale is None else parse_autoscaling(autoscale),
    }
    served = {**given, "scheduler": "" if given["scheduler"] is None else given["scheduler"]}
    options = ServingOptions(**{name: served[name] for name in ServingOptions.__struct_fields__ if name in served})
    layout = {name: given[name] for name in ("prefill_replicas", "decode_replicas", "pools")}
    engine_options = {name: given[name] for name in ("num_gpu_blocks_override", "async_scheduling")}
    built, options = build_deployment(model, gpu, trace, options, **layout, **engine_options, **plan_options)
    outcome = with_run_warnings(serve(trace, built, options), trace, built, options)
    setup = RunSetup(model, gpu, traffic, goals, given, plan_options)
    return keep(outcome, summarize=setup.summarize, settings=setup.settings)


def build_deployment(
    model: str,
    gpu: str,
    trace: Trace,
    options: ServingOptions,
    *,
    prefill_replicas: int | None = None,
    decode_replicas: int | None = None,
    pools: Sequence[Mapping[str, Any]] | None = None,
    num_gpu_blocks_override: int | None = None,
    async_scheduling: bool | None = None,
    **kwargs: Any,
) -> tuple[Pools, ServingOptions]:
    """The pools that serve requests like those of a trace, and their options: an empty scheduler is the engine's own.

    ``serve(trace, *build_deployment("llama-3.1-8b", "h200", trace, ServingOptions(scheduler="")))``
    """
    _check_options(options, num_gpu_blocks_override)
    each = _pool_options(gpu, {"frontend": "http", **kwargs}, pools, prefill_replicas, decode_replicas)
    built = [_build_pool(model, trace, pool, async_scheduling, num_gpu_blocks_override) for pool in each]
    plans = [pool.bound_plan for _, pool in built]
    options = msgspec.structs.replace(options, scheduler=options.scheduler or plans[0].engine.scheduler)
    _check_against_plans(options, plans)
    return built, options


def _build_pool(
    model: str, trace: Trace, pool: dict[str, Any], async_scheduling: bool | None, num_gpu_blocks: int | None
) -> tuple[str, ReplicaPool]:
    """The replicas that a pool's keywords describe, with their role."""
    role, count, is_async = (pool.pop(word) for word in ("role", "replicas", "async_scheduling"))
    request = _scheduled(build_request(model, **pool), async_scheduling if is_async is None else is_async)
    return role, build_pool(request, count * request.plan.data_parallel_size, trace, num_gpu_blocks)


def _scheduled(request: Request, async_scheduling: bool | None) -> Request:
    """The request with this asynchronous scheduling: steps cost more where planning does not hide behind them."""
    if async_scheduling is None:
        return request
    return request._replace(engine=msgspec.structs.replace(request.engine, async_scheduling=async_scheduling))


def _check_options(options: ServingOptions, num_gpu_blocks: int | None) -> None:
    """Refuse what no engine takes."""
    for what, given, allowed in (
        ("`scheduler`", "vllm" if options.scheduler in (None, "") else options.scheduler, SCHEDULERS),
        ("`policy`", options.policy, POLICIES),
        ("`router`", options.router, ROUTERS),
        ("stops", options.stops, STOPS),
    ):
        if not isinstance(given, str) or given not in allowed:
            raise UnknownName(what, given, allowed)
    if options.max_concurrency is not None:
        check_int("max_concurrency", options.max_concurrency)
    if options.concurrent_sessions is not None:
        check_int("concurrent_sessions", options.concurrent_sessions)
    if num_gpu_blocks is not None:
        check_int("num_gpu_blocks_override", num_gpu_blocks)
    check_int("long_prefill_token_threshold", options.long_prefill_token_threshold, least=0)
    check_int("scheduler_recv_interval", options.scheduler_recv_interval)
    check_int("prefill_schedule_interval", options.prefill_schedule_interval)
    if options.prefill_max_requests is not None:
        check_int("prefill_max_requests", options.prefill_max_requests)
    check_int("api_server_count", options.api_server_count, most=10**5)
    check_int("batch_wait_timeout_iters", options.batch_wait_timeout_iters, least=0)
    check_fraction("batch_wait_max_tokens_ratio", options.batch_wait_max_tokens_ratio, "0 and 1")
    check_int("attention_dp_timeout_iters", options.attention_dp_timeout_iters, least=0)
    check_int("attention_dp_batching_wait_iters", options.attention_dp_batching_wait_iters, least=0)
    if options.batch_wait_timeout_iters and not options.batch_wait_max_tokens_ratio:
        raise BadValue(
            "`batch_wait_timeout_iters` holds prompts back up to a share of a step's tokens: give "
            "`batch_wait_max_tokens_ratio`, too"
        )


def _check_against_plans(options: ServingOptions, plans: list[BoundPlan]) -> None:
    """Refuse options that have no meaning with the scheduler or the plans that were chosen."""
    for name in ("batch_wait_timeout_iters", "attention_dp_timeout_iters", "attention_dp_batching_wait_iters"):
        if getattr(options, name) and options.scheduler != "trtllm":
            raise BadValue(f"`{name}` applies to the scheduler trtllm, not to {options.scheduler}")
    if options.attention_dp_batching_wait_iters and not options.attention_dp_timeout_iters:
        raise BadValue(
            "`attention_dp_batching_wait_iters` are steps after every rank has a prompt: give "
            "`attention_dp_timeout_iters`, the steps that ranks wait for that, too"
        )
    if options.prefill_max_requests is not None and options.scheduler != "prefill_first":
        raise BadValue(
            f"`prefill_max_requests` applies to the scheduler prefill_first (SGLang), not to {options.scheduler}"
        )
    if options.prefill_schedule_interval > 1:
        _check_schedule_interval(options, plans[0])
    pipelined = any(plan.plan.pipeline_parallel_size > 1 for plan in plans)
    for name in ("scheduler_recv_interval", "prefill_schedule_interval"):
        if getattr(options, name) > 1 and pipelined:
            raise BadValue(
                f"`{name}` counts the steps of one batch: it does not apply with `pipeline_parallel_size` above 1"
            )


def _check_schedule_interval(options: ServingOptions, bound_plan: BoundPlan) -> None:
    """vLLM obeys `prefill_schedule_interval` where data-parallel ranks of a mixture step together, and since 0.24."""
    engine = bound_plan.engine
    has_experts = any("num_experts" in block.dims for block in bound_plan.text)
    if options.scheduler != "vllm" or engine.name != "vllm":
        label = engine.label or engine.name
        raise BadValue(
            f"`prefill_schedule_interval` applies to vLLM, not to {label} with the scheduler {options.scheduler}"
        )
    if version_number(engine.version) < SCHEDULE_INTERVAL_SINCE:
        raise BadValue(f"`prefill_schedule_interval` applies to vLLM 0.24 and later, not to {engine.version}")
    if bound_plan.plan.data_parallel_size == 1 or not has_experts:
        raise BadValue(
            "`prefill_schedule_interval` balances the data-parallel ranks of a mixture of experts: it has no effect "
            f"with `data_parallel_size` {bound_plan.plan.data_parallel_size} on {bound_plan.model.name}"
        )


def _pool_options(
    gpu: str,
    plan_options: dict[str, Any],
    pools: Sequence[Mapping[str, Any]] | None,
    prefill_replicas: int | None,
    decode_replicas: int | None,
) -> list[dict[str, Any]]:
    """The keywords of every pool of replicas, with its role and how many there are."""
    if (prefill_replicas is None) != (decode_replicas is None):
        raise BadValue("`prefill_replicas` and `decode_replicas` go together: give both, or neither")
    if prefill_replicas is not None and pools is not None:
        raise BadValue("pools set the role of their replicas: leave out `prefill_replicas`")
    if prefill_replicas is not None and decode_replicas is not None:
        pools = [{"role": "prefill", "replicas": prefill_replicas}, {"role": "decode", "replicas": decode_replicas}]
    checked = [_one_pool(given, gpu, plan_options) for given in ([{}] if pools is None else pools)]
    roles = {pool["role"] for pool in checked}
    if not checked or roles not in ({"both"}, {"prefill", "decode"}):
        raise BadValue(
            "pools must all have role both, or some role prefill and others role decode; "
            f"given: {', '.join(sorted(roles)) or 'none'}"
        )
    return checked


def _one_pool(given: Mapping[str, Any], gpu: str, plan_options: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise BadValue(f'a pool must be a mapping such as {{"gpu": "h200", "replicas": 2}}, not {abbreviate(given)}')
    allowed = {"role", "replicas", "async_scheduling", *_PLAN_KEYWORDS}
    unknown = next((name for name in given if name not in allowed), None)
    if unknown is not None:
        raise UnknownName("key of a pool", unknown, allowed)
    pool = {"gpu": gpu, **plan_options, "role": "both", "replicas": 1, "async_scheduling": None, **given}
    if pool["role"] not in ROLES:
        raise UnknownName("role of a pool", pool["role"], ROLES)
    check_int("replicas of a pool", pool["replicas"], most=10**5)
    return pool


# ------------------------------------------------------------------ runs as results, with labels and the keys of JSON


def run_header(
    model: str,
    gpu: str,
    plan_options: dict[str, Any],
    traffic: str,
    count: int,
    scheduler_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The labels of a checked request, and its warnings; a bad value is an error here, before anything is run.

    ``scheduler_options`` may say that there are several pools of replicas: all their GPUs are counted.
    """
    options = scheduler_options or {}
    pools = _pool_options(
        gpu, plan_options, *(options.get(name) for name in ("pools", "prefill_replicas", "decode_replicas"))
    )
    rows, requests = [], []
    for pool in pools:
        role, replicas = pool.pop("role"), pool.pop("replicas")
        request = build_request(model, **pool)
        requests.append(request)
        rows.append(
            {"role": role, "replicas": replicas, "gpu": request.device.name, "gpus": replicas * request.plan.gpus}
        )
    request, plan = requests[0], requests[0].plan
    labels = {one.device.name: one.device.label or one.device.name for one in requests}
    prices = [one.device.price_per_hour for one in requests]
    priced = [(price, row) for price, row in zip(prices, rows, strict=True) if price is not None]
    by_device = {name: sum(row["gpus"] for row in rows if row["gpu"] == name) for name in labels}
    return {
        "model": request.model.name,
        "quantization": plan.formats,
        "gpu": request.device.name,
        "gpus": sum(by_device.values()),
        "machine": " + ".join(f"{number} × {labels[name]}" for name, number in by_device.items()),
        "pools": rows,
        "dollars_per_hour": None if None in prices else float(sum(price * row["gpus"] for price, row in priced)),
        "engine": request.engine.label or request.engine.name,
        "engine_name": request.engine.name,
        "engine_version": request.engine.version,
        "defaults": engine_info(request.engine)["defaults"],
        "frontend": plan.frontend,
        "num_prompts": count,
        "traffic": traffic,
        "expected_error": msgspec.to_builtins(
            expected_errors(requests[-1], "disaggregated" if any(row["role"] == "decode" for row in rows) else "online")
        ),
        "warnings": list(dict.fromkeys(warning for one in requests for warning in one.warnings)),
    }


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that can be shown: ``plain_options({"router": "round_robin", "progress": print})``"""
    shown = (str, int, float, Mapping, list, tuple)
    return {name: value for name, value in options.items() if isinstance(value, shown) and name != "hf_token"}


class RunSetup(NamedTuple):
    """What was simulated: ``setup.summarize(outcome)["p99_ttft_ms"]``"""

    model: str
    gpu: str
    traffic: LoadedTraffic
    goodput: dict[str, float]
    scheduler_options: Mapping[str, Any]
    plan_options: dict[str, Any]

    def header(self) -> dict[str, Any]:
        """The labels of the run, and its warnings."""
        count = len(self.traffic.trace)
        return run_header(self.model, self.gpu, self.plan_options, self.traffic.label, count, self.scheduler_options)

    def settings(self) -> dict[str, Any]:
        """Its arguments by name, to be compared with those of another run."""
        chosen = {**self.scheduler_options, **self.plan_options, "goodput": self.goodput or None}
        named = {"model": self.model, "gpu": self.gpu, "requests": self.traffic.label}
        return named | {"num_prompts": len(self.traffic.trace)} | plain_options(chosen)

    def summarize(self, outcome: Outcome, header: dict[str, Any] | None = None) -> dict[str, Any]:
        """The keys of ``simulate --json``."""
        result = {"schema": "inferometer.simulate/1", **(self.header() if header is None else header)}
        kv_used, options = outcome.series.get("kv_used", ()), self.scheduler_options
        return {
            **result,
            **metrics(outcome, self.goodput),
            "goodput": self.goodput or None,
            "policy": options.get("policy") or "fcfs",
            "scheduler": options.get("scheduler") or engine(self.plan_options.get("engine") or "vllm").scheduler,
            "prefix_cache_hit_rate": outcome.prefix_hit_rate,
            "sessions": session_metrics(outcome, result["dollars_per_hour"]),
            "preemptions": int(outcome.preemptions.sum()),
            "kv_cache_tokens": outcome.kv_cache_tokens,
            "kv_tiers": [tier.plain() for tier in outcome.kv_tiers],
            "tier_series": {name: column.tolist() for name, column in outcome.tier_series.items()},
            "max_kv_cache_usage": float(max(kv_used)) if len(kv_used) else None,
            "steps": outcome.steps,
            "autoscaling": _replicas_over_time(outcome, result["gpus"], self.gpu),
            "reason": outcome.reason,
            "rejection_reasons": _count_rejections(outcome.rejected),
            "warnings": list(dict.fromkeys([*result["warnings"], *self.traffic.trace.notes, *outcome.warnings])),
        }


def simulate_and_summarize(
    model: str,
    gpu: str,
    traffic: LoadedTraffic,
    goodput: dict[str, float],
    scheduler_options: dict[str, Any],
    plan_options: dict[str, Any],
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, Any], Outcome]:
    """Run a simulation and sum it up: the keys of ``simulate --json``, and the outcome."""
    setup = RunSetup(model, gpu, traffic, goodput, scheduler_options, plan_options)
    header = setup.header()
    outcome = simulate(
        model, gpu, trace=traffic.trace, progress=lambda done, _: progress(done), **scheduler_options, **plan_options
    )
    return setup.summarize(outcome, header), outcome


def _replicas_over_time(outcome: Outcome, gpus: int, gpu: str) -> dict[str, Any] | None:
    """What the replicas come to where their number follows the load, each on so many GPUs."""
    if not outcome.lives:
        return None
    begin, end = float(np.nanmin(outcome.arrival_s)), float(np.nanmax(outcome.arrival_s))
    use, price = replica_use(outcome.lives, begin, end), hardware(gpu).price_per_hour
    return {
        "gpu_hours": use.hours * gpus,
        "cost": use.hours * gpus * price if price else None,
        "mean_replicas": use.hours * 3600 / (end - begin) if end > begin else float(use.peak),
        "peak_replicas": use.peak,
        "times_s": use.times.tolist(),
        "replicas": use.serving.tolist(),
    }


def _count_rejections(rejected: dict[int, Rejection]) -> dict[str, int]:
    """How many requests were rejected for each kind of reason, by its first sentence; the most frequent first."""
    kinds: dict[RejectionKind, list[str]] = {}
    for rejection in rejected.values():
        kinds.setdefault(rejection.kind, []).append(rejection.reason)
    return {reasons[0]: len(reasons) for reasons in sorted(kinds.values(), key=len, reverse=True)}
