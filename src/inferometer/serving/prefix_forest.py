"""What the prompts of sessions share, as a forest of segments that grows turn by turn; nothing is kept per token.

forest = PrefixForest()
system = forest.root("agent", 2_000)            # a system prompt that all sessions begin with
first = forest.grow(system, 2_000, 9_000)       # a turn that goes on from it: 9,000 tokens with its answer
second = forest.grow(first, 9_000, 12_000)      # the turn after, whose prompt begins with all of that

A segment is a stretch of tokens; its path to the root is all that comes before it. A conversation that nothing branches
off is one segment, however many turns it has: it is filled as its turns are computed. Where two prompts part, their
segment is cut in two. `Prefixes` is what a `PrefixCache` reads, in place of the ids of all blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable

import numpy as np

from .kv_cache import PrefixTree

PATHS_KEPT = 65_536  # requests whose paths are remembered: more than any server has at once


class Prefixes(PrefixTree):
    """The segments of every request: ``prefixes.of(i)``, from its first token on."""

    def __init__(self, first: np.ndarray, last: np.ndarray, parent: np.ndarray, leaf: np.ndarray) -> None:
        super().__init__(first, last, [], [])
        self.parent: list[int] = parent.tolist()
        self.leaf = leaf  # the last segment of every request, -1: it shares nothing
        self._leaf = array("q", np.ascontiguousarray(leaf, np.int64).tobytes())  # the same, read faster one by one
        self._paths: dict[int, tuple[int, ...]] = {}

    def of(self, i: int) -> tuple[int, ...]:
        """The segments of a request, in order."""
        leaf = self._leaf[i]
        path = self._paths.get(leaf)
        if path is None:
            if len(self._paths) >= PATHS_KEPT:
                self._paths.clear()
            path = self._paths[leaf] = self._path(leaf)
        return path

    def _path(self, leaf: int) -> tuple[int, ...]:
        path = []
        while leaf >= 0:
            path.append(leaf)
            leaf = self.parent[leaf]
        return tuple(reversed(path))

    def at(self, rows: np.ndarray) -> Prefixes:
        """The prefixes of some requests: ``prefixes.at(np.arange(100))``"""
        return Prefixes(self.first, self.last, np.array(self.parent, np.int64), self.leaf[rows])

    def blocks(self, block_tokens: int, tokens: np.ndarray) -> tuple[np.ndarray, ...]:
        """The same as ids of blocks, for the first ``tokens`` of every request; equal ids are equal content."""
        starts = np.concatenate([[0], np.cumsum(self.last // block_tokens - self.first // block_tokens)])
        out = []
        for i, most in enumerate((tokens // block_tokens).tolist()):
            ids = [np.arange(starts[s], starts[s + 1]) for s in self.of(i)]
            out.append(np.concatenate(ids)[:most] if ids else np.zeros(0, np.int64))
        return tuple(out)


class PrefixForest:
    """Builds `Prefixes`: ``forest.grow(leaf, shared, total)`` gives the leaf of a prompt and its answer."""

    def __init__(self) -> None:
        self.first, self.last, self.parent = array("q"), array("q"), array("q")
        self.is_tip = array("b")  # whether nothing has branched off a segment or cut it: it may still grow
        self.roots: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.first)

    def root(self, name: Hashable, tokens: int) -> int:
        """The segment that prompts of this name begin with; -1 if it is empty. Other lengths are other content."""
        if tokens <= 0:
            return -1
        key = (name, tokens)
        if key not in self.roots:
            self.roots[key] = self._add(-1, 0, tokens, tip=False)
        return self.roots[key]

    def grow(self, leaf: int, shared: int, total: int) -> int:
        """The leaf of ``total`` tokens, the first ``shared`` of which are those of the path to ``leaf`` (-1: none)."""
        if shared <= 0 or leaf < 0:
            return self._add(-1, 0, total)
        if self.is_tip[leaf] and self.last[leaf] == shared:  # the same conversation goes on
            self.last[leaf] = max(total, shared)
            return leaf
        at = leaf
        while self.parent[at] >= 0 and self.first[at] >= shared:
            at = self.parent[at]
        shared = min(shared, self.last[at])
        if total <= shared:  # all of it was there before
            return self._cut(at, total)
        return self._add(self._cut(at, shared), shared, total)

    def _add(self, parent: int, first: int, last: int, *, tip: bool = True) -> int:
        self.first.append(first)
        self.last.append(last)
        self.parent.append(parent)
        self.is_tip.append(tip)
        return len(self.first) - 1

    def _cut(self, segment: int, where: int) -> int:
        """The segment that ends at ``where`` in this one; what comes after it keeps its number."""
        if where >= self.last[segment]:
            self.is_tip[segment] = False
            return segment
        if where <= self.first[segment]:
            return self.parent[segment]
        upper = self._add(self.parent[segment], self.first[segment], where, tip=False)
        self.first[segment], self.parent[segment] = where, upper
        return upper

    def build(self, leaf: array[int]) -> Prefixes:
        """The prefixes of requests with these leaves."""
        columns = (np.array(values, np.int64) for values in (self.first, self.last, self.parent, leaf))
        return Prefixes(*columns)


class HashIds:
    """Ids of blocks of one namespace, put into a forest: ``HashIds(forest, 64).leaf([1, 2, 3])``

    Only recorded prompts are shared: an answer has no ids until a later prompt repeats it.
    """

    def __init__(self, forest: PrefixForest, block_tokens: int) -> None:
        self.forest, self.block_tokens = forest, block_tokens
        self.ids: dict[int, np.ndarray] = {}  # of every segment here
        self.children: dict[int, dict[int, int]] = {-1: {}}  # segment -> first id of a child -> the child

    def leaf(self, ids: np.ndarray) -> int:
        """The segment that ends with the last of these ids; segments are cut where prompts part or end."""
        at, place = -1, 0
        while place < len(ids):
            child = self.children[at].get(int(ids[place]))
            if child is None:
                return self._new(at, place, ids[place:])
            own = self.ids[child]
            rest = ids[place : place + len(own)]
            same = len(rest) if np.array_equal(own[: len(rest)], rest) else int(np.argmin(own[: len(rest)] == rest))
            at = child if same == len(own) else self._split(at, child, same)
            place += same
        return at

    def _new(self, parent: int, place: int, ids: np.ndarray) -> int:
        size = self.block_tokens
        segment = self.forest._add(parent, place * size, (place + len(ids)) * size, tip=False)
        self.ids[segment], self.children[segment] = ids, {}
        self.children[parent][int(ids[0])] = segment
        return segment

    def _split(self, parent: int, segment: int, same: int) -> int:
        ids = self.ids[segment]
        upper = self.forest._cut(segment, self.forest.first[segment] + same * self.block_tokens)
        self.ids[upper], self.ids[segment] = ids[:same], ids[same:]
        self.children[upper] = {int(ids[same]): segment}
        self.children[parent][int(ids[0])] = upper
        return upper
