"""The smallest platform for a task, and other tasks on the same machine.

size = smallest_platform(build_request("llama-3.1-70b", "h100-sxm", batch_size=32), {"tpot": 25.0})
size.smallest.gpus, size.smallest.layout, size.smaller.reason       # 4, '-tp 4', 'needs 92.1 GB of …'

Platforms are GPUs × layout, counted up until one fits and keeps every limit. Other models, or the use cases of the
catalogue, are compared on the machine as it is: what is lost, and what they would need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from ..base.errors import BadValue
from ..base.units import ceil_div, percent, size
from ..costs import parallelism
from ..inference.analyze import metrics_of, model_info
from ..inference.memory import Footprint, footprint
from ..inference.remedies import memory_shortfall
from ..inference.request import Request
from ..inference.workload import batch_shape_of
from ..specs import catalog
from .evaluation import FULL_LOAD, METRICS, Evaluation, bind_offloaded, bind_request, illegal_layout
from .parameters import ALL_SPEEDS, parameters
from .sensitivity_report import COMPARED, ComparisonRow, Platform, Size
from .targets import demand, solve

MAX_GPUS = 128  # of a platform
MAX_STAGES = 16  # of a pipeline
KEPT = ("ttft", "tpot")  # the metrics of the first model that the others are to keep
ALONE = ("flops", "memory_bandwidth", ALL_SPEEDS)  # parameters that are also solved alone when models are compared

BuildRequest = Callable[..., Request]  # the same arguments for another model, or with others added


# ------------------------------------------------------------------ platforms


def smallest_platform(request: Request, limits: Mapping[str, float]) -> Size:
    """Every tp × pp × dp of every number of GPUs: one by one in a node, whole nodes beyond.

    Of the layouts of one number that work, the fastest for the whole batch is taken; of those that do not, the one
    that lacks the least is shown.
    """
    tried: list[Platform] = []
    single = bind_offloaded(with_layout(request, 1, 1, 1))
    on_one_gpu = footprint(single, batch_shape_of(single, request.workload))
    for gpus in _gpu_counts(request):
        tried.append(_best_layout(request, gpus, limits, on_one_gpu))
        if tried[-1].works:
            break
    gpu = request.device.name
    if not tried[-1].works:
        return Size(gpu=gpu, smallest=None, smaller=min(tried, key=_rank), tried=tried)
    return Size(gpu=gpu, smallest=tried[-1], smaller=tried[-2] if len(tried) > 1 else None, tried=tried)


def _gpu_counts(request: Request) -> Iterator[int]:
    node = max(1, min(request.plan.gpus_per_node, MAX_GPUS))
    yield from range(1, node)
    yield from range(node, MAX_GPUS + 1, node)


def _layouts(request: Request, gpus: int) -> Iterator[tuple[int, int, int]]:
    """(tp, pp, dp) that multiply to the number of GPUs; replicas without a sequence are left out."""
    no_pipeline = request.model.kind != "decoder" or isinstance(request.workload.input_len, tuple)
    for tp in range(1, gpus + 1):
        for pp in range(1, 2 if no_pipeline else MAX_STAGES + 1):
            dp = gpus // (tp * pp)
            if tp * pp * dp == gpus and dp <= request.workload.batch_size:
                yield tp, pp, dp


def with_layout(request: Request, tp: int, pp: int, dp: int) -> Request:
    """The request on another layout, on as many nodes as that needs."""
    plan, used = request.plan, tp * pp * dp
    node = plan.gpus_per_node
    if node == parallelism.gpus_per_nvlink_domain(request.device, plan.gpus):  # `gpus_per_node` was not given
        node = parallelism.gpus_per_nvlink_domain(request.device, used)
    other = replace(
        plan,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        gpus_per_node=node,
        nodes=ceil_div(used, node),
    )
    return request.replan(other)


def _best_layout(request: Request, gpus: int, limits: Mapping[str, float], on_one_gpu: Footprint) -> Platform:
    """The best layout of so many GPUs."""
    weights, usable = on_one_gpu.weights / gpus, on_one_gpu.usable  # no layout splits weights finer than evenly
    if weights > usable and gpus > request.plan.gpus_per_node and not request.plan.cpu_offload_bytes:
        return Platform(
            gpu=request.device.name,
            gpus=gpus,
            layout="",
            works=False,
            binding="weights",
            short=weights / usable - 1,
            reason=f"needs {size(weights)} for weights alone, of {size(usable)} usable per GPU",
            price_per_hour=_price_per_hour(request, gpus),
        )
    return min((_platform(with_layout(request, *ranks), limits) for ranks in _layouts(request, gpus)), key=_rank)


def _rank(platform: Platform) -> tuple[int, float]:
    """Those that work by speed, then those that fit by what they miss, then the rest by what they lack."""
    if platform.works:
        return 0, -(platform.output_throughput or 0.0) if platform.output_throughput else platform.ttft_ms or 0.0
    kind = 1 if platform.binding in METRICS else 2 if platform.short is not None else 3
    return kind, platform.short or 0.0


def _platform(request: Request, limits: Mapping[str, float]) -> Platform:
    """One layout, evaluated as far as it goes."""
    plan = request.plan
    ranks = (plan.tensor_parallel_size, plan.pipeline_parallel_size, plan.data_parallel_size)
    layout = " ".join(f"{flag} {n}" for flag, n in zip(("-tp", "-pp", "-dp"), ranks, strict=True) if n > 1) or "-tp 1"
    platform = Platform(
        gpu=request.device.name,
        gpus=plan.gpus,
        layout=layout,
        ranks=ranks,
        works=False,
        price_per_hour=_price_per_hour(request, plan.gpus),
    )
    illegal = illegal_layout(request)
    if illegal:
        return replace(platform, binding="layout", reason=illegal)
    bound_plan = bind_offloaded(request)
    held = footprint(bound_plan, batch_shape_of(bound_plan, request.workload))
    platform = replace(platform, memory_share=float(held.total / held.usable))
    return _out_of_memory(platform, held) if held.total > held.usable else _judge(platform, request, limits)


def _out_of_memory(platform: Platform, held: Footprint) -> Platform:
    binding = "weights" if held.total - held.cache >= held.usable else "kv_cache"
    short = float(held.total / held.usable) - 1
    reason = (
        f"needs {size(held.total)} of {size(held.usable)} usable per GPU, {percent(short)} too much: "
        f"weights {size(held.weights)}, KV cache {size(held.cache)}"
    )
    return replace(platform, binding=binding, short=short, reason=reason)


def _judge(platform: Platform, request: Request, limits: Mapping[str, float]) -> Platform:
    """A layout that fits, beside the limits."""
    metrics = metrics_of(bind_offloaded(request), request.workload)[0]
    platform = replace(platform, **{field: getattr(metrics, field) for field in COMPARED})
    of_full_load = {name: METRICS[name].field.startswith(FULL_LOAD) for name in limits}
    full_load = bind_request(request).full_load_metrics() if any(of_full_load.values()) else metrics
    missed: dict[str, tuple[float, float]] = {}  # metric -> how far it is off, its value
    for name, limit in limits.items():
        metric = METRICS[name]
        value = getattr(full_load if of_full_load[name] else metrics, metric.field.removeprefix(FULL_LOAD))
        if not metric.holds(value, limit):
            missed[name] = (2.0 ** metric.gap(value, limit) - 1, value or 0.0)
    if not missed:
        return replace(platform, works=True)
    worst = max(missed, key=lambda name: missed[name][0])
    metric, (short, value) = METRICS[worst], missed[worst]
    reason = (
        f"{metric.label} {value:.4g} {metric.unit} instead of {limits[worst]:.4g} "
        f"{metric.unit}, off by {percent(short)}"
    )
    return replace(platform, binding=worst, short=short, reason=reason)


def _price_per_hour(request: Request, gpus: int) -> float | None:
    return request.device.price_per_hour * gpus or None


# ------------------------------------------------------------------ other models and use cases


def infeasible_reason(request: Request) -> str | None:
    """Why a plan does not work, and what would; None if it does."""
    bound = bind_request(request)
    return illegal_layout(request) or (
        None if bound.fits else memory_shortfall(request, bound.bound_plan, bound.memory).reason
    )


def compare_models(
    request: Request, base: Evaluation, others: Iterable[str], build: BuildRequest
) -> list[ComparisonRow]:
    """The model itself, then the others beside its TTFT and TPOT; ``build(name)`` gives the request of another."""
    limits = {name: value for name in KEPT if (value := getattr(base, METRICS[name].field)) is not None}
    rows = [_model_row(request, limits)]
    for name in others:
        other = build(name)
        if other.model.kind != request.model.kind:
            raise BadValue(
                f"`compare` {request.model.name} with {other.model.name}: a {request.model.kind} and a "
                f"{other.model.kind} model have no metric in common"
            )
        if other.model.name != request.model.name:
            rows.append(_model_row(other, limits))
    return rows


def compare_usecases(build: BuildRequest) -> list[ComparisonRow]:
    """Every use case of the catalogue at its own lengths and batch, beside the latencies that its users expect."""
    return [
        _comparison_row(
            build(usecase=name), {"ttft": case.ttft * 1e3, "tpot": case.tpot * 1e3}, name=name, label=case.label
        )
        for name, case in catalog.usecases().items()
    ]


def _model_row(request: Request, limits: Mapping[str, float]) -> ComparisonRow:
    name = model_info(request).name
    return _comparison_row(request, limits, name=name, label=name, alone=ALONE)


def _comparison_row(
    request: Request, limits: Mapping[str, float], *, name: str, label: str, alone: Iterable[str] = ()
) -> ComparisonRow:
    """A model or use case on the same machine; of parameters in ``alone`` also what each must be by itself."""
    bound, scalable, work = bind_request(request), parameters(request), request.workload
    metrics = bound.metrics()
    fits = bound.fits and not illegal_layout(request)
    kept = (METRICS[m].holds(getattr(metrics, METRICS[m].field), limit) for m, limit in limits.items())
    return ComparisonRow(
        name=name,
        label=label,
        params=model_info(request).params,
        fits=fits,
        reason=infeasible_reason(request),
        meets=fits and all(kept),
        workload={
            "input_len": work.input_len,
            "output_len": work.output_len,
            "batch_size": work.batch_size,
            "beam_width": work.beam_width,
        },
        limits=dict(limits),
        ttft_ms=metrics.ttft_ms,
        tpot_ms=metrics.tpot_ms,
        output_throughput=metrics.output_throughput,
        demand=demand(request, limits),
        alone={
            key: {m: solve(request, scalable[key], METRICS[m], limit) for m, limit in limits.items()} for key in alone
        },
        size=smallest_platform(request, limits),
    )


def model_names(given: str | Iterable[str]) -> list[str]:
    """Names of models, none of them twice: ``model_names("llama-2-7b,llama-2-70b")``"""
    names = given.split(",") if isinstance(given, str) else [str(name) for name in given]
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise BadValue("`compare` needs the names of models, separated by commas")
    return list(dict.fromkeys(names))
