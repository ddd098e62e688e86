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
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from .batch import DecodeBatch
from .step_cost import StepCost

US = 1e6  # µs in a second
MAX_LENGTHS = 1 << 16  # different lengths that are kept; when there are more, they are rounded
SIGNIFICANT_BITS = 10  # to which they are rounded then
SHORT_RUN, LONG_RUN = 16, 64  # decode steps in a row up to which their mean stands for each; beyond which each counts


class GapHistogram(NamedTuple):
    """Lengths of gaps between tokens in seconds, from the shortest on, and how many gaps have each."""

    seconds: np.ndarray
    counts: np.ndarray


class InterTokenLatencies:
    """The gaps of one engine's requests: ``gaps.add(0.012, 8); gaps.histogram().counts.sum()  # 8``"""

    __slots__ = ("away", "counts", "rejoined_s")

    def __init__(self) -> None:
        self.counts: defaultdict[int, float] = defaultdict(int)  # length in µs -> gaps
        self.away: dict[int, float] = {}  # preempted request -> when it had its last token
        self.rejoined_s: dict[int, float] = {}  # request that was preempted -> when it went on

    def add(self, seconds: float, count: int) -> None:
        """So many sequences had a gap of this length."""
        self.counts[int(seconds * US)] += count

    def add_steps(self, seconds: float, before_last: float, steps: int, num_seqs: int) -> None:
        """Sequences decoded in some steps (up to `LONG_RUN`) that took ``before_last`` seconds without the last one.

        Contexts grow by a token a step, so a short run's steps are as good as alike, and a longer one's grow evenly.
        """
        if steps <= SHORT_RUN:
            self.counts[int(seconds * US / steps)] += steps * num_seqs
            return
        mean = seconds / steps
        quarter = (seconds - before_last - mean) / 2  # half the way from the mean to the last step
        for place in (-1.5, -0.5, 0.5, 1.5):
            self.counts[int((mean + place * quarter) * US)] += steps * num_seqs / 4

    def add_durations(self, durations: np.ndarray, num_seqs: int) -> None:
        """Sequences decoded in steps that took so many seconds each."""
        lengths, counts = np.unique((durations * US).astype(np.int64), return_counts=True)
        for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
            self.counts[length] += count * num_seqs

    def count(
        self, batch: DecodeBatch, cost: StepCost, start: float, steps: int, seconds: float, before_last: float
    ) -> None:
        """Every unfinished sequence of a batch had a token at the end of each of some steps."""
        num_seqs, durations = len(batch.finish_heap), None
        if not num_seqs:
            return
        if steps > LONG_RUN:
            durations = cost.decode_durations(batch, 0, steps)
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
        if len(self.counts) > MAX_LENGTHS:
            rounded: defaultdict[int, float] = defaultdict(int)
            for length, count in self.counts.items():
                shift = max(0, length.bit_length() - SIGNIFICANT_BITS)
                rounded[(length >> shift << shift) + (1 << shift >> 1)] += count
            self.counts.clear()  # the fast path holds on to it
            self.counts.update(rounded)

    def histogram(self) -> GapHistogram:
        """All gaps by their length."""
        return merge_gaps([self])


def merge_gaps(engines: Iterable[InterTokenLatencies]) -> GapHistogram:
    """The gaps of several engines as one: ``merge_gaps(replica.gaps for replica in replicas).seconds``"""
    total: defaultdict[int, float] = defaultdict(int)
    for engine in engines:
        for length, count in engine.counts.items():
            total[length] += count
    lengths = np.array(sorted(length for length, count in total.items() if count), float)
    counts = np.array([total[int(length)] for length in lengths], float)
    return GapHistogram((lengths + 0.5) / US, counts)
