"""Surfaces over shapes: the grid of ratios that comes closest to measured rows, smooth where rows are few."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from monotone import Least, raised

Array = np.ndarray
STIFF = 100.0  # weight of a difference that is kept against the rows of a node
BREAK = 0.09  # octaves, 16 rows to 17: two nodes so near stand on both sides of a jump, which is no bend


def corners(axes: Sequence[Sequence[float]], places: Array) -> tuple[Array, Array]:
    """The nodes around each place (as indices into the flat grid) and their weights."""
    sizes = [len(axis) for axis in axes]
    strides = [int(np.prod(sizes[j + 1 :])) for j in range(len(axes))]
    lows, shares = [], []
    for number, axis in enumerate(axes):
        nodes = np.asarray(axis, float)
        x = np.clip(places[:, number], nodes[0], nodes[-1])
        low = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(nodes) - 2)
        lows.append(low)
        shares.append((x - nodes[low]) / (nodes[low + 1] - nodes[low]))
    index = np.zeros((len(places), 2 ** len(axes)), int)
    weight = np.ones((len(places), 2 ** len(axes)))
    for corner, bits in enumerate(itertools.product((0, 1), repeat=len(axes))):
        for number, upper in enumerate(bits):
            index[:, corner] += (lows[number] + upper) * strides[number]
            weight[:, corner] *= shares[number] if upper else 1 - shares[number]
    return index, weight


def roughness(axes: Sequence[Sequence[float]], level: float) -> Array:
    """The quadratic form that punishes bends along each axis, and a little every slope.

    Where rows are, they outweigh it. Where there are none, a surface without the second part would go on with its last
    slope into the absurd; with it, it levels out. A jump between two kernels is neither bend nor slope.
    """
    sizes = [len(axis) for axis in axes]
    number = int(np.prod(sizes))
    form = np.zeros((number, number))
    flat = np.arange(number).reshape(sizes)
    for along, axis in enumerate(axes):
        lines = np.moveaxis(flat, along, -1).reshape(-1, sizes[along])
        for q in range(sizes[along] - 2):
            before, after = axis[q + 1] - axis[q], axis[q + 2] - axis[q + 1]
            if min(before, after) < BREAK:
                continue
            scale = 2 / (before + after)
            bend = np.array([scale / before, -scale * (1 / before + 1 / after), scale / after])
            triple = lines[:, q : q + 3]
            for u, v in itertools.product(range(3), repeat=2):
                np.add.at(form, (triple[:, u], triple[:, v]), bend[u] * bend[v])
        for q in range(sizes[along] - 1):
            if axis[q + 1] - axis[q] < BREAK:
                continue
            slope = np.array([-1.0, 1.0]) / (axis[q + 1] - axis[q])
            pair = lines[:, q : q + 2]
            for u, v in itertools.product(range(2), repeat=2):
                np.add.at(form, (pair[:, u], pair[:, v]), level * slope[u] * slope[v])
    return form


def fit(
    axes: Sequence[Sequence[float]],
    places: Array,
    values: Array,
    *,
    smooth: float = 0.02,
    level: float = 0.1,
    rounds: int = 3,
    floors: Least | None = None,
) -> Array:
    """Values at the nodes: least squares, then again with less weight on rows that lie far off (medians count).

    ``smooth`` is the weight of bends against rows, ``level`` that of slopes against bends; ``floors`` are differences
    of neighbours that the nodes keep.
    """
    index, weight = corners(axes, places)
    form = roughness(axes, level)
    number, rows = len(form), len(places)
    form *= smooth * rows / number
    form[np.arange(number), np.arange(number)] += 1e-9 * rows / number
    trust = np.ones(rows)
    pairs = (index[:, :, None] * number + index[:, None, :]).ravel()
    products = weight[:, :, None] * weight[:, None, :]
    width = 2 * number // len(axes[0])  # a bend joins three nodes in a row: those of two layers and of the next two
    for _ in range(rounds):
        seen = np.bincount(pairs, (products * trust[:, None, None]).ravel(), number * number)
        left = form + seen.reshape(number, number)
        right = np.bincount(index.ravel(), (weight * (values * trust)[:, None]).ravel(), number)
        nodes = solve(left, right, width)
        off = np.abs(values - (weight * nodes[index]).sum(axis=1))
        trust = 0.03 / np.maximum(off, 0.03)
    return nodes if floors is None else _kept(left, right, nodes, floors, STIFF * rows / number, width)


def solve(left: Array, right: Array, width: int) -> Array:
    """``np.linalg.solve`` of a form that joins only neighbouring blocks of ``width`` nodes: there and back."""
    blocks = [slice(at, min(at + width, len(right))) for at in range(0, len(right), width)]
    carried: list[tuple[Array, Array]] = []  # of each block: its share of the next one, and its own values without it
    for number, here in enumerate(blocks):
        form, force = left[here, here], right[here]
        if number:
            before = left[here, blocks[number - 1]]
            form, force = form - before @ carried[-1][0], force - before @ carried[-1][1]
        after = left[here, blocks[number + 1]] if number + 1 < len(blocks) else np.zeros((len(force), 0))
        solved = np.linalg.solve(form, np.column_stack((after, force)))
        carried.append((solved[:, :-1], solved[:, -1]))
    parts: list[Array] = []
    for share, own in reversed(carried):
        parts.insert(0, own - share @ parts[0] if parts else own)
    return np.concatenate(parts)


def _kept(left: Array, right: Array, nodes: Array, floors: Least, stiff: float, width: int, tries: int = 30) -> Array:
    """The least squares under differences: those that are broken become springs, until they are the same ones again."""
    broken = np.zeros(len(floors.low), bool)
    form, force = left.copy(), right.copy()
    for _ in range(tries):
        before, broken = broken, nodes[floors.high] - nodes[floors.low] < floors.least
        if np.array_equal(before, broken):
            break
        changed = before != broken
        low, high, least = (part[changed] for part in floors)
        spring = np.where(broken[changed], stiff, -stiff)  # put in, or taken out
        for u, v, sign in ((low, low, 1), (high, high, 1), (low, high, -1), (high, low, -1)):
            np.add.at(form, (u, v), sign * spring)
        np.add.at(force, high, spring * least)
        np.add.at(force, low, -spring * least)
        nodes = solve(form, force, width)
    return nodes


def rising(axes: Sequence[Sequence[float]], values: Array, floors: Least) -> Array:
    """The values nearest to given ones that keep all differences."""
    width = len(values) // len(axes[0])
    return raised(_kept(np.eye(len(values)), values, values, floors, STIFF, width), floors)


def at(axes: Sequence[Sequence[float]], nodes: Array, places: Array) -> Array:
    """The surface at places."""
    index, weight = corners(axes, places)
    return (weight * nodes[index]).sum(axis=1)
