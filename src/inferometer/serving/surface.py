"""Seconds of the prompts' attention in a step, from three sums: new tokens, pairs of query and key, and cache read.

Any mix of prompts is, for these sums, as good as some prompts alike: ``tokens / new`` of them with ``new`` tokens each
after ``cached`` ones. Nodes lie on a grid of logarithms of these; between nodes the logarithm of the seconds is
straight, which is 0.1% off or so. The grid is worked out in blocks, where a run comes by.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2

import numpy as np

FINE, COARSE = 8, 4  # nodes an octave: of tokens and of tokens per prompt; of pairs over those of a fresh prompt
_SPANS = (np.arange(FINE + 1), np.arange(FINE + 1), np.arange(COARSE + 1))
_ACROSS, _DOWN = (FINE + 1) * (COARSE + 1), COARSE + 1


class Surface:
    """``Surface(price).at(tokens, pairs, kv)``; ``price(seqs, new, cached)`` gives seconds for arrays of prompts."""

    def __init__(self, price: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], dense: bool = False) -> None:
        self.price = price
        self.dense = dense  # pairs are new · (cached + new): all that eager attention computes, whatever the mask
        self.known: dict[tuple[int, int, int], list[float]] = {}

    def at(self, tokens: float, pairs: float, kv: float) -> float:
        """Seconds of prompts with so many new tokens, pairs of query and key, and entries of the cache in all."""
        reach = max(1.0, kv / tokens)  # 1 + cached / new
        new = pairs / tokens / reach if self.dense else (2 * pairs / tokens - 1) / (2 * reach - 1)
        new = max(new, 1e-3)
        x, y, z = log2(tokens) * FINE, log2(new) * FINE, log2(2 * reach - 1) * COARSE
        i, j, k = int(x) // FINE, int(y // FINE), int(z) // COARSE
        values = self.known.get((i, j, k)) or self._block(i, j, k)
        x, y, z = x - i * FINE, y - j * FINE, z - k * COARSE
        a, b, c = int(x), int(y), int(z)
        x, y, z = x - a, y - b, z - c
        p = a * _ACROSS + b * _DOWN + c
        q = p + _ACROSS
        near = values[p] + (values[p + 1] - values[p]) * z
        far = values[q] + (values[q + 1] - values[q]) * z
        p, q = p + _DOWN, q + _DOWN
        near += (values[p] + (values[p + 1] - values[p]) * z - near) * y
        far += (values[q] + (values[q + 1] - values[q]) * z - far) * y
        return float(2.0 ** (near + (far - near) * x))

    def _block(self, i: int, j: int, k: int) -> list[float]:
        """An octave of each coordinate, with the first nodes of the next."""
        tokens = 2.0 ** (i + _SPANS[0][:, None, None] / FINE)
        new = 2.0 ** (j + _SPANS[1][None, :, None] / FINE)
        reach = (2.0 ** (k + _SPANS[2][None, None, :] / COARSE) + 1) / 2
        tokens, new, reach = np.broadcast_arrays(tokens, new, reach)
        took = np.broadcast_to(self.price(tokens / new, new, new * (reach - 1)), tokens.shape)
        found: list[float] = np.log2(np.maximum(took, 1e-30)).ravel().tolist()
        found += [0.0] * (_ACROSS + _DOWN + 1)  # read with weight 0 at the very edge
        self.known[i, j, k] = found
        return found
