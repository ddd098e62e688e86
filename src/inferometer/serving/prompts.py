"""What prompts share, as paths through a tree: runs of blocks that always come together.

Two prompts with the same first blocks walk along the same runs until they part. A request's path is a few runs, however
long its prompt is, and a run is named by all that comes before it, as chained block hashes are.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np


class Paths:
    """``paths.of(i)``: the runs of request i, from its first token on; run r has tokens ``first[r]`` to ``last[r]``."""

    def __init__(self, first: np.ndarray, last: np.ndarray, runs: list[tuple[int, ...]], which: list[int]) -> None:
        self.first, self.last = first, last
        self.runs, self.which = runs, which

    def of(self, i: int) -> tuple[int, ...]:
        """The runs of a request, in order."""
        return self.runs[self.which[i]]


def paths(blocks: tuple[np.ndarray, ...], tokens: int, prompts: np.ndarray) -> Paths:
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
        return Paths(empty, empty, [()] * len(lists), which)
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
    return Paths(first, last, [tuple(listed[a:b]) for a, b in pairwise(cuts.tolist())], which)


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
