"""What limits a plan, what would help, and what would make it fit: sentences backed by re-evaluation, not by rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..base.units import percent, seconds, size
from ..costs import parallelism, precision
from ..costs.bound_plan import Setup
from ..specs import catalog
from ..specs.structs import Hardware, Plan
from . import memory
from .latency import conversation, prompt_seconds, token_seconds
from .memory import cache_offloaded, memory_table

if TYPE_CHECKING:
    from .report import Memory, Phase, Report
    from .request import Request


_FLAGS = {"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp"}
WAITS = {"host": "waiting for the host", "wait": "waiting for other pipeline stages", "draft": "mostly drafting"}


def limits(asked: Request, setup: Setup, report: Report) -> str:
    """``Prefill is compute-bound (gate_up_proj 41%); decode is memory-bound … -q fp8 would cut TPOT by 41%.``"""
    called = {"prefill": "A denoising step"} if asked.model.kind == "diffusion" else {}
    parts = [f"{called.get(name, name.capitalize())} is {_why(phase)}" for name, phase in report.phases.items()]
    sentence = "; ".join(p if i == 0 else p[0].lower() + p[1:] for i, p in enumerate(parts)) + "."
    return f"{sentence} {_help(asked, setup, report)}".strip()


def _why(phase: Phase) -> str:
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
    return f"{word} ({percent(took / phase.seconds)} of {seconds(phase.seconds)}; {most})"


def _help(asked: Request, setup: Setup, report: Report) -> str:
    """The change that helps most, tried out on this plan."""
    best: dict[str, list[str]] = {}
    for phase, label in (("prefill", "TTFT"), ("decode", "TPOT")):
        if phase not in report.phases:
            continue
        now = _time(setup, asked, phase)
        gains = [(1 - _time(other, asked, phase) / now, words) for words, other in _alternatives(asked, setup)]
        gain, words = max(gains, default=(0.0, ""))
        if gain > 0.02:
            best.setdefault(words, []).append(f"{label} by {percent(gain)}")
    return "; ".join(f"{words} would cut {' and '.join(cuts)}" for words, cuts in best.items()) + "." if best else ""


def _alternatives(asked: Request, setup: Setup) -> list[tuple[str, Setup]]:
    """Plans one change away that the device supports."""
    plan, found = asked.plan, []
    for name in ("fp8", "w4a16"):
        if catalog.precision(plan.quantization).bits > catalog.precision(name).bits and _runs(setup.device, name):
            roles = precision.by_role(asked.model, plan.dtype, name)
            found.append((f"-q {name}", _again(asked, setup, plan=plan, roles=roles)))
    if catalog.precision(plan.kv_cache_dtype).bits > 8 and memory.kv_bytes_per_token(setup):
        found.append(("--kv-cache-dtype fp8", _again(asked, setup, plan=_with(plan, kv_cache_dtype="fp8"))))
    wider = _with(plan, tensor_parallel_size=2 * plan.tensor_parallel_size)
    if not parallelism.reason(asked.model, wider, asked.device) and asked.model.kind == "decoder":
        found.append((f"-tp {wider.tensor_parallel_size}", _again(asked, setup, plan=wider)))
    return found


def _time(setup: Setup, asked: Request, phase: str) -> float:
    talk = conversation(setup, asked.workload)
    return float(token_seconds(setup, talk) if phase == "decode" else prompt_seconds(setup, talk))


def fits_with(asked: Request, setup: Setup, held: Memory) -> str:
    """``needs 92.1 GB of 72.0 GB usable per GPU (90% of 80.0 GB); fits with -tp 2 or -q fp8``"""
    per_device = (
        f"needs {size(held.total_bytes)} of {size(held.usable_bytes)} usable per GPU "
        f"({percent(asked.plan.gpu_memory_utilization)} of {size(held.capacity_bytes)})"
    )
    plan, ways = asked.plan, _layouts(asked, setup)
    for name in ("fp8", "w8a16", "w4a16"):
        if catalog.precision(plan.quantization).bits > catalog.precision(name).bits and _runs(asked.device, name):
            roles = precision.by_role(asked.model, plan.dtype, name)
            if _fits(asked, _again(asked, setup, plan=plan, roles=roles)):
                ways.append(f"-q {name}")
                break
    if catalog.precision(plan.kv_cache_dtype).bits > 8 and _fits(
        asked, _again(asked, setup, plan=_with(plan, kv_cache_dtype="fp8"))
    ):
        ways.append("--kv-cache-dtype fp8")
    if 0 < held.max_batch_size < asked.workload.batch_size:
        ways.append(f"--batch-size {held.max_batch_size}")
    return f"{per_device}; fits with {' or '.join(ways)}" if ways else f"{per_device}; no single change makes it fit"


def _layouts(asked: Request, setup: Setup) -> list[str]:
    """More GPUs that make it fit: tp inside a node, else tp or pp over several, or tp inside and pp between them."""
    plan = asked.plan
    tps, pps = (
        [{word: n} for n in (2, 4, 8, 16, 32, 64) if n > getattr(plan, word)]
        for word in ("tensor_parallel_size", "pipeline_parallel_size")
    )
    inside = [change for change in tps if _wider(asked, change).nodes <= plan.nodes]
    found = _first(asked, setup, inside)
    if found:
        return [found]
    if asked.model.kind != "decoder":
        return []
    ways = [way for way in (_first(asked, setup, tps), _first(asked, setup, pps)) if way]
    if len(ways) < 2:
        legal = [
            change for change in inside if not parallelism.reason(asked.model, _wider(asked, change), asked.device)
        ]
        both = _first(asked, setup, [{**legal[-1], **change} for change in pps]) if legal else ""
        ways += [both] if both else []
    return ways


def _first(asked: Request, setup: Setup, changes: list[dict[str, int]]) -> str:
    """The first of some layouts that is legal and fits, as flags."""
    for change in changes:
        plan = _wider(asked, change)
        if not parallelism.reason(asked.model, plan, asked.device) and _fits(asked, _again(asked, setup, plan=plan)):
            flags = " ".join(f"{_FLAGS[word]} {number}" for word, number in change.items())
            return flags + (f" ({plan.nodes} nodes)" if plan.nodes > asked.plan.nodes else "")
    return ""


def _wider(asked: Request, change: dict[str, int]) -> Plan:
    """The plan with another layout, and as many nodes as that needs."""
    plan, per_node = _with(asked.plan, **change), asked.plan.gpus_per_node
    if per_node == parallelism.usual_node(asked.device, asked.plan.gpus):
        per_node = parallelism.usual_node(asked.device, plan.gpus)
    return _with(plan, gpus_per_node=per_node, nodes=max(plan.nodes, -(-plan.gpus // per_node)))


def _runs(device: Hardware, name: str) -> bool:
    """Whether the device multiplies in that precision, or only stores weights in it."""
    native = catalog.precision(name).compute
    return not native or native[0] in device.flops


def _fits(asked: Request, setup: Setup) -> bool:
    held = memory_table(setup, conversation(setup, asked.workload))
    return held.total_bytes <= held.usable_bytes


def _with(plan: Plan, **changes: Any) -> Plan:
    return msgspec.structs.replace(plan, **changes)


def _again(asked: Request, setup: Setup, *, plan: Plan, roles: dict[str, str] | None = None) -> Setup:
    other = asked._replace(plan=plan, roles=roles or asked.roles).setup()
    return cache_offloaded(other, conversation(other, asked.workload))
