"""Seconds along a growing context: for every number of sequences one row, straight lines between its nodes.

While a batch decodes, the mean context of its sequences grows by one token a step. So the seconds of k steps are a sum
of values that lie one apart on the row. With C(x) the sum of all values below x, straight between whole numbers, they
are C(x + k) - C(x), whatever fraction x begins with: 5,000 steps cost no more than 5, and how many steps fit into a
given time is found by looking that time up in C.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

CELLS = 16  # cells that an octave of contexts is cut into; below 128 tokens they are 8 wide
TOGETHER = 64  # rows that are worked out at once: arrays cost hardly more than single numbers
SHORT = 4096  # sums up to here are lists, which are read faster; longer ones are arrays, which take less room


class Rows:
    """``Rows(price, 4096, 256)``: rows up to a context and a number of sequences.

    ``price(n, context)`` gives seconds for arrays of both.
    """

    def __init__(self, price: Callable[[np.ndarray, np.ndarray], np.ndarray], longest: int, most: int) -> None:
        self.price, self.longest, self.most = price, longest, most
        edges, width = list(range(0, 8 * CELLS, 8)), 8
        while edges[-1] <= longest + 8:
            width = max(8, (1 << edges[-1].bit_length() - 1) // CELLS)
            edges.append(edges[-1] + width)
        self.nodes = np.array([*edges, edges[-1] + width], float)
        self.known: dict[int, list[float]] = {}
        self.sums: dict[int, Sequence[float]] = {}

    def row(self, n: int) -> list[float]:
        """Seconds of n sequences at the nodes."""
        found = self.known.get(n)
        if found is not None:
            return found
        first = (n - 1) // TOGETHER * TOGETHER + 1
        counts = np.arange(first, max(n, min(first + TOGETHER - 1, self.most)) + 1)
        values = self.price(counts[:, None].astype(float), self.nodes[None, :])
        values = np.broadcast_to(values, (len(counts), len(self.nodes)))
        self.known |= {count: line.tolist() for count, line in zip(counts.tolist(), values, strict=True)}
        return self.known[n]

    def one(self, n: int, total: float) -> float:
        """Seconds where n sequences have ``total`` tokens of context."""
        at = self.known.get(n) or self.row(n)
        mean = total / n
        whole = int(mean)
        shift = whole.bit_length() - 5 if whole >= 128 else 3
        cell = (whole >> shift) + ((shift - 3) << 4)
        start = at[cell]
        width = 1 << shift
        return start + (at[cell + 1] - start) * ((whole & width - 1) + mean - whole) / width

    def summed(self, n: int, upto: float) -> Sequence[float]:
        """C at whole numbers, beyond a context at least."""
        have = self.sums.get(n)
        if have is not None and len(have) > upto + 2:
            return have
        size = min(max(512, 2 << int(upto + 2).bit_length()), self.longest + 16)
        values = np.interp(np.arange(size), self.nodes, self.row(n))
        sums = np.concatenate([[0.0], np.cumsum(values)])
        found = self.sums[n] = sums.tolist() if size <= SHORT else array("d", sums.tobytes())
        return found

    def search(self, n: int, total: int, most: int, gap: float, more: int) -> tuple[int, float, float]:
        """Steps until ``gap`` seconds have passed and ``more`` steps after that, ``most`` at most and one at least.

        The first step has ``total`` tokens of context, each next one n more. Gives the steps, their seconds, and the
        seconds without the last one.
        """
        x = total / n
        end = x + most
        c = self.sums.get(n)
        if c is None or len(c) <= end + 2:
            c = self.summed(n, end)
        low = int(x)
        here = c[low] + (c[low + 1] - c[low]) * (x - low)
        whole = int(end)
        took = c[whole] + (c[whole + 1] - c[whole]) * (end - whole) - here
        steps = most
        if took >= gap:
            if gap > 0.0:
                place = bisect_right(c, here + gap, low, whole + 2) - 1
                steps = ceil(place + (here + gap - c[place]) / (c[place + 1] - c[place]) - x)
                steps = min(most, max(1, steps) + more)
            else:
                steps = 1
            if steps < most:
                end = x + steps
                whole = int(end)
                took = c[whole] + (c[whole + 1] - c[whole]) * (end - whole) - here
        if not more:
            return steps, took, 0.0
        end -= 1
        whole = int(end)
        return steps, took, c[whole] + (c[whole + 1] - c[whole]) * (end - whole) - here
