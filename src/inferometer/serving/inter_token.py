"""Inter-token latencies: how long the gaps between the tokens of a request were, counted by their length.

gaps = InterTokenLatencies()
gaps.add(0.012, 8)                              # eight sequences had a token 12 ms after the one before
gaps.add_steps(0.36, 0.348, steps=30, num_seqs=8)
gaps.histogram()                                # GapHistogram(seconds, counts)

As ``vllm bench serve`` counts them: a gap lies between two events of a stream, so the tokens that one step accepts of
a draft are one event, and percentiles are those of the flat list of all gaps of all requests. There are as many gaps
as tokens, so they are not kept one by one: a step is a gap of its length for every sequence that decodes in it.
Lengths are counted in whole microseconds, and to ten significant bits (0.2%) once there are very many.

Where sequences did not decode in the step before (a scheduler put prompts first; a pipeline has several batches),
`DecodeBatch.last_tokens` has when they had their last token. A preempted request's gap lasts until its next token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from .batch import DecodeBatch
from .engine_time import Throttle
from .step_cost import StepCost
from .step_tables import ContextTable

US = 1e6  # µs in a second
MAX_LENGTHS = 1 << 16  # different lengths that are kept; when there are more, they are rounded
CLOSE = 1 << 12  # µs between the shortest and the longest step of a run up to which lengths are counted one by one
SIGNIFICANT_BITS = 10  # to which they are rounded then
CONTEXT_BITS = 12  # of a mean context by which the fast path counts decode steps
ROW_BITS = 16  # for which there is room below the number of sequences
WARM = 1e-3  # of a step's time, from which on steps after prompts are counted one by one
SHORT_RUN, LONG_RUN = 16, 64  # decode steps in a row up to which their mean stands for each; beyond which each counts


class GapHistogram(NamedTuple):
    """Lengths of gaps between tokens in seconds, from the shortest on, and how many gaps have each."""

    seconds: np.ndarray
    counts: np.ndarray


class InterTokenLatencies:
    """The gaps of one engine's requests: ``gaps.add(0.012, 8); gaps.histogram().counts.sum()  # 8``"""

    __slots__ = ("away", "counted_back", "counts", "log", "rejoined_s", "shift", "table", "visits")

    def __init__(self) -> None:
        self.counts: defaultdict[int, float] = defaultdict(int)  # length in µs -> gaps
        self.log: list[float] = []  # seconds and gaps in turn: the quickest way to keep them, until `compact`
        self.counted_back: list[float] = []  # the same of gaps that turned out to be longer
        # [n << ROW_BITS | context >> shift]: decode steps of n sequences with that mean context, as the table has them
        self.visits: defaultdict[int, int] = defaultdict(int)
        self.table: ContextTable | None = None
        self.shift = 0
        self.away: dict[int, float] = {}  # preempted request -> when it had its last token
        self.rejoined_s: dict[int, float] = {}  # request that was preempted -> when it went on

    def add(self, seconds: float, count: int) -> None:
        """So many sequences had a gap of this length."""
        self.counts[int(seconds * US)] += count

    def lengthen(self, seconds: float, late: float, count: int) -> None:
        """So many gaps of this length, which were counted before, turn out to be longer."""
        self.counted_back += (seconds, count)
        self.log += (seconds + late, count)

    def add_steps(self, seconds: float, before_last: float, steps: int, num_seqs: int) -> None:
        """Sequences decoded in some steps (up to `LONG_RUN`) that took ``before_last`` seconds without the last one.

        Contexts grow by a token a step, so a short run's steps are as good as alike, and a longer one's grow evenly.
        """
        if steps <= SHORT_RUN:
            self.log += (seconds / steps, steps * num_seqs)
            return
        mean = seconds / steps
        quarter = (seconds - before_last - mean) / 2  # half the way from the mean to the last step
        for place in (-1.5, -0.5, 0.5, 1.5):
            self.counts[int((mean + place * quarter) * US)] += steps * num_seqs / 4

    def visits_of(self, table: ContextTable) -> tuple[defaultdict[int, int], int]:
        """Where the fast path counts decode steps: ``visits[n << ROW_BITS | context >> shift] += steps``"""
        if self.table is None:
            self.table, self.shift = table, max(0, (table.longest + 16).bit_length() - CONTEXT_BITS)
        return self.visits, self.shift

    def add_durations(self, durations: np.ndarray, num_seqs: int) -> None:
        """Sequences decoded in steps that took so many seconds each."""
        lengths = (durations * US).astype(np.int64)
        least, most = int(lengths.min()), int(lengths.max())
        if most - least > CLOSE:
            distinct, counts = np.unique(lengths, return_counts=True)
        else:  # nearly always: counting is quicker than sorting
            counts = np.bincount(lengths - least)
            at = np.flatnonzero(counts)
            distinct, counts = at + least, counts[at]
        for length, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            self.counts[length] += count * num_seqs

    def count(
        self,
        batch: DecodeBatch,
        cost: StepCost,
        start: float,
        steps: int,
        seconds: float,
        before_last: float,
        throttle: Throttle | None = None,
    ) -> None:
        """Every unfinished sequence of a batch had a token at the end of each of some steps.

        ``throttle``: of a chip that may cool down meanwhile, so that the first steps take longer than the last ones.
        """
        num_seqs, durations = len(batch.finish_heap), None
        if steps <= SHORT_RUN and not batch.last_tokens:  # nearly always
            self.log += (seconds / steps, steps * num_seqs)
            return
        if not num_seqs:
            return
        cools = throttle is not None and throttle.cooling * throttle.fraction_at(start) > WARM
        if steps > (SHORT_RUN if cools else LONG_RUN):
            durations = cost.decode_durations(batch, 0, steps)
            if throttle is not None and cools:
                durations = throttle.decoding_each(start, durations)
            durations = durations * (seconds / durations.sum())  # of ranks in lock step, the slowest counts
        if batch.last_tokens:
            first = 2 * seconds / steps - (seconds - before_last) if durations is None else float(durations[0])
            for last_s, count in batch.last_tokens:
                self.add(start + first - last_s, count)
            batch.last_tokens = []
            steps, seconds, before_last = steps - 1, seconds - first, before_last - first
            durations = None if durations is None else durations[1:]
        if durations is not None:
            self.add_durations(durations, num_seqs)
        elif steps:
            self.add_steps(seconds, before_last, steps, num_seqs)

    def preempted(self, batch: DecodeBatch, i: int, first_token_s: float, now: float) -> None:
        """A request leaves the batch that it decoded in; its gap lasts until it has its next token."""
        self.away[i] = batch.forget_last_token(self.rejoined_s.get(i, first_token_s), now)

    def resumed(self, i: int, first_token_s: float, now: float) -> None:
        """A request that had tokens before has its next one."""
        self.add(now - self.away.pop(i, first_token_s), 1)
        self.rejoined_s[i] = now

    def compact(self) -> None:
        """Round the lengths where there are more than `MAX_LENGTHS` of them."""
        if len(self.counts) + len(self.log) > MAX_LENGTHS:
            lengths = np.array([*self.counts, *np.array(self.log[::2]) * US]).astype(np.int64)
            counts = np.array([*self.counts.values(), *self.log[1::2]])
            bits = np.frexp(lengths)[1] - SIGNIFICANT_BITS
            half = np.where(bits > 0, np.exp2(np.maximum(bits - 1, 0)), 0).astype(np.int64)
            rounded, index = np.unique(lengths - lengths % np.maximum(2 * half, 1) + half, return_inverse=True)
            self.counts = defaultdict(int, zip(rounded.tolist(), np.bincount(index, counts).tolist(), strict=True))
            self.log.clear()  # the fast path holds on to it

    def parts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Lengths of gaps in seconds and how many have each, as they were counted."""
        yield (np.array([*self.counts], float) + 0.5) / US, np.array([*self.counts.values()], float)
        yield np.array(self.log[::2], float), np.array(self.log[1::2], float)
        if self.table is None or not self.visits:
            return
        keys = sorted(self.visits)
        used, steps = np.array(keys, np.int64), np.array([self.visits[key] for key in keys], float)
        context = ((used & (1 << ROW_BITS) - 1) << self.shift) + (1 << self.shift) / 2
        rows, starts = np.unique(used >> ROW_BITS, return_index=True)
        for n, start, end in zip(rows.tolist(), starts, [*starts[1:], len(keys)], strict=True):
            yield np.interp(context[start:end], self.table.nodes, self.table.row(n)), steps[start:end] * n

    def histogram(self) -> GapHistogram:
        """All gaps by their length."""
        return merge_gaps([self])


def merge_gaps(engines: Iterable[InterTokenLatencies]) -> GapHistogram:
    """The gaps of several engines as one: ``merge_gaps(replica.gaps for replica in replicas).seconds``"""
    each = list(engines)
    parts = [(np.zeros(0), np.zeros(0)), *(part for engine in each for part in engine.parts())]
    seconds, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    seconds, counts = seconds[counts > 0], counts[counts > 0]
    back = np.array([value for engine in each for value in engine.counted_back])
    if len(back):  # near where they had been counted: what lies below a length never shrinks with the length
        seconds, counts = np.concatenate([seconds, back[::2]]), np.concatenate([counts, -back[1::2]])
    order = np.argsort(seconds, kind="stable")
    seconds, counts = seconds[order], counts[order]
    if len(back):
        counts = np.diff(np.maximum(np.minimum.accumulate(np.cumsum(counts)[::-1])[::-1], 0), prepend=0)
        seconds, counts = seconds[counts > 0], counts[counts > 0]
    return GapHistogram(seconds, counts)
