"""What limits a plan and what would help most: sentences backed by re-evaluation, not by rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..base.units import percent, seconds
from ..costs import parallelism
from ..costs.binding import BoundPlan
from . import memory
from .latency import Prediction, decode_seconds, predict, prefill_seconds
from .remedies import Change, cache_can_shrink, fits, is_smaller, roles_in, spelled, with_change, with_plan, works
from .report import TriedChange
from .workload import batch_shape_of

if TYPE_CHECKING:
    from .report import OpRow, OtherStagesRow, Phase, Report
    from .request import Request


_BOUND = {  # what a phase is, or does, while a bound holds
    "host": "is host-bound",
    "wait": "waits for other pipeline stages",
    "draft": "drafts tokens",
}


class Limit(NamedTuple):
    """What holds up a part of a phase, and the operator that is most of that part; shares are of the phase."""

    bound: str
    share: float
    operator: str
    operator_share: float


def limits(rows: Iterable[OpRow | OtherStagesRow]) -> list[Limit]:
    """The bounds of some operators, the largest first: ``limits(report.phases["decode"].ops)[0].bound  # 'memory'``"""
    by_bound: dict[str, dict[str, float]] = {}
    for row in rows:
        names = by_bound.setdefault(row.bound, {})
        names[row.name] = names.get(row.name, 0.0) + row.share
    largest = {bound: max(names.items(), key=lambda item: item[1]) for bound, names in by_bound.items()}
    return sorted(
        (Limit(bound, sum(names.values()), *largest[bound]) for bound, names in by_bound.items()),
        key=lambda limit: -limit.share,
    )


def bottleneck_summary(request: Request, bound_plan: BoundPlan, report: Report) -> str:
    """``Prefill is compute-bound for 86.3% of its 182 ms (largest: …); decode is … -q fp8 would cut TPOT by 41%.``"""
    called = {"prefill": "a denoising step"} if request.model.kind == "diffusion" else {}
    parts = [f"{called.get(name, name)} {_bottleneck_sentence(phase)}" for name, phase in report.phases.items()]
    sentence = "; ".join(parts) + "."
    if report.infeasibility:  # what would help is to make it work at all, which its reason says
        return f"If it {'fitted' if report.infeasibility.kind == 'memory' else 'ran'}: {sentence}"
    return f"{sentence[0].upper()}{sentence[1:]} {_best_single_change(request, bound_plan, report)}".strip()


def _bottleneck_sentence(phase: Phase) -> str:
    """What holds up most of a phase, and the runner-up where it is near: ``is compute-bound for … and …``"""
    first, *others = limits(phase.ops)
    text = f"{_bound(first.bound)} for {percent(first.share)} of its {seconds(phase.seconds)}{_details(phase, first)}"
    for second in others[:1]:
        if second.share > first.share / 2 or first.share < 0.5 < 10 * second.share:
            also = _bound(second.bound)
            also = also.removeprefix("is ") if text.startswith("is ") else also
            text += f" and {also} for {percent(second.share)}{_details(phase, second)}"
    return text


def _bound(bound: str) -> str:
    return _BOUND.get(bound, f"is {bound}-bound")


def _details(phase: Phase, limit: Limit) -> str:
    """What stands under a bound, in parentheses: its largest operator, its traffic, or what other stages do."""
    details = _operators(limit)
    if limit.bound == "wait" and phase.other_stages:
        there = limits(phase.other_stages)[0]
        share = there.share / sum(row.share for row in phase.other_stages)
        bound = _bound(there.bound).removeprefix("is ")
        details = [f"they are {bound} for {percent(share)} of that", *_operators(there)]
    elif limit.bound == "memory" and phase.memory_access:
        cache = (phase.load_kv_cache + phase.store_kv_cache) / phase.memory_access
        parts = {"weights": phase.load_weight / phase.memory_access, "KV cache": cache}
        shares = [f"{percent(share)} {name}" for name, share in parts.items() if share >= 0.0005]
        if shares:
            details.append(f"memory traffic: {', '.join(shares)}")
    return f" ({'; '.join(details)})" if details else ""


def _operators(limit: Limit) -> list[str]:
    """The largest operator under a bound; of rows that are no kernels only the host's has a name to tell."""
    if limit.bound in _BOUND:
        return ["host overhead"] if limit.bound == "host" else []
    share = percent(limit.operator_share)
    return [limit.operator if share == percent(limit.share) else f"largest: {limit.operator}, {share}"]


_TOUCHED: dict[str, Callable[[OpRow], bool]] = {  # the operators that weights of fewer bits make faster
    "fp8": lambda row: row.load_weight > 0,
    "w4a16": lambda row: row.load_weight > 0 and row.bound == "memory",  # they are multiplied in 16 bits
}


class _Alternative(NamedTuple):
    """A plan one change away, bound when it is first needed, and the operators that the change can make faster."""

    change: Change
    bound_plan: Callable[[], BoundPlan]
    touches: Callable[[OpRow], bool] = lambda row: True

    def most(self, phase: Phase) -> float:
        """A share of the phase that cannot be exceeded by what the change saves; the host's part follows kernels."""
        return sum(row.share for row in phase.ops if self.touches(row) or row.bound == "host")


def _best_single_change(request: Request, bound_plan: BoundPlan, report: Report) -> str:
    """The change that helps most, tried out on this plan."""
    best: dict[str, list[str]] = {}
    step = "the step" if request.model.kind == "diffusion" else "TTFT"
    alternatives = _alternatives(request, bound_plan)
    for name, label in (("prefill", step), ("decode", "TPOT")):
        if name not in report.phases:
            continue
        phase = report.phases[name]
        now = whole = phase.seconds
        if request.workload.turns and name == "decode":
            now = whole = _phase_seconds(bound_plan, request, name)
        elif name == "decode":
            now = whole = (report.metrics.tpot_ms or 0.0) / 1e3
        elif label == "TTFT" and not request.workload.turns:
            whole = (
                report.metrics.ttft_ms or 0.0
            ) / 1e3  # with the front end, which no change of the plan makes faster
        gain, change = 0.02, ""  # what is less is not worth a word
        for most, other in sorted(((o.most(phase), o) for o in alternatives), key=lambda pair: -pair[0]):
            if most <= gain:
                break
            saved = (now - _phase_seconds(other.bound_plan(), request, name)) / whole
            if saved > gain and fits(request, other.bound_plan()):
                gain, change = saved, spelled(other.change)
        if change:
            best.setdefault(change, []).append(f"{label} by {percent(gain)}")
    return "; ".join(f"{change} would cut {' and '.join(cuts)}" for change, cuts in best.items()) + "." if best else ""


def _alternatives(request: Request, bound_plan: BoundPlan) -> list[_Alternative]:
    """Plans one change away that the device supports."""
    plan = request.plan

    def bound(roles: dict[str, str] | None = None, **changes: Any) -> Callable[[], BoundPlan]:
        changed = msgspec.structs.replace(plan, **changes)
        return functools.cache(lambda: with_plan(request, bound_plan, plan=changed, roles=roles))

    alternatives = [
        _Alternative({"quantization": name}, bound(roles_in(request, name)), touches)
        for name, touches in _TOUCHED.items()
        if is_smaller(request, name)
    ]
    if cache_can_shrink(request) and memory.kv_bytes_per_token(bound_plan):
        smaller = bound(kv_cache_dtype="fp8")
        alternatives.append(
            _Alternative({"kv_cache_dtype": "fp8"}, smaller, lambda row: row.load_kv_cache + row.store_kv_cache > 0)
        )
    tp = 2 * plan.tensor_parallel_size
    wider = msgspec.structs.replace(plan, tensor_parallel_size=tp)
    if not parallelism.illegal_reason(request.model, wider, request.device) and request.model.kind == "decoder":
        alternatives.append(_Alternative({"tensor_parallel_size": tp}, bound(tensor_parallel_size=tp)))
    return alternatives


def _phase_seconds(bound_plan: BoundPlan, request: Request, phase: str) -> float:
    batch_shape = batch_shape_of(bound_plan, request.workload)
    return float((decode_seconds if phase == "decode" else prefill_seconds)(bound_plan, batch_shape))


# ------------------------------------------------------------------ a server's command


def worthwhile_changes(request: Request, own_flags: Callable[[Change], str]) -> list[TriedChange]:
    """Changes of one flag that make a figure of the plan better by 2% or more, each tried; the best first.

    ``own_flags`` spells a change as the engine does. A change that only takes more GPUs must serve more per GPU.
    """
    now = _predicted(request)
    kept: list[tuple[float, TriedChange]] = []
    for change in _single_changes(request):
        other = with_change(request, change)
        flags = own_flags(change)
        if other is None or not flags or not works(other):
            continue
        then = _predicted(other)
        names = ("ttft", "tpot", "output_throughput_per_gpu")
        moved = {name: _moved(getattr(now, name), getattr(then, name)) for name in names}
        gains = (-(moved["ttft"] or 0.0), -(moved["tpot"] or 0.0), moved["output_throughput_per_gpu"] or 0.0)
        if max(gains) >= WORTH_TRYING:
            note = next((w for w in other.warnings if "is assumed" in w and w not in request.warnings), "")
            tried = TriedChange(flags=flags, change=change, gpus=other.plan.gpus, note=note, **moved)
            kept.append((max(gains), tried))
    return [tried for _, tried in sorted(kept, key=lambda pair: -pair[0])]


WORTH_TRYING = 0.02


def _single_changes(request: Request) -> list[Change]:
    """One flag each: formats, layout, budget, graphs, drafts."""
    plan = request.plan
    changes: list[Change] = [{"quantization": "fp8"}] if is_smaller(request, "fp8") else []
    changes += [{"kv_cache_dtype": "fp8"}] if cache_can_shrink(request) else []
    tp = plan.tensor_parallel_size
    changes += [{"tensor_parallel_size": size} for size in (2 * tp, tp // 2) if size]
    if any(op.kind == "moe" for block in request.model.blocks for op in block.ops) and tp * plan.data_parallel_size > 1:
        changes.append({"enable_expert_parallel": not plan.enable_expert_parallel})
    budget = plan.max_num_batched_tokens
    changes += [{"max_num_batched_tokens": tokens} for tokens in (2 * budget, budget // 2) if tokens]
    if request.arguments.get("max_cudagraph_capture_size") == 0:
        changes.append({"max_cudagraph_capture_size": None})
    if request.model.extras and plan.speculation is None:
        changes.append({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}})
    elif plan.speculation is not None:
        changes.append({"speculative_config": None})
    return changes


def _predicted(request: Request) -> Prediction:
    bound_plan = request.bind()
    batch_shape = batch_shape_of(bound_plan, request.workload)
    return predict(memory.cache_offloaded(bound_plan, batch_shape), batch_shape, "all")


def _moved(before: float | None, after: float | None) -> float | None:
    return float(after / before - 1) if before and after else None
