"""How much each figure of a machine moves what users see, a tenth up and a tenth down: rooflines have kinks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from ..base.errors import BadValue, abbreviate
from ..inference.analyze import model_info
from ..inference.request import Request, build_request
from ..inference.workload import refuse
from ..specs import catalog
from . import compare as comparing
from . import findings
from .evaluation import Reading, point, reading
from .parameters import Knob, knobs
from .sensitivity_report import Change, Curve, Figure, Sensitivity
from .sizing import laid_out, smallest
from .targets import known, met, targets

STEP = 0.1
FACTORS = tuple(2.0 ** (n / 2) for n in range(-4, 9))  # of curves: a quarter to sixteen times


def elasticities(request: Request, base: Reading) -> dict[str, Figure]:
    """Every figure by key: ``elasticities(asked, reading(asked))["memory_bandwidth"].up.elasticity["tpot_ms"]``"""
    return {key: _figure(request, base, knob) for key, knob in knobs(request).items()}


def _figure(request: Request, base: Reading, knob: Knob) -> Figure:
    up, down = (_change(request, base, knob, factor) for factor in (1 + STEP, 1 - STEP))
    return Figure(
        label=knob.label,
        unit=knob.unit,
        value=knob.value,
        used=knob.used,
        of=knob.of,
        within=knob.within,
        up=up,
        down=down,
    )


def _change(request: Request, base: Reading, knob: Knob, factor: float) -> Change:
    """An elasticity is the share of a change that arrives: ln(there/here) / ln(factor)."""
    there = asdict(reading(knob.turned(request, factor)) if knob.used else base)
    change: dict[str, float | None] = {}
    elasticity: dict[str, float | None] = {}
    for field, here in asdict(base).items():
        known = bool(here and there[field])
        change[field] = there[field] / here - 1 if known else None
        elasticity[field] = math.log(there[field] / here) / math.log(factor) if known else None
    return Change(factor=factor, change=change, elasticity=elasticity)


def scaled_curves(request: Request) -> dict[str, Curve]:
    """Latencies along every figure that the plan uses, far beyond a tenth: where more of it stops helping."""
    found = {}
    for key, knob in knobs(request).items():
        if knob.used and not knob.within:
            seen = [point(knob.turned(request, factor)).metrics() for factor in FACTORS]
            found[key] = Curve(
                factor=list(FACTORS), ttft_ms=[m.ttft_ms for m in seen], tpot_ms=[m.tpot_ms for m in seen]
            )
    return found


# ------------------------------------------------------------------ verb
# The verb: a machine's figures turned one by one, turned until a target holds, sized, or held against other tasks.
#
# sensitivity("llama-3.1-8b", gpu="h200", batch_size=8).summary
# sensitivity("llama-3.1-8b", gpu="h200", target="tpot:4").targets["tpot"].figures["memory_bandwidth"].value
# sensitivity("llama-3.1-70b", gpu="h100-sxm", size=True, batch_size=32).size[0].found.layout
# sensitivity("llama-2-7b", gpu="h100-sxm", compare="llama-2-70b").compare[1].demand.memory_bandwidth
# sensitivity("llama-3.1-8b", gpu="h100-sxm", compare_usecases=True).usecases[0].meets


LAYOUT = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nodes")
WORKLOAD = ("batch_size", "input_len", "output_len", "beam_width", "turns", "usecase")


def sensitivity(
    model: str | None = None,
    gpu: str = "h100-sxm",
    *,
    target: Any = None,
    size: bool = False,
    compare: str | Iterable[str] | None = None,
    compare_usecases: bool = False,
    curves: bool = False,
    **words: Any,
) -> Sensitivity:
    """What moves a plan's latency, throughput and cost, and what a target, a model or a use case needs of a machine.

    ``target`` is ``"tpot:20,ttft:500"`` or a mapping; without ``model``, the first of ``compare`` is the one that the
    others are held against. With ``curves``, latencies are also priced far beyond a tenth of each figure. All other
    keywords are those of ``analyze``.
    """
    limits = targets(target)
    asked_for = {"--size": size, "--compare": compare is not None, "--compare-usecases": compare_usecases}
    for flag, given in (("--size", size), ("--compare-usecases", compare_usecases)):
        if not isinstance(given, bool):
            raise BadValue(f"{flag} must be True or False, not {abbreviate(given)}")
    chosen = [flag for flag, given in asked_for.items() if given]
    if len(chosen) > 1:
        raise BadValue(f"{chosen[0]} and {chosen[1]} are two questions: ask one of them")
    names = comparing.words_of(compare) if compare is not None else []
    if model is None and not names:
        raise BadValue("sensitivity needs a MODEL, or --compare with the models to hold against each other")
    gpus = catalog.gpu_names(str(gpu))
    if len(gpus) > 1 and not size:
        raise BadValue("only --size looks at several GPU types; give one name to --gpu")
    if limits and chosen and not size:
        raise BadValue(f"--target cannot be combined with {chosen[0]}, which has limits of its own")
    first = model if model is not None else names.pop(0)

    def again(name: str, **more: Any) -> Request:
        return build_request(name, gpus[0], **{**words, **more})

    if size:
        return _sized([build_request(first, name, **words) for name in gpus], limits, words)
    if compare_usecases:
        refuse(
            "--compare-usecases brings lengths and batches of its own and cannot be combined with {}",
            {f"--{word.replace('_', '-')}": words.get(word) is not None for word in WORKLOAD}
            | {"--prefix-len": words.get("prefix_len")},
        )
    request = again(first)
    found = _about(request)
    if compare_usecases:
        if request.model.kind != "decoder":
            raise BadValue("--compare-usecases does not apply to a diffusion model: its use cases are conversations")
        found.usecases = comparing.usecases(request, lambda name, **more: again(first, **more))
        found.feasible, found.reason = True, None
        found.summary = findings.of_usecases(found)
    elif compare is not None:
        found.compare = comparing.models(request, found.metrics, names, again)
        if len(found.compare) < 2:
            raise BadValue(f"--compare needs another model than {request.model.name}")
        found.summary = findings.of_models(found)
    else:
        found.figures = elasticities(request, found.metrics)
        found.curves = scaled_curves(request) if curves else {}
        found.targets = {word: met(request, word, limit) for word, limit in limits.items()}
        found.summary = findings.of_figures(found)
        _unreachable(found)
    return found


def _about(request: Request) -> Sensitivity:
    """What was asked, and where it stands."""
    here, why = point(request), comparing.why_not(request)
    device = {k: v for k, v in msgspec.to_builtins(request.device).items() if k not in ("source", "aliases")}
    engine = {"name": request.engine.name, "label": request.engine.label, "version": request.engine.version}
    return Sensitivity(
        model=model_info(request),
        device=device,
        engine=engine,
        plan={**msgspec.to_builtins(request.plan), "gpus": request.plan.gpus},
        workload=msgspec.to_builtins(request.workload),
        feasible=why is None,
        reason=why,
        metrics=reading(request),
        memory_needed=here.needed,
        warnings=[*request.warnings, *here.bound_plan.notes],
    )


def _unreachable(found: Sensitivity) -> None:
    """A target that no figure alone can meet is a plan that cannot do what was asked."""
    for word, target in found.targets.items():
        if found.feasible and all(one.status == "never" for one in target.figures.values()):
            found.feasible, found.reason = False, findings.out_of_reach(word, target)


def _sized(request: list[Request], limits: Mapping[str, float], words: Mapping[str, Any]) -> Sensitivity:
    refuse(
        "--size chooses the layout itself and cannot be combined with {}",
        {f"--{word.replace('_', '-')}": words.get(word) not in (None, 1) for word in LAYOUT},
    )
    for one in request:
        for word in limits:
            if not word.startswith("full"):
                known(one, word)
    sizes = [smallest(one, limits) for one in request]
    able = [size.found for size in sizes if size.found]
    best = min(able, key=lambda one: (one.gpus, one.price_per_hour or 0.0), default=None)
    chosen = next(one for one, size in zip(request, sizes, strict=True) if not best or size.found is best)
    found = _about(laid_out(chosen, *best.ranks) if best and best.ranks else chosen)
    found.size = sizes
    found.feasible = best is not None
    found.reason = None if best else findings.no_size(sizes)
    found.summary = findings.of_sizes(found, best)
    return found
