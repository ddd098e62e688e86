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
from math import ceil, log2
from typing import NamedTuple

import msgspec
import numpy as np

from ..base.symbols import Env, evaluate, free_names
from ..costs.binding import BoundPlan, step_env
from ..costs.step import Group, Step
from ..network.graph import Block
from ..network.operators import WORK_FIELDS, Op

CELLS = 16  # cells that an octave of contexts is cut into; below 128 tokens they are 8 wide
TOGETHER = 64  # rows that are worked out at once: arrays cost hardly more than single numbers
SHORT = 4096  # sums up to here are lists, which are read faster; longer ones are arrays, which take less room


class ContextTable:
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


# ------------------------------------------------------------------ surface
# Seconds of the prompts' attention in a step, from three sums: new tokens, pairs of query and key, and cache read.
#
# Any mix of prompts is, for these sums, as good as some prompts alike: ``tokens / new`` of them with ``new`` tokens each
# after ``cached`` ones. Nodes lie on a grid of logarithms of these; between nodes the logarithm of the seconds is
# straight, which is 0.1% off or so. The grid is worked out in blocks, where a run comes by.


FINE, COARSE = 8, 4  # nodes an octave: of tokens and of tokens per prompt; of pairs over those of a fresh prompt
_SPANS = (np.arange(FINE + 1), np.arange(FINE + 1), np.arange(COARSE + 1))
_ACROSS, _DOWN = (FINE + 1) * (COARSE + 1), COARSE + 1


class PrefillSurface:
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


# ------------------------------------------------------------------ parts
# A graph, taken apart by what its operators' times depend on: the tokens of a step, its logits, or its attention.
#
# A simulated run asks for a million steps. Most operators of a step know only how many tokens there are, so their seconds
# are one table; what is left is the attention of the prompts and of the answers, each a function of few sums. Which is
# which is read off the names in the operators' formulas, never off a model's name.


Spans = tuple[str, ...]
_COUNTS = frozenset({"tokens", "moe_tokens"})
_STEP = frozenset({"seqs", "logits", "images", "patches", "patch_pairs", "image_tokens"}) | _COUNTS


class StepParts(NamedTuple):
    """Blocks with only some of their operators, by what those depend on."""

    tokens: tuple[Block, ...]
    logits: tuple[Block, ...]
    prefill: dict[Spans, tuple[Block, ...]]  # attention of prompts, by the spans that it looks back over
    decode: dict[Spans, tuple[Block, ...]]
    other: tuple[Block, ...]  # several at once: a scan over a state, an index over both phases


def split_by_dependence(bound_plan: BoundPlan) -> StepParts:
    """Take the text blocks of a setup apart: ``parts(setup).decode[("",)]`` is full attention of answers."""
    found: dict[tuple[str, Spans], list[Block]] = {}
    windows = any(span.size != float("inf") for span in bound_plan.model.spans.values())
    mixed = bool(bound_plan.env["eager"]) and windows  # eager attention computes all pairs, but reads what a window has
    some = step_env(bound_plan, Step((Group(3, 5, 7), Group(2, 1, 11, 1, True))))
    for block in bound_plan.text:
        mine: dict[tuple[str, Spans], list[Op]] = {}
        for op in block.ops:
            if not _works(op, {**some, **block.dims}):
                continue
            part = _part(op)
            mine.setdefault(("other", ()) if mixed and part[1] else part, []).append(op)
        for part, ops in mine.items():
            found.setdefault(part, []).append(msgspec.structs.replace(block, ops=tuple(ops)))

    def of(kind: str) -> dict[Spans, tuple[Block, ...]]:
        return {spans: tuple(blocks) for (word, spans), blocks in found.items() if word == kind}

    return StepParts(
        tuple(found.get(("tokens", ()), ())),
        tuple(found.get(("logits", ()), ())),
        of("prefill"),
        of("decode"),
        tuple(found.get(("other", ()), ())),
    )


def _works(op: Op, names: Env) -> bool:
    """Whether an operator does anything on this layout: at tp 1 an all-reduce does not."""
    return any(evaluate(getattr(op.work, field), names) for field in WORK_FIELDS if field != "hops")


def _part(op: Op) -> tuple[str, Spans]:
    """What an operator depends on, and over which spans it looks back."""
    names = step_names(op)
    if names <= _COUNTS:
        return "tokens", ()
    if names <= {"logits"}:
        return "logits", ()
    for phase in ("prefill", "decode"):
        if all(word.startswith(phase) for word in names):
            tails = {word[len(phase) + 3 :] for word in names if word[len(phase) :][:3] in ("_qk", "_kv")}
            return phase, tuple(sorted(tail.removeprefix("_") for tail in tails))
    return "other", ()


def step_names(op: Op) -> frozenset[str]:
    """The step's names in an operator's work and in its shape."""
    formulas = [*(getattr(op.work, field) for field in WORK_FIELDS), *op.dims.values()]
    names = {word for formula in formulas for word in free_names(formula)}
    return frozenset(word for word in names if word in _STEP or word.startswith(("prefill_", "decode_")))


def decode_only_parts(found: StepParts) -> tuple[tuple[Block, ...], dict[Spans, tuple[Block, ...]]]:
    """What else a step of answers alone has: operators that know only their number, and, by spans, those of `other`
    that look back for both phases at once."""
    plain: list[Block] = [*found.tokens, *found.logits]
    shared: dict[Spans, tuple[Block, ...]] = {}
    for block in found.other:
        for op in block.ops:
            names = {word for word in step_names(op) if word[:9] in ("decode_qk", "decode_kv")}
            key = tuple(sorted(word[9:].removeprefix("_") for word in names))
            alone = msgspec.structs.replace(block, ops=(op,))
            if names:
                shared[key] = (*shared.get(key, ()), alone)
            else:
                plain.append(alone)
    return tuple(plain), shared
