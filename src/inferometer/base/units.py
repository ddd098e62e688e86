"""Numbers with units, for sentences and tables. Inside, everything is SI; GB = 1e9, GiB = 2**30."""

from __future__ import annotations

import math
from collections.abc import Iterable

_BIG = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


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
            return f"{_digits(value / scale, digits)} {prefix}{unit}".rstrip()
    return f"{_digits(value, digits)} {unit}".rstrip()


def count(value: float) -> str:
    """Parameters as people say them: ``count(8.03e9)  # '8.03 B'``"""
    return si(value).replace("G", "B")


def size(value: float) -> str:
    """Bytes in decimal units: ``size(16.06e9)  # '16.1 GB'``"""
    return si(value, "B")


def seconds(value: float | None) -> str:
    """``seconds(0.00412)  # '4.12 ms'``"""
    if value is None or math.isnan(value):
        return "–"
    for scale, unit in _SMALL:
        if abs(value) >= scale * 0.9995:
            return f"{_digits(value / scale, 3)} {unit}"
    return "0 s" if value == 0 else f"{_digits(value * 1e9, 3)} ns"


def milliseconds(value: float | None) -> str:
    """A figure in ms with the unit that suits it: ``milliseconds(0.5)  # '500 µs'``"""
    return seconds(None if value is None else value / 1e3)


def percent(value: float) -> str:
    """``percent(0.1234)  # '12.3%'``"""
    return "100%" if 0.9995 <= value < 1.0005 else f"{value * 100:.1f}%"


def plural(number: int, noun: str) -> str:
    """A number of things: ``plural(1, "GPU")  # '1 GPU'``, ``plural(1200, "request")  # '1,200 requests'``"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def either(texts: Iterable[str]) -> str:
    """Things to choose from: ``either(["-tp 2", "-q fp8", "--gpu h200"])  # '-tp 2, -q fp8 or --gpu h200'``"""
    *first, last = texts
    return f"{', '.join(first)} or {last}" if first else last


def _digits(value: float, digits: int) -> str:
    whole_part = len(str(int(abs(value)))) if abs(value) >= 1 else 1
    text = f"{value:.{max(0, digits - whole_part)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and abs(value) >= 100 else text
