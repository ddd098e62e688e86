"""What prompts share, as paths through a tree: runs of blocks that always come together.

Two prompts with the same first blocks walk along the same runs until they part. A request's path is a few runs, however
long its prompt is, and a run is named by all that comes before it, as chained block hashes are.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import numpy as np


class PrefixTree:
    """``paths.of(i)``: the runs of request i, from its first token on; run r has tokens ``first[r]`` to ``last[r]``."""

    def __init__(self, first: np.ndarray, last: np.ndarray, runs: list[tuple[int, ...]], which: list[int]) -> None:
        self.first, self.last = first, last
        self.runs, self.which = runs, which

    def of(self, i: int) -> tuple[int, ...]:
        """The runs of a request, in order."""
        return self.runs[self.which[i]]


def prefix_tree(blocks: tuple[np.ndarray, ...], tokens: int, prompts: np.ndarray) -> PrefixTree:
    """Runs of every request, whose leading blocks of ``tokens`` tokens have these ids.

    Runs part where a prompt ends, too: what comes after is its answer, which others have in their prompt.
    """
    unique: dict[int, int] = {}
    lists: list[np.ndarray] = []
    which: list[int] = []
    for ids in blocks:  # requests with one prefix share one array: look at it once
        place = unique.get(id(ids))
        if place is None:
            place = unique[id(ids)] = len(lists)
            lists.append(ids)
        which.append(place)
    sizes = np.array([len(ids) for ids in lists], np.int64)
    if not sizes.sum():
        empty = np.zeros(0, np.int64)
        return PrefixTree(empty, empty, [()] * len(lists), which)
    flat = np.concatenate(lists).astype(np.uint64)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    place = np.arange(len(flat)) - np.repeat(starts, sizes)
    prefix = np.unique(_fingerprints(flat, place, starts, sizes), return_inverse=True)[1]
    follows = np.append(prefix[1:], -1)
    follows[(starts + sizes - 1)[sizes > 0]] = -1  # an end is a parting, too
    least, most = np.full(prefix.max() + 1, np.iinfo(np.int64).max), np.full(prefix.max() + 1, -2)
    np.minimum.at(least, prefix, follows)
    np.maximum.at(most, prefix, follows)
    parts = least != most  # requests part after this block
    place_of, within = np.array(which), prompts // tokens
    ends = (within > 0) & (within <= sizes[place_of])
    parts[prefix[(starts[place_of] + within - 1)[ends]]] = True
    begins = (place == 0) | np.concatenate([[True], parts[prefix[:-1]]])
    heads = np.flatnonzero(begins)
    _, seen, run = np.unique(prefix[heads], return_index=True, return_inverse=True)
    edges = np.append(heads[1:], len(flat))
    first = place[heads][seen] * tokens
    last = first + (edges - heads)[seen] * tokens
    owner = np.searchsorted(starts + sizes, heads, side="right")
    cuts = np.searchsorted(owner, np.arange(len(lists) + 1))
    listed = run.tolist()
    return PrefixTree(first, last, [tuple(listed[a:b]) for a, b in pairwise(cuts.tolist())], which)


def _fingerprints(ids: np.ndarray, place: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """A number for every block that stands for all blocks before it, too (64 bits: no two are the same by chance)."""
    with np.errstate(over="ignore"):
        mixed = ids + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        powers = np.cumprod(np.full(int(sizes.max()), np.uint64(0xD6E8FEB86659FD93)))
        sums = np.cumsum(mixed * powers[place])
        before = np.concatenate([np.zeros(1, np.uint64), sums[:-1]])[np.minimum(starts, len(sums) - 1)]
        return np.asarray(sums - np.repeat(before, sizes))


# ------------------------------------------------------------------ kvcache
# The paged cache of a replica: blocks of tokens, handed out and taken back as vLLM does it.
#
# Free blocks stand in a queue, those unused for longest first; a block keeps its content until it is handed out again.
# With prefix caching a request whose first blocks are still there (in use by others, or in the queue) takes them over.
# When a request ends its blocks join the queue last to first, so that the beginnings of prompts stay longest.
#
# Blocks are not objects here. A run of blocks that always go together (a piece of prompt that some requests share) is
# one entry of the queue, and is given up from its end, block by block: that is what block-wise eviction does to it.


class KVCache:
    """Blocks without content: what an engine has that caches no prefixes, or a trace that shares none.

    cache = KVCache(blocks=1000, size=16)
    cache.begin(i, 0, 512)       # True: request i has blocks for 512 tokens
    """

    def __init__(self, blocks: int, size: int) -> None:
        self.blocks, self.size = blocks, size
        self.free = blocks
        self.asked = self.hits = 0  # tokens of prompts, and those found in the cache

    def match(self, i: int, tokens: int) -> int:
        """Tokens of a request's ``tokens`` that need not be computed; at least one always must."""
        return 0

    def fits(self, i: int, cached: int, upto: int) -> bool:
        """Whether a request's first ``upto`` tokens, ``cached`` of which are there, have room among the free blocks."""
        return -(-upto // self.size) <= self.free

    def begin(self, i: int, cached: int, upto: int) -> bool:
        """Hand a request the blocks of its first ``upto`` tokens; False if too few are free."""
        if not self.fits(i, cached, upto):
            return False
        self.free -= -(-upto // self.size)
        return True

    def extend(self, i: int, computed: int, upto: int) -> bool:
        """More blocks for a request that has those of ``computed`` tokens."""
        need = -(-upto // self.size) + -computed // self.size
        if need > self.free:
            return False
        self.free -= need
        return True

    def take(self, blocks: int) -> None:
        """Blocks for answers; the caller has seen that they are free."""
        self.free -= blocks

    def release(self, i: int, blocks: int, computed: int, *, again: bool = False) -> None:
        """A request gives back its ``blocks``, which hold ``computed`` tokens; it may come ``again`` (preemption)."""
        self.free += blocks


class PrefixCache(KVCache):
    """Blocks that keep their content: ``PrefixCache(1000, 16, paths(trace.blocks, trace.block_tokens))``

    Without ``paths`` no two requests share anything; but one that is preempted may find its own blocks again.
    """

    def __init__(self, blocks: int, size: int, paths: PrefixTree | None = None) -> None:
        super().__init__(blocks, size)
        self.paths = paths
        self.calm = paths is None  # nothing in the queue will ever be asked for: counting is enough
        first, last = (paths.first, paths.last) if paths else (np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.start: list[int] = (first // size).tolist()  # blocks before a run
        self.long: list[int] = (last // size - first // size).tolist()  # blocks of a run
        self.there = [0] * len(self.long)  # of those, blocks whose content is in the cache
        self.users = [0] * len(self.long)
        self.nameless = -1 << 60
        self.queue: OrderedDict[int, int] = OrderedDict({self.nameless: blocks})  # run (≥ 0), preempted (~i) -> blocks
        self.holds: dict[int, list[int]] = {}  # request -> runs that it uses
        self.shared: dict[int, int] = {}  # request -> its blocks that belong to runs
        self.mark: dict[int, int] = {}  # preempted request -> its blocks that did when it left

    def _runs(self, i: int) -> tuple[int, ...]:
        return self.paths.of(i) if self.paths is not None else ()

    def match(self, i: int, tokens: int) -> int:
        """Tokens of a request that need not be computed: those of whole blocks that are still there."""
        if self.calm:
            return 0
        found = 0
        for run in self._runs(i):
            found += self.there[run]
            if self.there[run] < self.long[run]:
                break
        own = self.queue.get(~i, 0)  # what it left behind when it was preempted
        if own and found >= self.mark[i]:
            found = max(found, self.mark[i] + own)
        return min(found, (tokens - 1) // self.size) * self.size

    def _found(self, i: int, cached: int) -> tuple[list[int], int, int]:
        """Where a request's cached tokens are: the runs, blocks of theirs that are free, and blocks that it left."""
        wanted, kept = cached // self.size, 0
        runs: list[int] = []
        for run in self._runs(i):
            if self.start[run] >= wanted:
                break
            if not self.there[run]:  # too short for a whole block, or it would have ended the match
                continue
            runs.append(run)
            kept += self.there[run] if not self.users[run] else 0
        return runs, kept, max(0, wanted - (self.start[runs[-1]] + self.there[runs[-1]] if runs else 0))

    def fits(self, i: int, cached: int, upto: int) -> bool:
        """Whether the free blocks suffice; those with cached tokens that nobody uses are among them."""
        if self.calm:
            return super().fits(i, cached, upto)
        _, kept, own = self._found(i, cached)
        return -(-upto // self.size) - cached // self.size + kept + own <= self.free

    def begin(self, i: int, cached: int, upto: int) -> bool:
        """Take over the cached blocks and hand out the others; all or nothing."""
        if self.calm:
            return super().begin(i, cached, upto)
        wanted = cached // self.size
        runs, kept, own = self._found(i, cached)
        need = -(-upto // self.size) - wanted
        if need + kept + own > self.free:
            return False
        for run in runs:
            self.users[run] += 1
            self.queue.pop(run, None)
        rest = self.queue.pop(~i, own) - own
        self.free -= kept + own + rest
        self._put_back(self._nobody(), rest)
        self.holds[i], self.shared[i] = runs, wanted - own
        self._hand_out(need)
        self._fill(i, cached, upto)
        return True

    def extend(self, i: int, computed: int, upto: int) -> bool:
        """More blocks for a request, whose content others may use from now on."""
        if self.calm:
            return super().extend(i, computed, upto)
        need = -(-upto // self.size) + -computed // self.size
        if need > self.free:
            return False
        self._hand_out(need)
        self._fill(i, computed, upto)
        return True

    def take(self, blocks: int) -> None:
        """Blocks for answers, out of the queue."""
        if self.calm:
            self.free -= blocks
        else:
            self._hand_out(blocks)

    def release(self, i: int, blocks: int, computed: int, *, again: bool = False) -> None:
        """Blocks go back into the queue with their content: the last ones first."""
        if self.calm:
            if not again:
                self.free += blocks
                return
            self.calm = False
            self.queue = OrderedDict({self.nameless: self.free} if self.free else {})
        self._fill(i, 0, computed)  # what was answered may be part of the next turn's prompt
        shared = self.shared.pop(i, 0)
        whole = max(0, computed // self.size - shared) if again else 0  # blocks that it will find again, if in time
        self._put_back(self._nobody(), blocks - shared - whole)
        self._put_back(~i, whole)
        self.mark[i] = shared
        for run in reversed(self.holds.pop(i, ())):
            self.users[run] -= 1
            if not self.users[run]:
                self._put_back(run, self.there[run])

    # ------------------------------------------------------------------ the queue

    def _hand_out(self, blocks: int) -> None:
        """Take the blocks that were unused for longest; what was in them is forgotten."""
        self.free -= blocks
        while blocks:
            key, there = next(iter(self.queue.items()))
            taken = min(blocks, there)
            if taken < there:
                self.queue[key] = there - taken
            else:
                del self.queue[key]
            if key >= 0:
                self.there[key] -= taken
            blocks -= taken
        if self.paths is None and all(key < -1 << 50 for key in self.queue):
            self.calm = True
            self.holds.clear()
            self.shared.clear()

    def _put_back(self, key: int, blocks: int) -> None:
        if blocks:
            self.free += blocks
            self.queue[key] = self.queue.pop(key, 0) + blocks

    def _nobody(self) -> int:
        """A key for blocks whose content nobody will ask for; neighbours in the queue are one entry."""
        last = next(reversed(self.queue), 0)
        if last >= -1 << 50:
            self.nameless += 1
            return self.nameless
        return last

    def _fill(self, i: int, start: int, upto: int) -> None:
        """The runs of a request from ``start`` on have content up to ``upto`` tokens: others may use it from now on.

        A run that somebody else filled in the meantime stays theirs; the request's own copy has no name.
        """
        whole, begun = upto // self.size, start // self.size
        for run in self._runs(i):
            first = self.start[run]
            if first >= whole:
                break
            if first + self.long[run] <= begun:
                continue
            runs = self.holds[i]
            have, filled = self.there[run], min(self.long[run], whole - first)
            mine = run in runs
            if not mine and not have and filled:
                self.users[run] += 1
                runs.append(run)
                mine = True
            if mine and filled > have:
                self.there[run] = filled
                self.shared[i] += filled - have
