"""What limits a plan, what would help, and what would make it fit: sentences backed by re-evaluation, not by rules.

A change is data, ``{"tensor_parallel_size": 2}``; `spelled` writes it as flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..base.units import percent, seconds, size
from ..costs import parallelism, precision
from ..costs.binding import BoundPlan
from ..specs import catalog
from ..specs.plan_args import short_flag
from ..specs.structs import Hardware, Plan
from . import memory
from .latency import decode_seconds, prefill_seconds
from .memory import cache_offloaded, memory_table
from .report import Infeasibility
from .workload import batch_shape_of

if TYPE_CHECKING:
    from .report import Memory, Phase, Report
    from .request import Request


WAITS = {"host": "waiting for the host", "wait": "waiting for other pipeline stages", "draft": "mostly drafting"}


def bottleneck_summary(request: Request, bound_plan: BoundPlan, report: Report) -> str:
    """``Prefill is compute-bound (gate_up_proj 41%); decode is memory-bound … -q fp8 would cut TPOT by 41%.``"""
    called = {"prefill": "A denoising step"} if request.model.kind == "diffusion" else {}
    parts = [
        f"{called.get(name, name.capitalize())} is {_bottleneck_sentence(phase)}"
        for name, phase in report.phases.items()
    ]
    sentence = "; ".join(p if i == 0 else p[0].lower() + p[1:] for i, p in enumerate(parts)) + "."
    return f"{sentence} {_best_single_change(request, bound_plan, report)}".strip()


def _bottleneck_sentence(phase: Phase) -> str:
    """What most of a phase's time waits for."""
    waits: dict[str, float] = {}
    for op in phase.ops:
        waits[op.bound] = waits.get(op.bound, 0.0) + op.seconds
    bound, took = max(waits.items(), key=lambda item: item[1])
    names: dict[str, float] = {}
    for op in phase.ops:
        names[op.name] = names.get(op.name, 0.0) + op.share
    top, share = max(names.items(), key=lambda item: item[1])
    detail = ""
    if bound == "memory" and phase.memory_access:
        cache = phase.load_kv_cache + phase.store_kv_cache
        weight, kv = phase.load_weight / phase.memory_access, cache / phase.memory_access
        detail = f", {percent(weight)} of its traffic weights and {percent(kv)} KV cache"
    word = WAITS.get(bound, f"{bound}-bound")
    most = f"most of it {top}, {percent(share)}{detail}"
    if bound == "wait" and phase.other_stages:
        word, most = f"{word}, {_others_sentence(phase)}", f"most of that {phase.other_stages[0].name}"
    return f"{word} ({percent(took / phase.seconds)} of {seconds(phase.seconds)}; {most})"


def _others_sentence(phase: Phase) -> str:
    """What limits the other stages: ``which are memory-bound for 89.1% of it``"""
    waits: dict[str, float] = {}
    for row in phase.other_stages:
        waits[row.bound] = waits.get(row.bound, 0.0) + row.seconds
    limit, took = max(waits.items(), key=lambda item: item[1])
    return f"which are {WAITS.get(limit, f'{limit}-bound')} for {percent(took / sum(waits.values()))} of it"


def _best_single_change(request: Request, bound_plan: BoundPlan, report: Report) -> str:
    """The change that helps most, tried out on this plan."""
    best: dict[str, list[str]] = {}
    for phase, label in (("prefill", "TTFT"), ("decode", "TPOT")):
        if phase not in report.phases:
            continue
        now = _phase_seconds(bound_plan, request, phase)
        gains = [
            (1 - _phase_seconds(other, request, phase) / now, spelled(change))
            for change, other in _alternatives(request, bound_plan)
        ]
        gain, change = max(gains, default=(0.0, ""))
        if gain > 0.02:
            best.setdefault(change, []).append(f"{label} by {percent(gain)}")
    return "; ".join(f"{change} would cut {' and '.join(cuts)}" for change, cuts in best.items()) + "." if best else ""


def spelled(change: Mapping[str, Any]) -> str:
    """A change as flags: ``spelled({"tensor_parallel_size": 2})  # '-tp 2'``; nodes stand behind it."""
    flags = " ".join(f"{short_flag(name)} {value}" for name, value in change.items() if name != "nodes")
    return flags + (f" ({change['nodes']} nodes)" if "nodes" in change else "")


def _alternatives(request: Request, bound_plan: BoundPlan) -> list[tuple[dict[str, Any], BoundPlan]]:
    """Plans one change away that the device supports."""
    plan = request.plan
    alternatives: list[tuple[dict[str, Any], BoundPlan]] = [
        ({"quantization": name}, _with_plan(request, bound_plan, plan=plan, roles=_roles(request, name)))
        for name in ("fp8", "w4a16")
        if _is_smaller(request, name)
    ]
    if catalog.precision(plan.kv_cache_dtype).bits > 8 and memory.kv_bytes_per_token(bound_plan):
        other = _with_plan(request, bound_plan, plan=_with(plan, kv_cache_dtype="fp8"))
        alternatives.append(({"kv_cache_dtype": "fp8"}, other))
    wider = _with(plan, tensor_parallel_size=2 * plan.tensor_parallel_size)
    if not parallelism.illegal_reason(request.model, wider, request.device) and request.model.kind == "decoder":
        other = _with_plan(request, bound_plan, plan=wider)
        alternatives.append(({"tensor_parallel_size": wider.tensor_parallel_size}, other))
    return alternatives


def _phase_seconds(bound_plan: BoundPlan, request: Request, phase: str) -> float:
    batch_shape = batch_shape_of(bound_plan, request.workload)
    return float((decode_seconds if phase == "decode" else prefill_seconds)(bound_plan, batch_shape))


_SHARE_OF = {  # Engine.memory_share_of, in words
    "device": "of",
    "static": "for weights and KV cache, and what activations take beside it, of",
    "free": "of what weights and activations leave, and these, of",
}


def memory_shortfall(request: Request, bound_plan: BoundPlan, held: Memory) -> Infeasibility:
    """``needs 92.1 GB of 72.0 GB usable per GPU (90% of 80.0 GB); fits with -tp 2 or -q fp8``, also as data."""
    plan, remedies = request.plan, _layouts(request, bound_plan)
    for name in ("fp8", "w8a16", "w4a16"):
        if _is_smaller(request, name):
            other = _with_plan(request, bound_plan, plan=plan, roles=_roles(request, name))
            if _fits(request, other):
                remedies.append({"quantization": name})
                break
    if catalog.precision(plan.kv_cache_dtype).bits > 8 and _fits(
        request, _with_plan(request, bound_plan, plan=_with(plan, kv_cache_dtype="fp8"))
    ):
        remedies.append({"kv_cache_dtype": "fp8"})
    if 0 < held.max_batch_size < request.workload.batch_size:
        remedies.append({"batch_size": held.max_batch_size})
    per_device = (
        f"needs {size(held.total_bytes)} of {size(held.usable_bytes)} usable per GPU "
        f"({percent(request.plan.gpu_memory_utilization)} {_SHARE_OF[request.engine.memory_share_of]} "
        f"{size(held.capacity_bytes)})"
    )
    changes = " or ".join(map(spelled, remedies))
    return Infeasibility(
        kind="memory",
        reason=f"{per_device}; fits with {changes}" if remedies else f"{per_device}; no single change makes it fit",
        needed_bytes=held.total_bytes,
        available_bytes=held.usable_bytes,
        remedies=remedies,
    )


def _layouts(request: Request, bound_plan: BoundPlan) -> list[dict[str, Any]]:
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


def _first_that_fits(request: Request, bound_plan: BoundPlan, changes: list[dict[str, int]]) -> list[dict[str, Any]]:
    """The first of some layouts that is legal and fits, with the nodes it needs if they are more; or none."""
    for change in changes:
        plan = _wider(request, change)
        if not _illegal(request, change) and _fits(request, _with_plan(request, bound_plan, plan=plan)):
            return [{**change, **({"nodes": plan.nodes} if plan.nodes > request.plan.nodes else {})}]
    return []


def _illegal(request: Request, change: dict[str, int]) -> str:
    return parallelism.illegal_reason(request.model, _wider(request, change), request.device)


def _wider(request: Request, change: dict[str, int]) -> Plan:
    """The plan with another layout, and as many nodes as that needs."""
    plan, per_node = _with(request.plan, **change), request.plan.gpus_per_node
    if per_node == parallelism.gpus_per_nvlink_domain(request.device, request.plan.gpus):
        per_node = parallelism.gpus_per_nvlink_domain(request.device, plan.gpus)
    return _with(plan, gpus_per_node=per_node, nodes=max(plan.nodes, -(-plan.gpus // per_node)))


def _is_smaller(request: Request, name: str) -> bool:
    """Whether a precision has fewer bits than the plan's, and the device computes with it."""
    fewer = catalog.precision(request.plan.quantization).bits > catalog.precision(name).bits
    return fewer and _runs(request.device, name)


def _roles(request: Request, name: str) -> dict[str, str]:
    return precision.precision_by_role(request.model, request.plan.dtype, name)


def _runs(device: Hardware, name: str) -> bool:
    """Whether the device multiplies in that precision, or only stores weights in it."""
    native = catalog.precision(name).compute
    return not native or native[0] in device.flops


def _fits(request: Request, bound_plan: BoundPlan) -> bool:
    held = memory_table(bound_plan, batch_shape_of(bound_plan, request.workload))
    return held.total_bytes <= held.usable_bytes


def _with(plan: Plan, **changes: Any) -> Plan:
    return msgspec.structs.replace(plan, **changes)


def _with_plan(
    request: Request, bound_plan: BoundPlan, *, plan: Plan, roles: dict[str, str] | None = None
) -> BoundPlan:
    other = request.replan(plan)._replace(roles=roles or request.roles).bind()
    return cache_offloaded(other, batch_shape_of(other, request.workload))
