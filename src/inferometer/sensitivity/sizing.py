"""The smallest platform for a task: GPUs × layout, counted up until one fits and keeps every limit.

size = smallest(request("llama-3.1-70b", "h100-sxm", batch_size=32), {"tpot": 25.0})
size.found.gpus, size.found.layout, size.smaller.reason       # 4, '-tp 4', 'needs 92.1 GB of …'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from ..base.units import percent, size
from ..costs import parallelism
from ..inference.analyze import metrics_of
from ..inference.latency import batch_shape_of
from ..inference.memory import Footprint, footprint
from ..inference.request import Request
from .evaluation import FULL, METRICS, bound, point, unusable
from .sensitivity_report import SEEN, Size, Tried

MOST = 128  # GPUs that are tried
STAGES = 16  # of a pipeline, at most


def smallest(request: Request, limits: Mapping[str, float]) -> Size:
    """Every tp × pp × dp of every number of GPUs: one by one in a machine, whole machines beyond.

    Of the layouts of one number that work, the fastest for the whole batch is taken; of those that do not, the one
    that lacks the least is shown.
    """
    tried: list[Tried] = []
    alone = bound(laid_out(request, 1, 1, 1))
    stored = footprint(alone, batch_shape_of(alone, request.workload))
    for gpus in _counts(request):
        tried.append(_best(request, gpus, limits, stored))
        if tried[-1].works:
            break
    if not tried[-1].works:
        return Size(gpu=request.device.name, found=None, smaller=min(tried, key=_rank), tried=tried)
    return Size(gpu=request.device.name, found=tried[-1], smaller=tried[-2] if len(tried) > 1 else None, tried=tried)


def _counts(request: Request) -> Iterator[int]:
    node = max(1, min(request.plan.gpus_per_node, MOST))
    yield from range(1, node)
    yield from range(node, MOST + 1, node)


def _layouts(request: Request, gpus: int) -> Iterator[tuple[int, int, int]]:
    """(tp, pp, dp) whose product is the number of GPUs; replicas without a sequence are left out."""
    whole = request.model.kind != "decoder" or isinstance(request.workload.input_len, tuple)  # has no pipeline
    for tp in range(1, gpus + 1):
        for pp in range(1, 2 if whole else STAGES + 1):
            dp = gpus // (tp * pp)
            if tp * pp * dp == gpus and dp <= request.workload.batch_size:
                yield tp, pp, dp


def laid_out(request: Request, tp: int, pp: int, dp: int) -> Request:
    """The request on another layout, on as many machines as that needs."""
    plan, used = request.plan, tp * pp * dp
    node = plan.gpus_per_node
    if node == parallelism.gpus_per_nvlink_domain(request.device, plan.gpus):  # nobody said otherwise
        node = parallelism.gpus_per_nvlink_domain(request.device, used)
    other = replace(
        plan,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        gpus_per_node=node,
        nodes=-(-used // node),
    )
    return request._replace(plan=other)


def _best(request: Request, gpus: int, limits: Mapping[str, float], stored: Footprint) -> Tried:
    """The best layout of so many GPUs."""
    hopeless = stored.weights / gpus > stored.usable  # no layout splits weights finer than evenly
    if hopeless and gpus > request.plan.gpus_per_node and not request.plan.cpu_offload_bytes:
        short = stored.weights / gpus / stored.usable - 1
        why = f"weights alone are {size(stored.weights / gpus)} of {size(stored.usable)} usable per GPU"
        return Tried(
            gpu=request.device.name,
            gpus=gpus,
            layout="",
            works=False,
            binding="weights",
            short=short,
            reason=why,
            price_per_hour=_price(request, gpus),
        )
    every = [_tried(laid_out(request, *layout), limits) for layout in _layouts(request, gpus)]
    return min(every, key=_rank)


def _rank(tried: Tried) -> tuple[int, float]:
    """Those that work by speed, then those that fit by what they miss, then the rest by what they lack."""
    if tried.works:
        return 0, -(tried.output_throughput or 0.0) if tried.output_throughput else tried.ttft_ms or 0.0
    return (1 if tried.binding in METRICS else 2 if tried.short is not None else 3), tried.short or 0.0


def _tried(request: Request, limits: Mapping[str, float]) -> Tried:
    """One layout, priced as far as it goes."""
    plan = request.plan
    ranks = (plan.tensor_parallel_size, plan.pipeline_parallel_size, plan.data_parallel_size)
    layout = " ".join(f"{flag} {n}" for flag, n in zip(("-tp", "-pp", "-dp"), ranks, strict=True) if n > 1) or "-tp 1"
    tried = Tried(
        gpu=request.device.name,
        gpus=plan.gpus,
        layout=layout,
        ranks=ranks,
        works=False,
        price_per_hour=_price(request, plan.gpus),
    )
    illegal = unusable(request)
    if illegal:
        return replace(tried, binding="layout", reason=illegal)
    bound_plan = bound(request)
    held = footprint(bound_plan, batch_shape_of(bound_plan, request.workload))
    tried = replace(tried, memory_share=float(held.total / held.usable))
    return _too_full(tried, held) if held.total > held.usable else _judged(tried, request, limits)


def _too_full(tried: Tried, held: Footprint) -> Tried:
    binding = "weights" if held.total - held.cache >= held.usable else "kv_cache"
    short = float(held.total / held.usable) - 1
    why = (
        f"needs {size(held.total)} of {size(held.usable)} usable per GPU, {percent(short)} too much: "
        f"weights {size(held.weights)}, KV cache {size(held.cache)}"
    )
    return replace(tried, binding=binding, short=short, reason=why)


def _judged(tried: Tried, request: Request, limits: Mapping[str, float]) -> Tried:
    """A layout that fits, beside the limits."""
    seen = metrics_of(bound(request), request.workload)[0]
    tried = replace(tried, **{field: getattr(seen, field) for field in SEEN})
    full = point(request).full() if any(METRICS[word].field.startswith(FULL) for word in limits) else seen
    missed: dict[str, tuple[float, float]] = {}
    for word, limit in limits.items():
        metric = METRICS[word]
        value = getattr(full if metric.field.startswith(FULL) else seen, metric.field.removeprefix(FULL))
        if not metric.holds(value, limit):
            missed[word] = (2.0 ** metric.gap(value, limit) - 1, value or 0.0)
    if not missed:
        return replace(tried, works=True)
    worst = max(missed, key=lambda word: missed[word][0])
    metric, (short, value) = METRICS[worst], missed[worst]
    why = f"{metric.label} {value:.4g} {metric.unit} instead of {limits[worst]:.4g}, off by {percent(short)}"
    return replace(tried, binding=worst, short=short, reason=why)


def _price(request: Request, gpus: int) -> float | None:
    return request.device.price_per_hour * gpus or None
