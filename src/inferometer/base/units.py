"""Numbers with units, for sentences and tables. Inside, everything is SI; GB = 1e9, GiB = 2**30."""

from __future__ import annotations

import math
from collections.abc import Iterable

_UP = 1 + 1e-12  # a five at the end is rounded away from zero, as JavaScript does
_BIG = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_LONG = ((730.5 * 86400, 365.25 * 86400, "years"), (172800, 86400, "days"), (7200, 3600, "h"), (600, 60, "min"))  # from


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up: how many blocks of ``b`` hold ``a`` tokens; ``ceil_div(33, 16)  # 3``"""
    return -(-a // b)


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """``si(3.35e12, "B/s")  # '3.35 TB/s'``"""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    if value == 0:
        return f"0 {unit}".rstrip()
    for scale, prefix in _BIG:
        if abs(value) >= scale * 0.9995:
            return f"{figure(value / scale, digits)} {prefix}{unit}".rstrip()
    return f"{figure(value, digits)} {unit}".rstrip()


def count(value: float) -> str:
    """Parameters as people say them: ``count(8.03e9)  # '8.03 B'``"""
    return si(value).replace("G", "B")


def size(value: float) -> str:
    """Bytes in decimal units: ``size(16.06e9)  # '16.1 GB'``"""
    return si(value, "B")


def seconds(value: float | None) -> str:
    """``seconds(0.00412)  # '4.12 ms'``, ``seconds(5e6)  # '57.9 days'``"""
    if value is None or math.isnan(value):
        return "–"
    for least, scale, unit in _LONG:
        if least <= abs(value) < math.inf:
            return f"{figure(value / scale)} {unit}"
    for scale, unit in _SMALL:
        if abs(value) >= scale * 0.9995:
            return f"{figure(value / scale)} {unit}"
    return "0 s" if value == 0 else f"{figure(value * 1e9)} ns"


def milliseconds(value: float | None) -> str:
    """A figure in ms with the unit that suits it: ``milliseconds(0.5)  # '500 µs'``"""
    return seconds(None if value is None else value / 1e3)


def percent(value: float) -> str:
    """``percent(0.1234)  # '12.3%'``, ``percent(0.0001)  # '<0.1%'``"""
    if 0 < value < 0.0005:
        return "<0.1%"
    return "100%" if 0.9995 <= value < 1.0005 else f"{value * _UP * 100:.1f}%"


def money(value: float | None, sign: str = "$") -> str:
    """Two decimals, three below a dollar: ``money(19.138)  # '$19.14'``, ``money(0.19138)  # '$0.191'``"""
    if value is None or math.isnan(value):
        return "–"
    size = abs(value)
    if size >= 999.995 or size < 0.0995:  # a cent is nothing beside it, or all of it
        return f"{sign}{figure(value)}"
    return f"{sign}{value * _UP:.{2 if size >= 0.9995 else 3}f}"


def plural(number: int, noun: str) -> str:
    """A number of things: ``plural(1, "GPU")  # '1 GPU'``, ``plural(1200, "request")  # '1,200 requests'``"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def either(texts: Iterable[str]) -> str:
    """Things to choose from: ``either(["-tp 2", "-q fp8", "--gpu h200"])  # '-tp 2, -q fp8 or --gpu h200'``"""
    *first, last = texts
    return f"{', '.join(first)} or {last}" if first else last


def figure(value: float | None, digits: int = 3) -> str:
    """So many significant digits, zeros too, as on the page: ``figure(11)  # '11.0'``, ``figure(1234.5)  # '1,235'``"""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    text = f"{value * _UP:#.{digits}g}"
    if "e" not in text:
        return text.rstrip(".")
    rounded = float(text)
    if abs(rounded) >= 1:
        return f"{math.copysign(math.floor(abs(value) + 0.5), value):,.0f}"
    return f"{rounded:.{digits - 1 - math.floor(math.log10(abs(rounded)))}f}"
