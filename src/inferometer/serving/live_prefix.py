"""What prompts of a live server share: the next one is unknown, so every block (or 16 tokens) is a segment.

A segment is known by a hash of all tokens up to its end, as vLLM's blocks are. Requests of a live server are rows that
are used again, and segments that no cache and no request has any more are forgotten.

    tree = LivePrefixTree(block_size=16)
    cache = LivePrefixCache(1000, tree)
    tree.put(7, hashes)         # row 7 is a request whose prompt has these blocks
    tree.extend(7, more)        # and its output has these
    tree.drop(7)                # it is over
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ..base.units import ceil_div
from .kv_cache import PrefixCache, PrefixTree

SEGMENT = 16  # tokens at least: an engine whose blocks are of one token has them by as many
LEAST_SWEEP = 1 << 16  # segments known before any is forgotten
MOST_BLOCKS = 1 << 20  # of a cache that has no limit of its own: what it remembers takes memory here


class LivePrefixTree(PrefixTree):
    """``tree.of(i)``: the segments of the request in row i, from its first token on; their numbers are used again."""

    def __init__(self, block_size: int) -> None:
        none = np.zeros(0, np.int64)
        super().__init__(none, none, [], [])
        self.block_size = block_size
        self.blocks = ceil_div(SEGMENT, block_size)  # of a segment
        self.tokens = self.blocks * block_size
        self.ids: dict[int, int] = {}  # hash of a segment and all before it -> its number
        self.start_block: list[int] = []  # by segment: blocks before it
        self.length: list[int] = []  # always `blocks`
        self.paths: dict[int, list[int]] = {}
        self.unused: list[int] = []  # segments to be used again
        self.caches: list[LivePrefixCache] = []
        self.on_forgotten: list[Callable[[set[int]], None]] = []  # others that remember segments
        self.sweep_at = LEAST_SWEEP

    def of(self, i: int) -> tuple[int, ...]:
        """The segments of a row, in order."""
        return self.paths.get(i, ())  # type: ignore[return-value]  # a list: it is looked at, and may be long

    def put(self, i: int, hashes: Iterable[int]) -> None:
        """A request takes a row."""
        if len(self.ids) > self.sweep_at:
            self._sweep()
        self.paths[i] = []
        self.extend(i, hashes)

    def extend(self, i: int, hashes: Iterable[int]) -> None:
        """The next segments of a request."""
        path, ids = self.paths[i], self.ids
        for number in hashes:
            segment = ids.get(number)
            if segment is None:
                segment = ids[number] = self._new_segment(len(path) * self.blocks)
            path.append(segment)

    def drop(self, i: int) -> None:
        """A request is over; its row may be used again."""
        self.paths.pop(i, None)
        for cache in self.caches:
            cache.forget(i)

    def _new_segment(self, start_block: int) -> int:
        if self.unused:
            segment = self.unused.pop()
            self.start_block[segment] = start_block
            return segment
        self.start_block.append(start_block)
        self.length.append(self.blocks)
        for cache in self.caches:
            cache.cached_blocks.append(0)
            cache.ref_counts.append(0)
        return len(self.start_block) - 1

    def _sweep(self) -> None:
        """Forget the segments that are neither in a cache nor of a request."""
        alive = {segment for path in self.paths.values() for segment in path}
        for cache in self.caches:
            alive.update(segment for segment, blocks in enumerate(cache.cached_blocks) if blocks)
        forgotten = {segment for segment in self.ids.values() if segment not in alive}
        self.ids = {number: segment for number, segment in self.ids.items() if segment in alive}
        self.unused += forgotten
        for forget in self.on_forgotten:
            forget(forgotten)
        self.sweep_at = max(LEAST_SWEEP, 2 * len(self.ids))


class LivePrefixCache(PrefixCache):
    """One replica's cache over a tree that grows: ``LivePrefixCache(1000, tree)``

    ``before_release(i, computed)`` is called before a request's blocks go back, when its output may be added.
    """

    def __init__(self, num_blocks: int, tree: LivePrefixTree) -> None:
        super().__init__(min(num_blocks, MOST_BLOCKS), tree.block_size, tree)
        self.start_block, self.length = tree.start_block, tree.length  # the same lists for all replicas
        self.cached_blocks, self.ref_counts = [0] * len(tree.length), [0] * len(tree.length)
        self.before_release: Callable[[int, int], None] = lambda i, computed: None
        tree.caches.append(self)

    def release(self, i: int, blocks: int, computed: int, *, preempted: bool = False) -> None:
        """A request gives back its blocks, those of its output among them."""
        self.before_release(i, computed)
        super().release(i, blocks, computed, preempted=preempted)

    def forget(self, i: int) -> None:
        """A row is free: what a preempted request had left behind is of no use to the next one in it."""
        left = self.free_queue.pop(~i, 0)
        self.free_blocks -= left
        self._append_free(self._anonymous_key(), left)
        self.shared_at_preempt.pop(i, None)
