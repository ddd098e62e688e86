"""The result in a sentence or two: which parameter a metric follows, what a target takes, what binds."""

from __future__ import annotations

from ..base.units import seconds, si, size
from .evaluation import METRICS
from .sensitivity_report import ComparisonRow, ParameterEffect, Platform, Sensitivity, Size, Solution, Target
from .sizing import MAX_GPUS
from .targets import REACH

FOLLOWED = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "full_output_throughput": "output throughput at full load"}
NOTABLE = 0.01  # the smallest relative change that a summary mentions
BINDING = {
    "weights": "memory for weights",
    "kv_cache": "memory for the KV cache",
    "layout": "the layouts that the model allows",
    "flops": "FLOP/s",
    "memory_bandwidth": "memory bandwidth",
    "memory": "memory size",
    "links": "the links",
    "host": "host time and kernel start-up",
}


# ------------------------------------------------------------------ numbers and names


def with_unit(value: float | None, unit: str) -> str:
    """A parameter's value as people write it: ``with_unit(4.8e12, "B/s")  # '4.80 TB/s'``"""
    if value is None:
        return "–"
    return seconds(value) if unit == "s" else si(value, unit)


def percent_change(change: float | None) -> str:
    """A relative change: ``percent_change(-0.072)  # '−7.2%'``; an exact zero has no sign."""
    if change is None:
        return "–"
    if change == 0:
        return "0"
    text = f"{abs(change) * 100:.1f}%"
    return f"{'−' if change < 0 else '+'}{text}" if text != "0.0%" else "±0.0%"


def factor_text(factor: float | None) -> str:
    """``factor_text(1.337)  # '×1.34'``"""
    return "–" if factor is None else f"×{factor:.3g}"


def binding_text(binding: str) -> str:
    """What binds, as text: ``binding_text("tpot")  # 'TPOT'``"""
    return BINDING.get(binding) or METRICS[binding].label


def limit_text(metric_name: str, value: float) -> str:
    """``limit_text("tpot", 20)  # 'TPOT ≤ 20 ms'``"""
    metric = METRICS[metric_name]
    return f"{metric.label} {'≤' if metric.better < 0 else '≥'} {value:.4g} {metric.unit}"


def short_label(effect: ParameterEffect) -> str:
    """A parameter in a sentence: ``FLOP/s`` of ``FLOP/s, all formats``."""
    return effect.label.partition(",")[0]


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


# ------------------------------------------------------------------ parameters and targets


def parameters_summary(report: Sensitivity) -> str:
    """``TPOT depends most on memory bandwidth (−7.2% for 10% more, +8.8% for 10% less); …``"""
    followed = [_follows(report, field, label) for field, label in FOLLOWED.items()]
    targets = [target_sentence(metric, target, report) for metric, target in report.targets.items()]
    return " ".join(filter(None, [_memory_sentence(report), *followed, *targets]))


def _memory_sentence(report: Sensitivity) -> str:
    """The memory that an infeasible plan takes; empty if it fits."""
    factor = report.memory_needed / report.device["memory"]
    if factor <= 1:
        return ""
    return f"It fits with {size(report.memory_needed)} of memory ({factor_text(factor)})."


def _follows(report: Sensitivity, field: str, label: str) -> str:
    """The parameters that move a metric, the strongest first; empty if the plan has no such metric."""
    if getattr(report.metrics, field) is None:
        return ""
    if field.startswith("full_"):
        label += f" (batch {report.metrics.full_batch_size:,})"
    alone = [effect for effect in report.figures.values() if not effect.within]
    ranked = sorted(((_largest_change(e, field), e) for e in alone), key=lambda pair: -pair[0])
    (most, first), rest = ranked[0], ranked[1:]
    if most < NOTABLE:
        return f"No single figure changes {label} by 1%."
    up, down = (percent_change(change.change[field]) for change in (first.up, first.down))
    others = [f"{short_label(e)} ({_up_and_down(e, field)})" for change, e in rest if change >= NOTABLE]
    then = f", then {', '.join(others)}" if others else ""
    return (
        f"{_capitalized(label)} depends most on {short_label(first)} ({up} for "
        f"10% more, {down} for 10% less){then}; nothing "
        "else changes it by 1%."
    )


def _largest_change(effect: ParameterEffect, field: str) -> float:
    return max(abs(change.change[field] or 0.0) for change in (effect.up, effect.down))


def _up_and_down(effect: ParameterEffect, field: str) -> str:
    return f"{percent_change(effect.up.change[field])}, {percent_change(effect.down.change[field])}"


def target_sentence(metric_name: str, target: Target, report: Sensitivity) -> str:
    """What one target takes, or leaves."""
    head, now = _capitalized(limit_text(metric_name, target.limit)), _now(metric_name, target)
    pairs = [(report.figures[key], one) for key, one in target.figures.items() if not report.figures[key].within]
    if target.holds:
        bounded = [(effect, one) for effect, one in pairs if one.factor is not None]
        if not bounded:
            return f"{head} is met (now {now}), and no single figure breaks it within a factor of {2**REACH}."
        effect, one = min(bounded, key=lambda pair: _distance(pair[1]))
        return f"{head} is met (now {now}) until {short_label(effect)} is {_solution_text(effect, one)}."
    ways = [f"{short_label(e)} of {_solution_text(e, one)}" for e, one in pairs if one.status == "reached"]
    return f"{head} (now {now}) needs {' or '.join(ways) or 'changes to more than one figure'}."


def unreachable_reason(metric_name: str, target: Target) -> str:
    """Why a plan is infeasible that has a target which no parameter alone can meet."""
    metric, limit = METRICS[metric_name], limit_text(metric_name, target.limit)
    bests = [one.best for one in target.figures.values() if one.best is not None]
    best = (min if metric.better < 0 else max)(bests, default=0.0)
    if any(one.status == "reached" for one in target.figures.values()):
        return f"{limit} needs all speeds to rise together: {metric.label} is now {_now(metric_name, target)}"
    return (
        f"no single figure reaches {limit}: it is now {_now(metric_name, target)}, and {best:.4g} {metric.unit} at best"
    )


def _now(metric_name: str, target: Target) -> str:
    return "–" if target.now is None else f"{target.now:.4g} {METRICS[metric_name].unit}"


def _distance(one: Solution) -> float:
    """How far the parameter is from its value now, as a factor of at least 1."""
    factor = one.factor or 1.0
    return max(factor, 1 / factor)


def _solution_text(effect: ParameterEffect, one: Solution) -> str:
    value = f"{with_unit(one.value, effect.unit)} " if one.value is not None else ""
    return f"{value}({factor_text(one.factor)})" if value else factor_text(one.factor)


# ------------------------------------------------------------------ platforms


def platform_summary(report: Sensitivity, best: Platform | None) -> str:
    """``The smallest platform is 4 × h100-sxm (-tp 4). The limit is memory for weights: 2 GPUs need …``"""
    if best is None:
        return f"{_capitalized(report.reason or '')}."
    chosen = next(one for one in report.size if one.smallest is best)
    head = f"The smallest platform is {best.gpus} × {best.gpu} ({best.layout})"
    if chosen.smaller is None:
        return f"{head}, with {(best.memory_share or 0) * 100:.0f}% of its usable memory in use."
    smaller = chosen.smaller
    where = f"{smaller.gpus} × {smaller.gpu}" + (f" ({smaller.layout})" if smaller.layout else "")
    return f"{head}. The limit is {binding_text(smaller.binding)}: {where}: {smaller.reason}."


def no_platform_reason(sizes: list[Size]) -> str:
    """Why no platform works."""
    names = " or ".join(one.gpu for one in sizes)
    closest = [f"closest {_closest(one)}" for one in sizes]
    return f"no platform of up to {MAX_GPUS} × {names} meets it: {'; '.join(closest)}"


def _closest(one: Size) -> str:
    near = one.smaller
    return "" if near is None else f"{near.gpus} × {near.gpu} ({near.layout}): {near.reason}"


# ------------------------------------------------------------------ models and use cases


def models_summary(report: Sensitivity) -> str:
    """What keeping the first model's performance takes for each other."""
    first, *others = report.compare
    return " ".join(_model_sentence(first, other) for other in others)


def _model_sentence(first: ComparisonRow, other: ComparisonRow) -> str:
    lost, kept = [], " and ".join(METRICS[metric].label for metric in other.limits)
    for field, label in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
        before, after = getattr(first, field), getattr(other, field)
        if before and after:
            lost.append(f"{label} {factor_text(after / before)}")
    stays = "" if other.fits else " and does not fit"
    best = other.size.smallest if other.size else None
    gpus = (
        f"{best.gpus} × {best.gpu} ({best.layout}) match {kept}" if best else f"no layout of up to {MAX_GPUS} GPUs does"
    )
    if not best and other.size:
        gpus += f" (closest {_closest(other.size)})"
    return f"On the same machine, {other.label} has {', '.join(lost)}{stays}; {_demand_clause(other, kept)}; {gpus}."


def _demand_clause(row: ComparisonRow, kept: str) -> str:
    d = row.demand
    if d.flops is None or d.memory_bandwidth is None:
        pairs = (("TTFT", d.flops), ("TPOT", d.memory_bandwidth))
        missed = " and ".join(label for label, factor in pairs if not factor)
        return f"no amount of FLOP/s and bandwidth matches {missed}, because of {binding_text(d.binding)}"
    flops, bandwidth, memory = map(factor_text, (d.flops, d.memory_bandwidth, d.memory))
    return f"matching {kept} takes FLOP/s {flops}, bandwidth {bandwidth}, memory {memory}"


def usecases_summary(report: Sensitivity) -> str:
    """Which use cases the machine serves, and what the others lack."""
    met = [row.name for row in report.usecases if row.meets]
    lacking = [f"{row.name} ({binding_text(row.demand.binding)})" for row in report.usecases if not row.meets]
    served = f"This machine serves {', '.join(met)}" if met else "This machine serves none of them"
    return f"{served}; not {', '.join(lacking)}." if lacking else f"{served}: all of them."
