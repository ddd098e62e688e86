"""What would make a plan work that cannot: changes as data, each tried before it is offered.

layout_problem(request, "32 attention heads are not divisible by tp 3").remedies      # [{"tensor_parallel_size": 2}, …]

A change is data, ``{"tensor_parallel_size": 2}``; `spelled` writes it as flags.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..base.errors import InferometerError
from ..base.units import either, percent, size
from ..costs import parallelism, precision
from ..costs.binding import BoundPlan
from ..specs import catalog
from ..specs.plan_args import short_flag
from ..specs.structs import Hardware, Plan
from .memory import cache_offloaded, footprint, memory_table
from .report import Infeasibility
from .request import build_request
from .speculation import draft_reason
from .workload import batch_shape_of

if TYPE_CHECKING:
    from .report import Memory
    from .request import Request

Change = dict[str, Any]
_SHARE_OF = {  # Engine.memory_share_of, in words
    "device": "of",
    "static": "for weights and KV cache, plus activations, of",
    "free": "of what weights and activations leave free, plus these, of",
}
_TRIES = 4  # of one kind of change: what is offered should lie near


def spelled(change: Mapping[str, Any]) -> str:
    """A change as flags: ``spelled({"tensor_parallel_size": 2})  # '-tp 2'``; nodes stand behind it."""
    behind = "nodes" in change and len(change) > 1
    flags = " ".join(f"{short_flag(k)} {v}" for k, v in change.items() if not (behind and k == "nodes"))
    return flags + (f" ({change['nodes']} nodes)" if behind else "")


def works(request: Request) -> bool:
    """Whether a plan is legal and fits; costs no more than its memory: ``works(build_request("llama-3.1-8b"))``"""
    if parallelism.illegal_reason(request.model, request.plan, request.device):
        return False
    bound_plan = request.bind()
    return not draft_reason(bound_plan) and fits(request, bound_plan)


def with_change(request: Request, change: Mapping[str, Any]) -> Request | None:
    """The request as its arguments with a change make it, None if refused: ``with_change(request, {"gpu": "h200"})``"""
    try:
        return build_request(**{**request.arguments, **change})
    except InferometerError:
        return None


def _as_given(request: Request) -> Request:
    """The request, without its arguments if it is no longer the plan that they make."""
    same = with_change(request, {}) if request.arguments else None
    kept = same and (same.plan, same.workload, same.device) == (request.plan, request.workload, request.device)
    return request if kept else request._replace(arguments={})


def _accepted(request: Request, remedies: Iterable[Change]) -> list[Change]:
    """The remedies that work when said as arguments: what would be refused is none."""
    if not request.arguments:
        return list(remedies)
    return [change for change in remedies if (other := with_change(request, change)) and works(other)]


def infeasibility_of(request: Request, bound_plan: BoundPlan, held: Memory) -> Infeasibility | None:
    """Why a plan cannot run, and what was tried and works; None if it can."""
    illegal = parallelism.illegal_reason(request.model, request.plan, request.device) or draft_reason(bound_plan)
    if illegal:
        return layout_problem(request, illegal)
    return memory_shortfall(request, bound_plan, held) if held.total_bytes > held.usable_bytes else None


def second_changes(request: Request) -> list[Change]:
    """What else a request needs to work: ``second_changes(build_request("llama-3.1-70b"))  # [{"…size": 2}, …]``"""
    bound_plan = request.bind()
    batch_shape = batch_shape_of(bound_plan, request.workload)
    bound_plan = cache_offloaded(bound_plan, batch_shape)
    why = infeasibility_of(request, bound_plan, memory_table(bound_plan, batch_shape))
    return why.remedies if why else []


# ------------------------------------------------------------------ a layout that is not legal


def layout_problem(request: Request, problem: str) -> Infeasibility:
    """``32 attention heads are not divisible by tp 3; works with -tp 2 or -tp 4``, also as data."""
    request = _as_given(request)
    remedies: list[Change] = []
    enough = _wider(request, {})
    if enough.nodes > request.plan.nodes:
        remedies += _first_that_works(request, [{"nodes": enough.nodes}])
    axes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size")
    for axis in axes:
        for values in _near(getattr(request.plan, axis), larger=not remedies):
            remedies += _first_that_works(request, ({axis: value} for value in values))
    return _infeasibility("layout", problem, "works", _accepted(request, remedies))


def _near(value: int, larger: bool) -> Iterator[list[int]]:
    """Smaller values and larger ones, the nearest first."""
    powers = {2**i for i in range(17)}
    yield sorted({n for n in {*range(value - 64, value), *powers} if 0 < n < value}, reverse=True)
    yield sorted({n for n in {*range(value + 1, value + 65), *powers} if n > value})[:80] if larger else []


def _first_that_works(request: Request, changes: Iterable[Change]) -> list[Change]:
    """The first of some layouts that is legal, can draft and fits, with the nodes it needs if they are more; or none"""
    tries = 0
    for change in changes:
        plan = _wider(request, change)
        if parallelism.illegal_reason(request.model, plan, request.device):
            continue
        tries += 1
        if works(request.replan(plan)):
            return [_with_nodes(request, change, plan)]
        if tries == _TRIES:
            break
    return []


def _infeasibility(kind: str, problem: str, verb: str, remedies: list[Change], **figures: float) -> Infeasibility:
    end = (
        f"{verb} with {either(map(spelled, remedies))}"
        if remedies
        else "no single change makes it fit"
        if kind == "memory"
        else ""
    )
    reason = f"{problem}; {end}" if end else problem
    return Infeasibility(kind=kind, reason=reason, problem=problem, remedies=remedies, **figures)


# ------------------------------------------------------------------ a plan that does not fit


def memory_shortfall(request: Request, bound_plan: BoundPlan, held: Memory) -> Infeasibility:
    """``needs 92.1 GB of 72.0 GB usable per GPU (90% of 80.0 GB); fits with -tp 2 or -q fp8``, also as data."""
    problem = (
        f"needs {size(held.total_bytes)} of {size(held.usable_bytes)} usable per GPU "
        f"({percent(request.plan.gpu_memory_utilization)} {_SHARE_OF[request.engine.memory_share_of]} "
        f"{size(held.capacity_bytes)})"
    )
    request = _as_given(request)
    remedies = _accepted(
        request,
        [
            *_layouts(request, bound_plan),
            *_formats(request, bound_plan),
            *_smaller_workloads(request, held),
            *_other_devices(request, held),
        ],
    )
    figures = {"needed_bytes": held.total_bytes, "available_bytes": held.usable_bytes}
    return _infeasibility("memory", problem, "fits", remedies, **figures)


def _formats(request: Request, bound_plan: BoundPlan) -> Iterator[Change]:
    """Fewer bits for the weights, or for the cache."""
    plan = request.plan
    for name in ("fp8", "w8a16", "w4a16"):
        if is_smaller(request, name):
            other = with_plan(request, bound_plan, plan=plan, roles=roles_in(request, name))
            if fits(request, other):
                yield {"quantization": name}
                break
    if cache_can_shrink(request) and fits(
        request, with_plan(request, bound_plan, plan=_with(plan, kv_cache_dtype="fp8"))
    ):
        yield {"kv_cache_dtype": "fp8"}


def _smaller_workloads(request: Request, held: Memory) -> Iterator[Change]:
    """As many sequences as fit, or prompts as long as fit."""
    work = request.workload
    if 0 < held.max_batch_size < work.batch_size:
        yield {"batch_size": held.max_batch_size}
    if request.arguments and held.max_total_tokens and isinstance(work.input_len, int) and not work.turns:
        sequences = -(-work.batch_size // request.plan.data_parallel_size) * work.beam_width
        length = held.max_total_tokens // sequences - work.output_len
        if work.input_len / 8 < length < work.input_len and length > 1024:
            yield {"input_len": length // 1024 * 1024}


def _other_devices(request: Request, held: Memory) -> list[Change]:
    """The smallest other device of the vendor on which the plan fits as it is."""
    here, least = request.device, held.total_bytes / request.plan.gpu_memory_utilization * 0.98
    larger = [d for d in _devices() if d.vendor == here.vendor and d.memory > max(least, here.memory)]
    larger.sort(key=lambda d: (round(d.memory / 1e9), d.interconnect != here.interconnect, d.price_per_hour))
    for device in larger[:_TRIES] if request.arguments else ():
        other = with_change(request, {"gpu": device.name})
        if other and works(other):
            return [{"gpu": device.name}]
    return []


@functools.cache
def _devices() -> list[Hardware]:
    return list(map(catalog.hardware, catalog.names("hardware")))


def _layouts(request: Request, bound_plan: BoundPlan) -> list[Change]:
    """More GPUs that make it fit: tp inside a node, else tp or pp over several, or tp inside and pp between them."""
    plan = request.plan
    tps, pps = (
        [{axis: n} for n in (2, 4, 8, 16, 32, 64) if n > getattr(plan, axis)]
        for axis in ("tensor_parallel_size", "pipeline_parallel_size")
    )
    inside = [change for change in tps if _wider(request, change).nodes <= plan.nodes]
    first = _first_that_fits(request, bound_plan, inside)
    if first or request.model.kind != "decoder":
        return first
    changes = _first_that_fits(request, bound_plan, tps) + _first_that_fits(request, bound_plan, pps)
    legal = [change for change in inside if not _illegal(request, change)]
    if len(changes) < 2 and legal:
        changes += _first_that_fits(request, bound_plan, [{**legal[-1], **change} for change in pps])
    return changes


def _first_that_fits(request: Request, bound_plan: BoundPlan, changes: list[dict[str, int]]) -> list[Change]:
    """The first of some layouts that is legal and fits, with the nodes it needs if they are more; or none."""
    for change in changes:
        plan = _wider(request, change)
        if not _illegal(request, change) and fits(request, with_plan(request, bound_plan, plan=plan)):
            return [_with_nodes(request, change, plan)]
    return []


def _with_nodes(request: Request, change: Change, plan: Plan) -> Change:
    return {**change, **({"nodes": plan.nodes} if plan.nodes > request.plan.nodes else {})}


def _illegal(request: Request, change: dict[str, int]) -> str:
    return parallelism.illegal_reason(request.model, _wider(request, change), request.device)


def _wider(request: Request, change: Mapping[str, int]) -> Plan:
    """The plan with another layout, and as many nodes as that needs."""
    plan, per_node = _with(request.plan, **change), request.plan.gpus_per_node
    if per_node == parallelism.gpus_per_nvlink_domain(request.device, request.plan.gpus):
        per_node = parallelism.gpus_per_nvlink_domain(request.device, plan.gpus)
    return _with(plan, gpus_per_node=per_node, nodes=max(plan.nodes, -(-plan.gpus // per_node)))


# ------------------------------------------------------------------ one change away


def is_smaller(request: Request, name: str) -> bool:
    """Whether a precision has fewer bits than the plan's, and the device computes with it."""
    fewer = catalog.precision(request.plan.quantization).bits > catalog.precision(name).bits
    return fewer and runs_on(request.device, name)


def cache_can_shrink(request: Request) -> bool:
    """Whether the cache has more than 8 bits, and the engine has one in fp8."""
    engine = request.engine
    return catalog.precision(request.plan.kv_cache_dtype).bits > 8 and (
        not engine.kv_cache_dtypes or "fp8" in engine.kv_cache_dtypes
    )


def roles_in(request: Request, name: str) -> dict[str, str]:
    """The precision of each role where the weights are in another one: ``roles_in(request, "fp8")["mlp"]``"""
    return precision.precision_by_role(request.model, request.plan.dtype, name)


def runs_on(device: Hardware, name: str) -> bool:
    """Whether the device multiplies in that precision, or only stores weights in it."""
    native = catalog.precision(name).compute
    return not native or native[0] in device.flops


def fits(request: Request, bound_plan: BoundPlan) -> bool:
    """Whether a plan's bytes are within what a GPU may use."""
    held = footprint(bound_plan, batch_shape_of(bound_plan, request.workload))
    return bool(held.total <= held.usable)


def _with(plan: Plan, **changes: Any) -> Plan:
    return msgspec.structs.replace(plan, **changes)


def with_plan(request: Request, bound_plan: BoundPlan, *, plan: Plan, roles: dict[str, str] | None = None) -> BoundPlan:
    """The request bound with another layout or other precisions: ``with_plan(request, bound_plan, plan=wider)``"""
    other = request.replan(plan)._replace(roles=roles or request.roles).bind()
    return cache_offloaded(other, batch_shape_of(other, request.workload))
