"""Figures on a grid of shapes, straight lines between its nodes: floats or arrays, NumPy only where there are arrays.

Coordinates are logarithms (base 2) of sizes. Beyond its last node a grid says what it says there: an efficiency stays
what it was at the edge of what is known.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import msgspec

from ..symbols import Value, scalar


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
            corners = [pair for at, weight in corners for pair in (
                (at * wide + low, weight * (1 - share)), (at * wide + low + 1, weight * share))]  # fmt: skip
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
