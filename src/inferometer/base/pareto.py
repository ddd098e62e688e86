"""Pareto fronts: the points that no other point beats in every respect."""

from __future__ import annotations

import numpy as np


def pareto_front(x: np.ndarray, y: np.ndarray, cost: np.ndarray | None = None) -> np.ndarray:
    """Indices of points that no other equals or beats in x, y (more is better) and cost (less is better), x falling.

    Of equal points the first stays: ``pareto_front(np.array([1, 2]), np.array([5, 4]))  # [1, 0]``. Without costs that
    is one walk along the sorted points; with costs every point is compared with those on the front so far.
    """
    if cost is None:
        order = np.lexsort((-y, -x))
        highest_before = np.maximum.accumulate(np.concatenate([[-np.inf], y[order][:-1]]))
        front: np.ndarray = order[y[order] > highest_before]
        return front
    kept: list[int] = []
    for n in np.lexsort((cost, -y, -x)).tolist():  # the points before it have as much x or more
        if not kept or not ((y[kept] >= y[n]) & (cost[kept] <= cost[n])).any():
            kept.append(n)
    return np.array(kept, int)


def undominated(costs: np.ndarray, groups: np.ndarray) -> list[int]:
    """Rows of ``costs`` [row, column] that no other of their group equals or beats in every column (less is better).

    Of equal rows the first stays: ``undominated(np.array([[1, 2], [2, 1], [2, 2]]), np.zeros(3))  # [0, 1]``
    """
    kept: list[int] = []
    order = np.lexsort((*costs.T[::-1], groups))
    for group in np.unique(groups):
        front: list[int] = []
        for n in (int(n) for n in order if groups[n] == group):
            if not front or not (costs[front] <= costs[n]).all(1).any():
                front.append(n)
        kept += front
    return sorted(kept)
