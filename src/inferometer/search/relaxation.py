"""What would make a plan possible where none is: every answer is a search of its own that found one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.errors import InferometerError
from ..specs.catalog import hardware
from .plan_table import Book, worst
from .search_result import Relaxation, Search

MORE_GPUS = (2, 4, 8, 16)
SMALLER = ("fp8", "nvfp4", "mxfp4", "w4a16")  # precisions, in the order they are tried
TRIES = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)  # times what the means say that a limit would have to be


def relaxations(
    search: Callable[..., Search],
    again: dict[str, Any],
    book: Book | None,
    limits: dict[str, float],
    rate: float | None,
    gpus: int,
    progress: Callable[[str, int], None] | None,
) -> list[Relaxation]:
    """One answer of each kind that has one: another limit, a lower rate, more GPUs, another precision."""
    tries = [0]

    def attempt(**changes: Any) -> Search | None:
        tries[0] += 1
        if progress is not None:
            progress("relaxing", tries[0])
        try:
            found = search(**{**again, "num_gpus": gpus, "goodput": limits, "request_rate": rate, **changes})
        except InferometerError:
            return None
        return found if found.feasible else None

    found: list[Relaxation] = []
    for name in limits:
        found += _limit(name, limits, book, attempt)
    if not found and len(limits) > 1 and book is not None:
        found += _together(limits, book, attempt)
    if rate is not None and limits:
        one = attempt(request_rate=None)
        if one is not None and one.winner is not None and one.winner.trial is not None:
            found.append(_told(f"--request-rate {_down(one.winner.trial.request_rate)}", one))
    for times in MORE_GPUS:
        one = attempt(num_gpus=times * gpus)
        if one is not None:
            found.append(_told(f"--num-gpus {times * gpus}", one))
            break
    tried = again.get("quantization")
    for word in SMALLER:
        if (tried is None and word == "fp8") or not _knows(again["gpu"], word):
            continue
        one = attempt(quantization=word)
        if one is not None:
            found.append(_told(f"-q {word}", one))
            break
    return found


def _limit(
    name: str, limits: dict[str, float], book: Book | None, attempt: Callable[..., Search | None]
) -> list[Relaxation]:
    """The smallest value of one limit that a plan keeps together with the others, as far as it is tried."""
    least = _least(name, book) if book is not None else None
    if least is None:
        return []
    for times in TRIES:
        value = _up(max(least * times * 1e3, limits[name]))
        one = attempt(goodput={**limits, name: value})
        if one is not None:
            return [_told(f"--goodput {name}:{value:g}", one)]
    return []


def _together(limits: dict[str, float], book: Book, attempt: Callable[..., Search | None]) -> list[Relaxation]:
    """All limits by one factor: what the closest plan misses them by, and more if need be."""
    off = float(book.plans.miss.min())
    for times in TRIES:
        wider = {name: _up(limit * max(off * times, 1.0)) for name, limit in limits.items()}
        one = attempt(goodput=wider)
        if one is not None:
            return [_told("--goodput " + ",".join(f"{name}:{value:g}" for name, value in wider.items()), one)]
    return []


def _least(name: str, book: Book) -> float | None:
    """By the means: the lowest figure of any plan that keeps the other limits; None if none does."""
    p = book.plans
    others = book.aim._replace(limits={word: limit for word, limit in book.aim.limits.items() if word != name})
    figures = {"ttft": p.late, "tpot": p.tpot, "e2el": p.late + (book.traffic.output_len - 1) * p.tpot}
    prices = book.prices
    if not book.traffic.rate:  # any load would do
        able = prices.fits.any(2) & (prices.rate > 0)
        late, tpot = np.broadcast_arrays(prices.ttft, prices.tpot)
        kept = able & (worst(others, book.traffic, late, tpot) <= 1)
        whole = {"ttft": late, "tpot": tpot, "e2el": late + (book.traffic.output_len - 1) * tpot}
        return float(whole[name][kept].min()) if kept.any() else None
    kept = (worst(others, book.traffic, p.late, p.tpot) <= 1) & (p.verdict < 2)
    return float(figures[name][kept].min()) if kept.any() else None


def _knows(gpus: list[str], word: str) -> bool:
    """Whether a GPU multiplies the precision, or reads it faster than it would the checkpoint's."""
    needs = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}
    return word not in needs or all(
        any(key.startswith(needs[word]) or key == word for key in hardware(gpu).flops) for gpu in gpus
    )


def _told(change: str, found: Search) -> Relaxation:
    assert found.winner is not None
    return Relaxation(change=change, plan=found.winner.label, simulated=found.winner.trial is not None)


def _up(value: float) -> float:
    """Rounded up to two digits: ``_up(613)  # 620.0``"""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.6g}")


def _down(value: float) -> str:
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.floor(value / step + 1e-9) * step:.6g}"
