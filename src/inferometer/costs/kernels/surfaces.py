"""Figures on a grid of shapes, straight lines between its nodes: floats or arrays, NumPy only where there are arrays.

Coordinates are logarithms (base 2) of sizes. Beyond its last node a grid says what it says there: an efficiency stays
what it was at the edge of what is known.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...base.symbols import Value, log2, maximum_of, scalar, ceil_of
from .source import Terms, joined


class Grid(msgspec.Struct, frozen=True):
    """``Grid([[0, 1], [0, 4]], [1, 2, 3, 4]).at(0.5, 0.0)  # 2.0``: axes of rising nodes, values row by row."""

    axes: list[list[float]]
    values: list[float]

    def at(self, *where: Value) -> Value:
        """The value at a place, one coordinate per axis; single numbers are put in first, then arrays together."""
        if all(map(scalar, where)):
            return _among(self.axes, self.values, where)
        values: Any = self.values
        sizes = [len(axis) for axis in self.axes]
        left: list[int] = []
        for index in range(len(sizes) - 1, -1, -1):  # last axis first: it is the one whose nodes lie side by side
            if scalar(where[index]):
                values = _narrowed(values, sizes, index, *_place(self.axes[index], float(where[index])))
                sizes[index] = 1
            else:
                left.insert(0, index)
        return _between([self.axes[i] for i in left], values, [where[i] for i in left])


def _place(axis: Sequence[float], x: float) -> tuple[int, float]:
    """The node before a coordinate, and how far it is to the next one."""
    if x <= axis[0] or len(axis) == 1:
        return 0, 0.0
    if x >= axis[-1]:
        return len(axis) - 2, 1.0
    low = bisect_right(axis, x) - 1
    return low, (x - axis[low]) / (axis[low + 1] - axis[low])


def _among(axes: list[list[float]], values: Sequence[float], where: Sequence[Value]) -> float:
    """Multilinear interpolation at one place: the corners around it, each by how close it is."""
    corners = [(0, 1.0)]
    for axis, x in zip(axes, where, strict=True):
        low, share = _place(axis, float(x))
        wide = len(axis)
        if share == 0.0:
            corners = [(at * wide + low, weight) for at, weight in corners]
        else:
            corners = [
                pair
                for at, weight in corners
                for pair in ((at * wide + low, weight * (1 - share)), (at * wide + low + 1, weight * share))
            ]
    return float(sum(values[at] * weight for at, weight in corners))


def _narrowed(values: Sequence[float], sizes: list[int], index: int, low: int, share: float) -> list[float]:
    """The values with one axis put in."""
    inner = math.prod(sizes[index + 1 :])
    outer, nodes = math.prod(sizes[:index]), sizes[index]
    found: list[float] = []
    for o in range(outer):
        start = (o * nodes + low) * inner
        if nodes == 1 or share == 0.0:
            found += values[start : start + inner]
        else:
            found += [values[i] + (values[i + inner] - values[i]) * share for i in range(start, start + inner)]
    return found


def _between(axes: list[list[float]], values: Sequence[float], where: list[Value]) -> Value:
    """Multilinear interpolation over arrays."""
    import numpy as np

    if len(axes) == 1:
        return np.interp(where[0], axes[0], values)
    table = np.asarray(values).reshape([len(axis) for axis in axes])
    lows, shares = [], []
    for axis, x in zip(axes, np.broadcast_arrays(*where), strict=True):
        nodes = np.asarray(axis)
        place = np.clip(x, nodes[0], nodes[-1])
        low = np.clip(np.searchsorted(nodes, place, side="right") - 1, 0, len(nodes) - 2)
        lows.append(low)
        shares.append((place - nodes[low]) / (nodes[low + 1] - nodes[low]))
    found: Any = 0.0
    for corner in range(1 << len(axes)):
        weight: Any = 1.0
        index = []
        for number, (low, share) in enumerate(zip(lows, shares, strict=True)):
            upper = corner >> number & 1
            weight = weight * (share if upper else 1 - share)
            index.append(low + upper)
        found = found + weight * table[tuple(index)]
    return found


# ------------------------------------------------------------------ shapes
# Kernels by shape: for each kind, what is looked up exactly, what lies on a curve, and on which sheet of figures.
#
# A figure is a ratio, seconds over a plain base: ``start + ‖compute, memory‖₃`` at the peaks of the device. It is flat
# where the roofline is right and changes slowly elsewhere, so straight lines between few nodes follow it, and it carries
# over to another device of the kind.


Dims = Mapping[str, Value]
TILE = 128  # cached positions that decode kernels take at once (FlashAttention 3 with heads of 128)


class Shape(NamedTuple):
    """One kind of kernel: ``words`` name its fixed sizes, ``along`` are the coordinates that vary from step to step."""

    start: float  # s that even the smallest call takes, roughly
    words: tuple[str, ...]  # sizes of the weight or the heads: measured curves are keyed by them
    along: Callable[[Dims], tuple[Value, ...]]  # what varies from step to step, in log2
    rest: Callable[[Dims], tuple[Value, ...]]  # the fixed sizes as coordinates, in log2: a surface has them as axes
    padded: Callable[[Dims], Value] = lambda d: 1.0  # how much more it does than asked, because it works in tiles
    wide: int = 0  # the coordinate that grows with the work alone: on a slower device it takes less of it to fill time
    compute: bool = False  # that work is FLOPs, not bytes

    def places(self, dims: Dims, faster: float = 0.0) -> tuple[Value, ...]:
        """Coordinates on a surface of a device that is ``faster`` by so many octaves: where it takes the same time.

        How much of its speed a kernel reaches depends on how long it runs: launches, waves and latencies are much the
        same on all devices. So a small shape on a slow device is like a larger one on a fast device.
        """
        found = [*self.along(dims), *self.rest(dims)]
        if faster:
            found[self.wide] = found[self.wide] + faster
        return tuple(found)

    def fixed(self, sizes: tuple[float, ...]) -> tuple[Value, ...]:
        """The fixed coordinates of an exact shape: ``SHAPES["linear"].fixed((4096.0, 1024.0))  # (12.0, 10.0)``"""
        return self.rest(dict(zip(self.words, sizes, strict=True)))

    def exact(self, dims: Dims) -> tuple[Value, ...]:
        """The sizes that a measured curve is keyed by."""
        return tuple(dims[word] for word in self.words)

    def base(self, terms: Terms, dims: Dims) -> Value:
        """Seconds that a ratio is of."""
        return self.start + joined(terms.compute, terms.memory, 3) * self.padded(dims)


def _log(value: Value) -> Value:
    return log2(maximum_of(value, 1e-9))


def _context(d: Dims) -> Value:
    """Positions that a sequence's decoding walks over, in whole tiles of the cache.

    A batch of one length crosses a tile's edge all at once; in a mixed one the last tile is half full on average.
    """
    mean = d["kv"] / maximum_of(d["seqs"], 1e-9)
    whole = d["alike"] * (TILE * ceil_of(mean / TILE)) + (1 - d["alike"]) * (mean + TILE / 2)
    return mean + (whole - mean) * (mean > TILE)  # within one tile it is latency that counts


def _tiles(d: Dims) -> Value:
    return _context(d) * d["seqs"] / maximum_of(d["kv"], 1e-9)


def _length(d: Dims) -> Value:
    """The prompt whose queries see as many keys on average as these do."""
    return 2 * d["pairs"] / maximum_of(d["tokens"], 1e-9)


SHAPES: dict[str, Shape] = {
    "linear": Shape(
        2e-6,
        ("n", "k"),
        lambda d: (_log(d["m"]),),
        lambda d: (_log(d["n"]), _log(d["k"])),
        wide=1,
    ),
    "decode_attention": Shape(
        5e-6,
        ("heads", "kv_heads", "qk_dim"),
        lambda d: (_log(d["seqs"] * d["kv_heads"]), _log(_context(d))),
        lambda d: (_log(d["heads"] / d["kv_heads"]),),
        _tiles,
    ),
    "prefill_attention": Shape(
        5e-6,
        ("heads", "kv_heads", "qk_dim"),
        lambda d: (_log(d["tokens"] * d["heads"]), _log(_length(d))),
        lambda d: (_log(d["heads"]),),
        compute=True,
    ),
    "moe": Shape(
        1e-5,
        ("hidden", "inner", "experts", "top_k"),
        lambda d: (_log(d["rows"] / d["experts"]),),
        lambda d: (_log(d["hidden"] * d["inner"]), _log(d["experts"]), _log(d["top_k"])),
        wide=1,
    ),
}


def head_sheet(label: str, known: Mapping[str, object], cache: str) -> str:
    """The sheet of a head's sizes and a cache format, the nearest if there is none: ``head_sheet("96", …)  # '128'``

    Latent attention (keys and values of different sizes) runs other kernels and has sheets of its own.
    """
    tail = "-fp8" if cache == "fp8" else ""
    able = [word for word in known if word.endswith("-fp8") == bool(tail) and ("x" in word) == ("x" in label)]
    if not able:
        return head_sheet(label, known, "") if tail and known else ""
    best = min(able, key=lambda word: (abs(_octaves(word, label)), word))
    return best if abs(_octaves(best, label)) <= 0.6 else ""


def _octaves(a: str, b: str) -> float:
    """How far apart two heads are in size, keys and values together."""
    sizes = [[float(x) for x in word.removesuffix("-fp8").split("x")] for word in (a, b)]
    return float(log2((sizes[0][0] + sizes[0][-1]) / (sizes[1][0] + sizes[1][-1])))
