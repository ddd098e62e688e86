"""Surfaces over shapes: the grid of ratios that comes closest to measured rows, smooth where rows are few."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

Array = np.ndarray


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
    slope into the absurd; with it, it levels out.
    """
    sizes = [len(axis) for axis in axes]
    number = int(np.prod(sizes))
    form = np.zeros((number, number))
    flat = np.arange(number).reshape(sizes)
    for along, axis in enumerate(axes):
        lines = np.moveaxis(flat, along, -1).reshape(-1, sizes[along])
        for q in range(sizes[along] - 2):
            before, after = axis[q + 1] - axis[q], axis[q + 2] - axis[q + 1]
            scale = 2 / (before + after)
            bend = np.array([scale / before, -scale * (1 / before + 1 / after), scale / after])
            triple = lines[:, q : q + 3]
            for u, v in itertools.product(range(3), repeat=2):
                np.add.at(form, (triple[:, u], triple[:, v]), bend[u] * bend[v])
        for q in range(sizes[along] - 1):
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
) -> Array:
    """Values at the nodes: least squares, then again with less weight on rows that lie far off (medians count).

    ``smooth`` is the weight of bends against rows, ``level`` that of slopes against bends.
    """
    index, weight = corners(axes, places)
    form = roughness(axes, level)
    number, rows = len(form), len(places)
    form *= smooth * rows / number
    form[np.arange(number), np.arange(number)] += 1e-9 * rows / number
    trust = np.ones(rows)
    for _ in range(rounds):
        left, right = form.copy(), np.zeros(number)
        for u in range(index.shape[1]):
            np.add.at(right, index[:, u], weight[:, u] * values * trust)
            for v in range(index.shape[1]):
                np.add.at(left, (index[:, u], index[:, v]), weight[:, u] * weight[:, v] * trust)
        nodes: Array = np.linalg.solve(left, right)
        off = np.abs(values - (weight * nodes[index]).sum(axis=1))
        trust = 0.03 / np.maximum(off, 0.03)
    return nodes


def at(axes: Sequence[Sequence[float]], nodes: Array, places: Array) -> Array:
    """The surface at places."""
    index, weight = corners(axes, places)
    return (weight * nodes[index]).sum(axis=1)
