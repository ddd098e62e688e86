"""How much each figure of a machine moves what users see, a tenth up and a tenth down: rooflines have kinks."""

from __future__ import annotations

import math

from msgspec.structs import asdict

from ..request import Request
from .knobs import Knob, knobs
from .reading import Reading, point, reading
from .report import Change, Curve, Figure

STEP = 0.1
FACTORS = tuple(2.0 ** (n / 2) for n in range(-4, 9))  # of curves: a quarter to sixteen times


def elasticities(asked: Request, base: Reading) -> dict[str, Figure]:
    """Every figure by key: ``elasticities(asked, reading(asked))["memory_bandwidth"].up.elasticity["tpot_ms"]``"""
    return {key: _figure(asked, base, knob) for key, knob in knobs(asked).items()}


def _figure(asked: Request, base: Reading, knob: Knob) -> Figure:
    up, down = (_change(asked, base, knob, factor) for factor in (1 + STEP, 1 - STEP))
    return Figure(label=knob.label, unit=knob.unit, value=knob.value, used=knob.used, of=knob.of, within=knob.within,
                  up=up, down=down)  # fmt: skip


def _change(asked: Request, base: Reading, knob: Knob, factor: float) -> Change:
    """An elasticity is the share of a change that arrives: ln(there/here) / ln(factor)."""
    there = asdict(reading(knob.turned(asked, factor)) if knob.used else base)
    change: dict[str, float | None] = {}
    elasticity: dict[str, float | None] = {}
    for field, here in asdict(base).items():
        known = bool(here and there[field])
        change[field] = there[field] / here - 1 if known else None
        elasticity[field] = math.log(there[field] / here) / math.log(factor) if known else None
    return Change(factor=factor, change=change, elasticity=elasticity)


def curves(asked: Request) -> dict[str, Curve]:
    """Latencies along every figure that the plan uses, far beyond a tenth: where more of it stops helping."""
    found = {}
    for key, knob in knobs(asked).items():
        if knob.used and not knob.within:
            seen = [point(knob.turned(asked, factor)).metrics() for factor in FACTORS]
            found[key] = Curve(
                factor=list(FACTORS), ttft_ms=[m.ttft_ms for m in seen], tpot_ms=[m.tpot_ms for m in seen]
            )
    return found
