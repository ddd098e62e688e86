"""The tables that a simulated run looks its steps up in, and the parts of the graph that each one covers.

`ContextTable`: seconds along a growing context. For every number of sequences there is one row, with straight lines
between its nodes. While a batch decodes, the mean context of its sequences grows by one token a step. So the seconds of
k steps are a sum of values that lie one apart on the row. With C(x) the sum of all values below x, straight between
whole numbers, they are C(x + k) - C(x), whatever fraction x begins with: 5,000 steps cost no more than 5, and how many
steps fit into a given time is found by looking that time up in C.

`PrefillSurface`: seconds of the prompts' attention in a step, from three sums: new tokens, pairs of query and key, and
cache read. Any mix of prompts is, for these sums, as good as some prompts alike: ``tokens / new`` of them with ``new``
tokens each after ``cached`` ones. Nodes lie on a grid of logarithms of these; between nodes the logarithm of the
seconds is straight, which is 0.1% off or so. The grid is worked out in blocks, where a run comes by.

`StepParts`: the graph, split by what its operators' times depend on. A simulated run asks for a million steps. Most
operators of a step know only how many tokens there are, so their seconds are one table; what is left is the attention
of prompts and of decodes, each a function of few sums. Which is which is read off the names in the operators' formulas,
never off a model's name.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.symbols import Env, evaluate, free_names
from ..costs.binding import BoundPlan, step_env
from ..costs.step import Group, Step
from ..network.graph import Block
from ..network.operators import WORK_FIELDS, Op

CELLS = 16  # cells that an octave of contexts is cut into; below 128 tokens they are 8 wide
TOGETHER = 64  # rows that are worked out at once: arrays cost hardly more than single numbers
TABLE = 16384  # counts that a table may have; what is larger is estimated when it is met
FIRST = 512  # counts that a table begins with
SHORT = 4096  # sums up to here are lists, which are read faster; longer ones are arrays, which take less room

FINE, COARSE = 8, 4  # nodes an octave: of tokens and of tokens per prompt; of pairs over those of a fresh prompt
_NODES = (np.arange(FINE + 1), np.arange(FINE + 1), np.arange(COARSE + 1))
_ACROSS, _DOWN = (FINE + 1) * (COARSE + 1), COARSE + 1

Spans = tuple[str, ...]  # names of `network.graph.Span`: how far some layers look back
_COUNTS = frozenset({"tokens", "moe_tokens"})
_STEP = frozenset({"seqs", "logits", "images", "patches", "patch_pairs", "image_tokens"}) | _COUNTS


class ContextTable:
    """``ContextTable(estimate, 4096, 256)``: rows up to a context and a number of sequences.

    ``estimate(n, context)`` gives seconds for arrays of both.
    """

    def __init__(
        self, estimate: Callable[[np.ndarray, np.ndarray], np.ndarray], longest: int, max_num_seqs: int
    ) -> None:
        self.estimate, self.longest, self.max_num_seqs = estimate, longest, max_num_seqs
        edges, width = list(range(0, 8 * CELLS, 8)), 8
        while edges[-1] <= longest + 8:
            width = max(8, (1 << edges[-1].bit_length() - 1) // CELLS)
            edges.append(edges[-1] + width)
        self.nodes = np.array([*edges, edges[-1] + width], float)
        self.known: dict[int, list[float]] = {}
        self.sums: dict[int, Sequence[float]] = {}
        self.lines: list[tuple[Sequence[float], Sequence[float]] | None] = []

    def row(self, n: int) -> list[float]:
        """Seconds of n sequences at the nodes."""
        known = self.known.get(n)
        if known is not None:
            return known
        first = (n - 1) // TOGETHER * TOGETHER + 1
        counts = np.arange(first, max(n, min(first + TOGETHER - 1, self.max_num_seqs)) + 1)
        values = self.estimate(counts[:, None].astype(float), self.nodes[None, :])
        # a kernel that spreads a longer context over more SMs may be faster by a hair; no run should hinge on that
        values = np.maximum.accumulate(np.broadcast_to(values, (len(counts), len(self.nodes))), axis=1)
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
        self.sums[n] = sums.tolist() if size <= SHORT else array("d", sums.tobytes())
        return self.sums[n]

    def line(self, n: int, upto: int) -> tuple[Sequence[float], Sequence[float]]:
        """C and the seconds of a step at whole numbers, beyond a context at least; kept in ``lines[n]``."""
        sums = self.summed(n, upto if self.longest >= SHORT else self.longest)
        values = np.interp(np.arange(len(sums)), self.nodes, self.row(n))
        line = self.lines[n] = (sums, values.tolist() if len(sums) <= SHORT else array("d", values.tobytes()))
        return line

    def search(self, n: int, total: int, max_steps: int, gap: float, extra: int) -> tuple[int, float, float]:
        """Steps until ``gap`` seconds have passed and ``extra`` steps after that, from one to ``max_steps``.

        The first step has ``total`` tokens of context, each next one n more. Gives the steps, their seconds, and the
        seconds without the last one.
        """
        x = total / n
        end = x + max_steps
        c = self.sums.get(n)
        if c is None or len(c) <= end + 2:
            c = self.summed(n, end)
        low = int(x)
        value = c[low]
        here = value + (c[low + 1] - value) * (x - low)
        whole = int(end)
        value = c[whole]
        took = value + (c[whole + 1] - value) * (end - whole) - here
        steps = max_steps
        if took >= gap:
            if gap > 0.0:
                place = bisect_right(c, here + gap, low, whole + 2) - 1
                steps = ceil(place + (here + gap - c[place]) / (c[place + 1] - c[place]) - x)
                steps = extra + (steps if steps > 1 else 1)
                steps = steps if steps < max_steps else max_steps
            else:
                steps = 1
            if steps < max_steps:
                end = x + steps
                whole = int(end)
                took = c[whole] + (c[whole + 1] - c[whole]) * (end - whole) - here
        end -= 1
        whole = int(end)
        return steps, took, c[whole] + (c[whole + 1] - c[whole]) * (end - whole) - here


class CountTable:
    """A function of a count, worked out for many at once and more when they are met: ``CountTable(estimate)(300)``"""

    def __init__(self, estimate: Callable[[np.ndarray], Any]) -> None:
        self.estimate = estimate
        self.known: list[float] = []
        self.large: dict[int, float] = {}

    def __call__(self, count: int) -> float:
        if count < len(self.known):
            return self.known[count]
        if count < TABLE:
            start = len(self.known)
            size = max(FIRST, 1 << count.bit_length())
            values = np.broadcast_to(self.estimate(np.arange(start, size, dtype=float)), (size - start,))
            self.known += values.tolist()
            return self.known[count]
        if count not in self.large:
            self.large[count] = float(np.ravel(self.estimate(np.array([float(count)])))[0])
        return self.large[count]


class PrefillSurface:
    """``PrefillSurface(estimate).at(tokens, pairs, kv)``, where ``estimate(seqs, new, cached)`` gives seconds."""

    def __init__(
        self, estimate: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], dense: bool = False
    ) -> None:
        self.estimate = estimate
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
        tokens = 2.0 ** (i + _NODES[0][:, None, None] / FINE)
        new = 2.0 ** (j + _NODES[1][None, :, None] / FINE)
        reach = (2.0 ** (k + _NODES[2][None, None, :] / COARSE) + 1) / 2
        tokens, new, reach = np.broadcast_arrays(tokens, new, reach)
        took = np.broadcast_to(self.estimate(tokens / new, new, new * (reach - 1)), tokens.shape)
        values: list[float] = np.log2(np.maximum(took, 1e-30)).ravel().tolist()
        values += [0.0] * (_ACROSS + _DOWN + 1)  # read with weight 0 at the very edge
        self.known[i, j, k] = values
        return values


def steps_within(
    durations: Callable[[int, int], np.ndarray], max_steps: int, gap: float, extra: int
) -> tuple[int, float, float]:
    """`StepCost.decode_steps` where ``durations(first, steps)`` are the seconds of some steps, each by itself."""
    passed = np.zeros(1)  # s at the beginning of every step
    while passed[-1] < gap and len(passed) <= max_steps:
        done = len(passed) - 1
        more = durations(done, min(max_steps - done, 256))
        passed = np.concatenate([passed, passed[-1] + np.cumsum(more)])
    steps = max(1, min(max_steps, int(np.searchsorted(passed, gap)) + extra))
    if steps == len(passed):  # the extra step
        passed = np.append(passed, passed[-1] + durations(steps - 1, 1)[0])
    return steps, float(passed[steps]), float(passed[steps - 1])


class StepParts(NamedTuple):
    """Blocks with only some of their operators, by what those depend on."""

    tokens: tuple[Block, ...]
    logits: tuple[Block, ...]
    prefill: dict[Spans, tuple[Block, ...]]  # attention of prompts, by the spans that it looks back over
    decode: dict[Spans, tuple[Block, ...]]
    other: tuple[Block, ...]  # several at once: a scan over a state, an index over both phases


def split_by_dependence(bound_plan: BoundPlan) -> StepParts:
    """Split the text blocks of a plan: ``split_by_dependence(plan).decode[("",)]`` is full attention of decodes."""
    groups: dict[tuple[str, Spans], list[Block]] = {}
    windows = any(span.size != float("inf") for span in bound_plan.model.spans.values())
    mixed = bool(bound_plan.env["eager"]) and windows  # eager attention computes all pairs, but reads what a window has
    some = step_env(bound_plan, Step((Group(3, 5, 7), Group(2, 1, 11, 1, True))))
    for block in bound_plan.text:
        ops_by_part: dict[tuple[str, Spans], list[Op]] = {}
        for op in block.ops:
            if not _works(op, {**some, **block.dims}):
                continue
            part = _part(op)
            ops_by_part.setdefault(("other", ()) if mixed and part[1] else part, []).append(op)
        for part, ops in ops_by_part.items():
            groups.setdefault(part, []).append(msgspec.structs.replace(block, ops=tuple(ops)))

    def of(wanted: str) -> dict[Spans, tuple[Block, ...]]:
        return {spans: tuple(blocks) for (kind, spans), blocks in groups.items() if kind == wanted}

    return StepParts(
        tuple(groups.get(("tokens", ()), ())),
        tuple(groups.get(("logits", ()), ())),
        of("prefill"),
        of("decode"),
        tuple(groups.get(("other", ()), ())),
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
        if all(name.startswith(phase) for name in names):
            tails = {name[len(phase) + 3 :] for name in names if name[len(phase) :][:3] in ("_qk", "_kv")}
            return phase, tuple(sorted(tail.removeprefix("_") for tail in tails))
    return "other", ()


def step_names(op: Op) -> frozenset[str]:
    """The step's names in an operator's work and in its shape."""
    formulas = [*(getattr(op.work, field) for field in WORK_FIELDS), *op.dims.values()]
    names = {name for formula in formulas for name in free_names(formula)}
    return frozenset(name for name in names if name in _STEP or name.startswith(("prefill_", "decode_")))


def decode_only_parts(parts: StepParts) -> tuple[tuple[Block, ...], dict[Spans, tuple[Block, ...]]]:
    """What else a step of decodes alone has: operators that know only the number of sequences, and, by spans, those of
    `other` that look back for both phases at once."""
    plain: list[Block] = [*parts.tokens, *parts.logits]
    shared: dict[Spans, tuple[Block, ...]] = {}
    for block in parts.other:
        for op in block.ops:
            names = {name for name in step_names(op) if name[:9] in ("decode_qk", "decode_kv")}
            key = tuple(sorted(name[9:].removeprefix("_") for name in names))
            alone = msgspec.structs.replace(block, ops=(op,))
            if names:
                shared[key] = (*shared.get(key, ()), alone)
            else:
                plain.append(alone)
    return tuple(plain), shared
