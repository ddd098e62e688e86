"""Sequences that decode together, kept as counters: nothing is done per sequence and step.

Every sequence of a batch gains the same tokens in every step. So one clock of tokens says everything: a sequence that
joins with ``context`` tokens at clock t has ``context + (clock - t)`` tokens later, needs a new block whenever that is
a multiple of the block size, and finishes at a clock that is known when it joins. With speculation a step gains
``accepted_per_step`` tokens on average, the same for every sequence; blocks are counted for accepted tokens.

batch = DecodeBatch(num_requests=8, block_size=16)
batch.join(3, context=512, remaining=100)
batch.advance(100)
batch.pop_finished()        # 3
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np

from ..base.units import ceil_div


class DecodeContexts(Protocol):
    """What a step needs to know of the sequences that decode in it; a `DecodeBatch` is one."""

    num_seqs: int

    def total_context(self) -> int:
        """Tokens before this step, of all sequences together."""
        raise NotImplementedError

    def contexts(self) -> np.ndarray:
        """Tokens before this step, of every sequence: (num_seqs,)."""
        raise NotImplementedError

    def gains(self, first: int, steps: int) -> np.ndarray:
        """Tokens that every sequence has gained by the beginning of later steps, from step ``first`` on: (steps,)."""
        raise NotImplementedError


class DecodeBatch:
    """``batch.join(i, context=512, remaining=100)``: request i has 512 tokens in the cache and is to gain 100 more."""

    __slots__ = (
        "accepted_per_step",
        "block_phase_counts",
        "block_size",
        "clock",
        "finish_heap",
        "id_bits",
        "last_tokens",
        "num_seqs",
        "offset",
        "offset_sum",
        "steps",
    )

    def __init__(self, num_requests: int, block_size: int, accepted_per_step: float = 1.0) -> None:
        self.num_seqs = 0
        self.clock = 0  # tokens that a sequence from the very beginning would have gained
        self.steps = 0
        self.offset: dict[int, int] = {}  # request -> context - clock, which never changes
        self.offset_sum = 0
        self.block_size, self.accepted_per_step = block_size, accepted_per_step
        self.id_bits = max(1, num_requests).bit_length()
        self.finish_heap: list[int] = []  # finish clock << id_bits | request
        # (s, sequences): when unfinished sequences had their last token; empty: all at the beginning of this step
        self.last_tokens: list[tuple[float, int]] = []
        self.block_phase_counts = [0] * block_size  # [p]: sequences that need a new block when clock % block_size == p

    def join(self, i: int, context: int, remaining: int) -> None:
        """A sequence begins to decode."""
        offset = context - self.clock
        self.offset[i] = offset
        self.num_seqs += 1
        self.offset_sum += offset
        self.block_phase_counts[-offset % self.block_size] += 1
        heappush(self.finish_heap, (self.clock + remaining) << self.id_bits | i)

    def leave(self, i: int) -> None:
        """A sequence is out; its entry in the heap was popped by `pop_finished` or dropped by `drop`."""
        offset = self.offset.pop(i)
        self.num_seqs -= 1
        self.offset_sum -= offset
        self.block_phase_counts[-offset % self.block_size] -= 1

    def drop(self, i: int) -> int:
        """Forget when a sequence would have finished; gives the tokens that it still lacks."""
        mask = (1 << self.id_bits) - 1
        entry = next(entry for entry in self.finish_heap if entry & mask == i)
        self.finish_heap.remove(entry)
        heapify(self.finish_heap)
        return (entry >> self.id_bits) - self.clock

    def pop_finished(self) -> int:
        """The next request that has all its tokens by now; -1 if none has."""
        if self.finish_heap and self.finish_heap[0] >> self.id_bits <= self.clock:
            return heappop(self.finish_heap) & (1 << self.id_bits) - 1
        return -1

    def advance(self, steps: int) -> None:
        """So many steps pass."""
        self.steps += steps
        self.clock = self.steps if self.accepted_per_step == 1 else int(self.accepted_per_step * self.steps)

    def next_gain(self) -> int:
        """Tokens that every sequence gains in the next step."""
        return 1 if self.accepted_per_step == 1 else int(self.accepted_per_step * (self.steps + 1)) - self.clock

    def steps_to_first_finish(self) -> int:
        """Steps until the first sequence finishes."""
        finish_clock = self.finish_heap[0] >> self.id_bits
        if self.accepted_per_step == 1:
            return finish_clock - self.clock
        steps = max(1, int(finish_clock / self.accepted_per_step) - self.steps)
        while int(self.accepted_per_step * (self.steps + steps)) < finish_clock:
            steps += 1
        return steps

    def total_context(self) -> int:
        """Tokens before this step, of all sequences together."""
        return self.offset_sum + self.num_seqs * self.clock

    def contexts(self) -> np.ndarray:
        """Tokens before this step, of every sequence: shape (num_seqs,)."""
        return np.fromiter(self.offset.values(), float, self.num_seqs) + self.clock

    def gains(self, first: int, steps: int) -> np.ndarray:
        """Tokens that every sequence has gained by the beginning of later steps, from step ``first`` on: (steps,)."""
        later = np.arange(first, first + steps)
        if self.accepted_per_step == 1:
            return later * 1.0
        return np.asarray(np.floor(self.accepted_per_step * (self.steps + later)) - self.clock)

    def tokens_came(self, now: float) -> None:
        """Some sequences had a token now: those of ``last_tokens`` and all others that have not finished."""
        self.last_tokens.append((now, len(self.finish_heap) - sum([count for _, count in self.last_tokens])))

    def forget_last_token(self, joined_s: float, now: float) -> float:
        """When a sequence had its last token that leaves unfinished; its first one here was at ``joined_s``."""
        if not self.last_tokens:
            return now
        at = next((k for k, (last_s, _) in enumerate(self.last_tokens) if last_s == joined_s), 0)
        last_s, count = self.last_tokens[at]
        self.last_tokens[at] = (last_s, count - 1)
        return last_s

    # ------------------------------------------------------------------ blocks of the KV cache

    def blocks_of(self, i: int, ahead: int = 0) -> int:
        """Blocks that a sequence holds; with ``ahead`` those that it holds after so many more tokens."""
        return ceil_div(self.offset[i] + self.clock + ahead, self.block_size)

    def blocks_held(self) -> int:
        """Blocks that all sequences hold: `blocks_of` each of them, with ceil(n / b) as (n + b - 1) // b."""
        size = self.block_size
        ahead = self.clock + size - 1
        return sum([(offset + ahead) // size for offset in self.offset.values()])

    def blocks_for_next_step(self) -> int:
        """New blocks that the next step takes."""
        if self.accepted_per_step == 1:
            return self.block_phase_counts[self.clock % self.block_size]
        return self.block_growth(1)

    def block_growth(self, steps: int) -> int:
        """New blocks that so many steps take: one per sequence and whole cycle of the block size, and the rest."""
        gain = steps if self.accepted_per_step == 1 else int(self.accepted_per_step * (self.steps + steps)) - self.clock
        start = self.clock % self.block_size
        if gain == 1:  # one step: no cycle, and one phase
            return self.block_phase_counts[start]
        cycles, rest = divmod(gain, self.block_size)
        end = start + rest
        blocks = cycles * self.num_seqs + sum(self.block_phase_counts[start:end])
        return blocks if end <= self.block_size else blocks + sum(self.block_phase_counts[: end - self.block_size])

    def blocks_to_completion(self) -> int:
        """Blocks that all sequences will still take until they finish.

        Per sequence ceil(final tokens / block size) - ceil(tokens / block size), with ceil(n / b) as (n + b - 1) // b.
        """
        size, mask, id_bits, offset = self.block_size, (1 << self.id_bits) - 1, self.id_bits, self.offset
        round_up, clock, blocks = size - 1, self.clock, 0
        for entry in self.finish_heap:
            shifted = offset[entry & mask] + round_up
            blocks += (shifted + (entry >> id_bits)) // size - (shifted + clock) // size
        return blocks

    def max_steps_within(self, free_blocks: int, max_steps: int) -> int:
        """The most steps, up to ``max_steps``, that so many free blocks suffice for."""
        if self.block_growth(max_steps) <= free_blocks:
            return max_steps
        low, high = 0, max_steps  # block_growth(low) fits, block_growth(high) does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.block_growth(middle) <= free_blocks else (low, middle)
        return low


def are_joining(chunks: list[tuple[int, int, int]]) -> bool:
    """Whether all prompts of a step are cached but for their last token: ``are_joining([(7, 1, 511)])  # True``"""
    return all(num_new == 1 and num_cached for _, num_new, num_cached in chunks)


class JoinedBatch:
    """``JoinedBatch(batch, [(7, 1, 511)])``: the batch, and requests whose prompts are cached but for their last token.

    Such a token is computed as any answer's next one is: in the CUDA graphs of a decode step.
    """

    def __init__(self, batch: DecodeContexts | None, chunks: list[tuple[int, int, int]]) -> None:
        self.batch = batch if batch is not None and batch.num_seqs else None
        self.joining = [cached for _, _, cached in chunks]
        self.num_seqs = len(chunks) + (self.batch.num_seqs if self.batch else 0)

    def total_context(self) -> int:
        """Tokens before this step, of all sequences together."""
        return sum(self.joining) + (self.batch.total_context() if self.batch else 0)

    def contexts(self) -> np.ndarray:
        """Tokens before this step, of every sequence: shape (num_seqs,)."""
        joining = np.array(self.joining, dtype=float)
        return np.concatenate([self.batch.contexts(), joining]) if self.batch else joining

    def gains(self, first: int, steps: int) -> np.ndarray:
        """Tokens that every sequence has gained by the beginning of later steps, from step ``first`` on: (steps,)."""
        return self.batch.gains(first, steps) if self.batch else np.arange(first, first + steps) * 1.0
