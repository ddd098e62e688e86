"""What was found, in a sentence or two: which figure a metric follows, what a target takes, what binds."""

from __future__ import annotations

from ..base.units import seconds, si, size
from .evaluation import METRICS
from .sensitivity_report import Figure, Row, Sensitivity, Size, Solution, Target, Tried
from .sizing import MOST
from .targets import REACH

TOLD = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "full_output_throughput": "output rate at full load"}
WORTH = 0.01  # a change that is worth a word
BINDING = {
    "weights": "memory for weights",
    "kv_cache": "memory for the KV cache",
    "layout": "layouts that the model allows",
    "flops": "FLOP/s",
    "memory_bandwidth": "memory bandwidth",
    "memory": "memory size",
    "links": "the links",
    "host": "time of the host and of starting kernels",
}


def amount(value: float | None, unit: str) -> str:
    """A figure as people write it: ``amount(4.8e12, "B/s")  # '4.80 TB/s'``"""
    if value is None:
        return "–"
    return seconds(value) if unit == "s" else si(value, unit)


def signed(change: float | None) -> str:
    """A relative change: ``signed(-0.072)  # '−7.2%'``; an exact zero has no sign."""
    if change is None:
        return "–"
    if change == 0:
        return "0"
    text = f"{abs(change) * 100:.1f}%"
    return f"{'−' if change < 0 else '+'}{text}" if text != "0.0%" else "±0.0%"


def times(factor: float | None) -> str:
    """``times(1.337)  # '×1.34'``"""
    return "–" if factor is None else f"×{factor:.3g}"


def binding(word: str) -> str:
    """What binds, in words: ``binding("tpot")  # 'TPOT'``"""
    return BINDING.get(word) or METRICS[word].label


# ------------------------------------------------------------------ figures and targets


def of_figures(found: Sensitivity) -> str:
    """``TPOT follows memory bandwidth (−7.2% with 10% more, +8.8% with 10% less); nothing else moves it by 1%.``"""
    told = [_follows(found, field, label) for field, label in TOLD.items()]
    aims = [of_target(word, target, found) for word, target in found.targets.items()]
    return " ".join(filter(None, [_room(found), *told, *aims]))


def _room(found: Sensitivity) -> str:
    """What an infeasible start takes of memory."""
    short = found.memory_needed / found.device["memory"]
    return f"It fits with {size(found.memory_needed)} of memory ({times(short)})." if short > 1 else ""


def _follows(found: Sensitivity, field: str, label: str) -> str:
    if getattr(found.metrics, field) is None:
        return ""
    if field.startswith("full_"):
        label += f" (batch {found.metrics.full_batch_size:,})"
    ranked = sorted(((_effect(f, field), f) for f in found.figures.values() if not f.within), key=lambda e: -e[0])
    (most, first), rest = ranked[0], ranked[1:]
    if most < WORTH:
        return f"No figure alone moves {label} by 1%."
    up, down = (signed(change.change[field]) for change in (first.up, first.down))
    others = [f"{name(f)} ({_both(f, field)})" for effect, f in rest if effect >= WORTH]
    then = f", then {', '.join(others)}" if others else ""
    return (
        f"{_capital(label)} follows {name(first)} ({up} with 10% more, {down} with 10% less){then}; nothing else "
        "moves it by 1%."
    )


def name(figure: Figure) -> str:
    """A figure in a sentence."""
    return figure.label.partition(",")[0]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _effect(figure: Figure, field: str) -> float:
    return max(abs(change.change[field] or 0.0) for change in (figure.up, figure.down))


def _both(figure: Figure, field: str) -> str:
    return f"{signed(figure.up.change[field])}, {signed(figure.down.change[field])}"


def of_target(word: str, target: Target, found: Sensitivity) -> str:
    """What one target takes, or leaves."""
    head = _capital(limit(word, target.limit))
    told = [(found.figures[key], one) for key, one in target.figures.items() if not found.figures[key].within]
    if target.holds:
        near = [(f, one) for f, one in told if one.factor is not None]
        if not near:
            return f"{head} holds ({_now(target)} now), and no figure alone breaks it within a factor of {2**REACH}."
        f, one = min(near, key=lambda pair: abs(_octaves(pair[1])))
        return f"{head} holds ({_now(target)} now) until {name(f)} is {_value(f, one)}."
    ways = [f"{name(f)} alone at {_value(f, one)}" for f, one in told if one.status == "reached"]
    return f"{head} ({_now(target)} now) takes {' or '.join(ways) or 'more than one figure'}."


def out_of_reach(word: str, target: Target) -> str:
    """A target that no figure alone can meet."""
    metric, aim = METRICS[word], limit(word, target.limit)
    bests = [one.best for one in target.figures.values() if one.best is not None]
    best = (min if metric.better < 0 else max)(bests, default=0.0)
    if any(one.status == "reached" for one in target.figures.values()):
        return f"{aim} takes all speeds at once: {metric.label} is {_now(target)} {metric.unit} now"
    return f"no figure alone brings {aim}: it is {_now(target)} now and {best:.4g} {metric.unit} at best"


def _now(target: Target) -> str:
    return "nothing" if target.now is None else f"{target.now:.4g}"


def limit(word: str, value: float) -> str:
    """``limit("tpot", 20)  # 'TPOT ≤ 20 ms'``"""
    metric = METRICS[word]
    return f"{metric.label} {'≤' if metric.better < 0 else '≥'} {value:.4g} {metric.unit}"


def _octaves(one: Solution) -> float:
    factor = one.factor or 1.0
    return max(factor, 1 / factor)


def _value(figure: Figure, one: Solution) -> str:
    value = f"{amount(one.value, figure.unit)} " if one.value is not None else ""
    return f"{value}({times(one.factor)})" if value else times(one.factor)


# ------------------------------------------------------------------ platforms


def of_sizes(found: Sensitivity, best: Tried | None) -> str:
    """``4 × h100-sxm (-tp 4) are the smallest platform; memory for weights binds: 2 GPUs need …``"""
    if best is None:
        return f"{_capital(found.reason or '')}."
    sized = next(s for s in found.size if s.found is best)
    many = "is" if best.gpus == 1 else "are"
    head = f"{best.gpus} × {best.gpu} ({best.layout}) {many} the smallest platform"
    if sized.smaller is None:
        return f"{head}: one GPU is enough, with {(best.memory_share or 0) * 100:.0f}% of its usable memory taken."
    fewer = sized.smaller
    where = f"{fewer.gpus} × {fewer.gpu}" + (f" ({fewer.layout})" if fewer.layout else "")
    return f"{head}; what binds is {binding(fewer.binding)}: {where}: {fewer.reason}."


def no_size(sizes: list[Size]) -> str:
    """Why nothing works."""
    names = " or ".join(one.gpu for one in sizes)
    told = [f"closest {_closest(one)}" for one in sizes]
    return f"no platform of up to {MOST} × {names} does it: {'; '.join(told)}"


def _closest(one: Size) -> str:
    near = one.smaller
    return "" if near is None else f"{near.gpus} × {near.gpu} ({near.layout}): {near.reason}"


# ------------------------------------------------------------------ models and use cases


def of_models(found: Sensitivity) -> str:
    """What keeping the first model's performance takes for each other."""
    first, *others = found.compare
    return " ".join(_model(first, other) for other in others)


def _model(first: Row, other: Row) -> str:
    lost, kept = [], " and ".join(METRICS[word].label for word in other.limits)
    for field, label in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
        before, after = getattr(first, field), getattr(other, field)
        if before and after:
            lost.append(f"{label} {times(after / before)}")
    stays = "" if other.fits else " and does not fit"
    d = other.demand
    if d.flops is None or d.memory_bandwidth is None:
        missed = " and ".join(
            label for label, factor in (("TTFT", d.flops), ("TPOT", d.memory_bandwidth)) if not factor
        )
        takes = f"no FLOP/s and bandwidth keep {missed}, because of {binding(d.binding)}"
    else:
        factors = f"FLOP/s {times(d.flops)}, bandwidth {times(d.memory_bandwidth)}, memory {times(d.memory)}"
        takes = f"keeping {kept} takes {factors}"
    best = other.size.found if other.size else None
    gpus = f"{best.gpus} × {best.gpu} ({best.layout}) keep {kept}" if best else f"no layout of up to {MOST} GPUs does"
    if not best and other.size:
        gpus += f" (closest {_closest(other.size)})"
    return f"On the same machine {other.label} has {', '.join(lost)}{stays}; {takes}; {gpus}."


def of_usecases(found: Sensitivity) -> str:
    """Who is served, and what the others lack."""
    met = [row.name for row in found.usecases if row.meets]
    lacking = [f"{row.name} ({binding(row.demand.binding)})" for row in found.usecases if not row.meets]
    served = f"This machine serves {', '.join(met)}" if met else "This machine serves none of them"
    return f"{served}; not {', '.join(lacking)}." if lacking else f"{served}: all of them."
