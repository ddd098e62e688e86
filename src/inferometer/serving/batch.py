"""Sequences that decode together, kept as counters: nothing is done per sequence and step.

Everyone in a batch gains the same tokens in every step. So a clock of tokens that all share says everything: a sequence
that joins with ``context`` tokens at clock t has ``context + (clock - t)`` later, needs a new block whenever that is a
multiple of the block size, and ends at a clock that is known when it joins. With speculation a step gains ``pace``
tokens on average, the same for everyone; blocks are counted for what was accepted.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np


class DecodeBatch:
    """``batch.join(i, context=512, left=100)``: request i has 512 tokens in the cache and is to gain 100 more."""

    __slots__ = ("base", "bits", "block", "clock", "ends", "offset", "pace", "ring", "rows", "steps")

    def __init__(self, requests: int, block: int, pace: float = 1.0) -> None:
        self.rows = 0  # sequences
        self.base = 0  # sum of their offsets: contexts are offset + clock
        self.clock = self.steps = 0  # tokens that a sequence from the very beginning would have gained; steps
        self.block, self.pace = block, pace
        self.bits = max(1, requests).bit_length()
        self.ends: list[int] = []  # heap of clock << bits | request
        self.ring = [0] * block  # how many need a new block when the clock is this, modulo the block size
        self.offset: dict[int, int] = {}

    def join(self, i: int, context: int, left: int) -> None:
        """A sequence begins to decode."""
        offset = context - self.clock
        self.offset[i] = offset
        self.rows += 1
        self.base += offset
        self.ring[-offset % self.block] += 1
        heappush(self.ends, (self.clock + left) << self.bits | i)

    def leave(self, i: int) -> None:
        """A sequence is out; it has ended, or its entry among the ends is dropped with `drop`."""
        offset = self.offset.pop(i)
        self.rows -= 1
        self.base -= offset
        self.ring[-offset % self.block] -= 1

    def drop(self, i: int) -> int:
        """Forget when a sequence would have ended; gives the tokens that it still lacks."""
        mask = (1 << self.bits) - 1
        entry = next(entry for entry in self.ends if entry & mask == i)
        self.ends.remove(entry)
        heapify(self.ends)
        return (entry >> self.bits) - self.clock

    def ended(self) -> int:
        """The next request that has all its tokens by now; -1 if none has."""
        if self.ends and self.ends[0] >> self.bits <= self.clock:
            return heappop(self.ends) & (1 << self.bits) - 1
        return -1

    def advance(self, steps: int) -> None:
        """So many steps pass."""
        self.steps += steps
        self.clock = self.steps if self.pace == 1 else int(self.pace * self.steps)

    def stride(self) -> int:
        """Tokens that the next step gains."""
        return 1 if self.pace == 1 else int(self.pace * (self.steps + 1)) - self.clock

    def until_end(self) -> int:
        """Steps until the first sequence ends."""
        target = self.ends[0] >> self.bits
        if self.pace == 1:
            return target - self.clock
        steps = max(1, int(target / self.pace) - self.steps)
        while int(self.pace * (self.steps + steps)) < target:
            steps += 1
        return steps

    def total(self) -> int:
        """Tokens before this step, of all sequences together."""
        return self.base + self.rows * self.clock

    def lengths(self) -> np.ndarray:
        """Tokens before this step, of every sequence."""
        return np.fromiter(self.offset.values(), float, self.rows) + self.clock

    def gains(self, first: int, steps: int) -> np.ndarray:
        """Tokens that every sequence has gained by the beginning of later steps, from step ``first`` on."""
        later = np.arange(first, first + steps)
        return later * 1.0 if self.pace == 1 else np.floor(self.pace * (self.steps + later)) - self.clock

    # ------------------------------------------------------------------ blocks of the cache

    def blocks_of(self, i: int, ahead: int = 0) -> int:
        """Blocks that a sequence holds; with ``ahead`` also that of the step which is being planned."""
        return -(-(self.offset[i] + self.clock + ahead) // self.block)

    def needs(self) -> int:
        """New blocks that the next step takes."""
        return self.ring[self.clock % self.block] if self.pace == 1 else self.growth(1)

    def growth(self, steps: int) -> int:
        """New blocks that so many steps take."""
        tokens = steps if self.pace == 1 else int(self.pace * (self.steps + steps)) - self.clock
        cycles, rest = divmod(tokens, self.block)
        start = self.clock % self.block
        end = start + rest
        found = cycles * self.rows + sum(self.ring[start:end])
        return found if end <= self.block else found + sum(self.ring[: end - self.block])

    def lacking(self) -> int:
        """Blocks that all sequences will still take, to their ends."""
        size, clock, mask, offset, found = self.block, self.clock, (1 << self.bits) - 1, self.offset, 0
        for entry in self.ends:
            mine = offset[entry & mask]
            found += -(-(mine + (entry >> self.bits)) // size) + -(mine + clock) // size
        return found

    def affordable(self, steps: int, free: int) -> int:
        """The most steps, up to ``steps``, that so many free blocks are enough for."""
        if self.growth(steps) <= free:
            return steps
        low, high = 0, steps  # growth(low) fits, growth(high) does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.growth(middle) <= free else (low, middle)
        return low
