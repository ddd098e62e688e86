"""The paged cache: blocks, runs of prompts, eviction; beside a cache that keeps every block by itself, as vLLM does."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.serving.batch import DecodeBatch
from inferometer.serving.kv_cache import KVCache, PrefixCache, prefix_tree


class BlockByBlock:
    """Every block an object: a free queue, least recently used first, and a table from chained content to block."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size = size
        self.queue = deque(range(blocks))
        self.content: dict[int, tuple[int, ...]] = {}
        self.where: dict[tuple[int, ...], int] = {}
        self.users = [0] * blocks

    def begin(self, words: list[int], tokens: int) -> tuple[int, list[int]]:
        """Blocks of a prompt: cached tokens, and the blocks."""
        mine: list[int] = []
        for k in range((tokens - 1) // self.size):
            found = self.where.get(tuple(words[: k + 1])) if k < len(words) else None
            if found is None:
                break
            mine.append(found)
        for block in mine:
            if not self.users[block]:
                self.queue.remove(block)
            self.users[block] += 1
        cached = len(mine)
        for k in range(cached, -(-tokens // self.size)):
            block = self.queue.popleft()
            if block in self.content:
                old = self.content.pop(block)
                if self.where.get(old) == block:
                    del self.where[old]
            self.users[block] = 1
            if k < min(tokens // self.size, len(words)):
                self.content[block] = tuple(words[: k + 1])
                self.where.setdefault(self.content[block], block)
            mine.append(block)
        return cached * self.size, mine

    def release(self, mine: list[int]) -> None:
        for block in reversed(mine):
            self.users[block] -= 1
            if not self.users[block]:
                self.queue.append(block)


@given(st.integers(0, 2**31), st.sampled_from([12, 20, 40, 200]), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_runs_are_evicted_as_blocks_are(seed: int, blocks: int, together: int) -> None:
    rng, size, n = np.random.default_rng(seed), 4, 40
    lengths = rng.integers(1, 11, n) * size + rng.integers(1, size, n)  # never whole blocks: none is computed twice
    group, parting = rng.integers(0, 4, n), rng.integers(0, 8, n)
    words = [
        [int(g) if k < p else 100 + i for k in range(m // size)]
        for i, (g, p, m) in enumerate(zip(group, parting, lengths, strict=True))
    ]
    ids = tuple(np.array([w * (10 if w < 100 else 1000) + k for k, w in enumerate(each)], np.int64) for each in words)
    ours = PrefixCache(blocks, size, prefix_tree(ids, size, lengths))
    truth = BlockByBlock(blocks, size)
    open_: list[tuple[int, list[int]]] = []
    for i in range(n):
        tokens = int(lengths[i])
        while len(open_) >= together or -(-tokens // size) > len(truth.queue):
            if not open_:
                break
            j, mine = open_.pop(0)
            truth.release(mine)
            ours.release(j, -(-int(lengths[j]) // size), int(lengths[j]))
        if -(-tokens // size) > len(truth.queue):
            continue
        cached = ours.match(i, tokens)
        assert ours.begin(i, cached, tokens)
        wanted, mine = truth.begin([int(x) for x in ids[i]], tokens)
        assert cached == wanted
        assert ours.free == len(truth.queue) == sum(ours.queue.values())
        open_.append((i, mine))


def test_a_prompt_that_is_all_there_computes_its_last_token() -> None:
    ids = (np.array([1, 2, 3]), np.array([1, 2, 3]), np.array([1, 2, 9]))
    cache = PrefixCache(20, 16, prefix_tree(ids, 16, np.array([48, 48, 48])))
    assert cache.match(0, 48) == 0 and cache.begin(0, 0, 48)
    assert cache.match(1, 48) == 32, "only whole blocks, and never the last token"
    assert cache.match(2, 48) == 32
    assert cache.begin(1, 32, 48) and cache.free == 20 - 3 - 1
    cache.release(0, 3, 48)
    cache.release(1, 3, 48)
    assert cache.free == 20 and cache.match(0, 48) == 32, "what is free keeps its content"
    cache.take(20)
    assert cache.match(0, 48) == 0 and cache.free == 0


def test_what_is_computed_in_this_step_others_have_in_this_step() -> None:
    ids = (np.arange(4), np.arange(4))
    cache = PrefixCache(100, 16, prefix_tree(ids, 16, np.array([64, 64])))
    assert cache.begin(0, 0, 40)  # a piece of the prompt: two blocks and a half
    assert cache.match(1, 64) == 32
    assert cache.extend(0, 40, 64) and cache.match(1, 64) == 48


def test_an_answer_is_part_of_the_next_prompt() -> None:
    ids = (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4, 5]))
    cache = PrefixCache(100, 16, prefix_tree(ids, 16, np.array([32, 80])))
    assert cache.begin(0, 0, 32)
    assert cache.match(1, 80) == 32
    cache.take(2)  # an answer of 40 tokens
    cache.release(0, 5, 32 + 39)
    assert cache.match(1, 80) == 64


def test_whoever_is_preempted_may_find_his_blocks_again() -> None:
    cache = PrefixCache(10, 16)
    assert cache.begin(0, 0, 100) and cache.begin(1, 0, 40)
    cache.release(0, 7, 100, again=True)
    assert cache.match(0, 101) == 96 and cache.free == 7
    assert cache.begin(2, 0, 33)  # takes his last blocks first
    assert cache.match(0, 101) == 64
    cache.release(1, 3, 40)
    assert cache.begin(0, 64, 101) and cache.free == 10 - 3 - 7 and sum(cache.queue.values()) == cache.free


def test_blocks_without_content_are_counted() -> None:
    cache = KVCache(10, 16)
    assert cache.begin(0, 0, 33) and cache.free == 7
    assert cache.extend(0, 33, 48) and cache.free == 7
    assert cache.extend(0, 48, 49) and cache.free == 6
    assert not cache.begin(1, 0, 97) and cache.free == 6
    cache.release(0, 4, 49)
    assert cache.free == 10


@given(st.integers(0, 2**31), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_paths_say_what_prompts_share(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = tuple(rng.integers(0, 2, rng.integers(0, 8)) for _ in range(n))
    lengths = rng.integers(1, 40, n)
    found = prefix_tree(blocks, 4, lengths)
    for i in range(n):
        runs = found.of(i)
        assert sum(found.last[r] - found.first[r] for r in runs) == 4 * len(blocks[i])
        assert all(found.first[b] == found.last[a] for a, b in pairwise(runs))
        for j in range(n):
            same = next(
                (k for k, (a, b) in enumerate(zip(blocks[i], blocks[j], strict=False)) if a != b),
                min(len(blocks[i]), len(blocks[j])),
            )
            both = [a for a, b in zip(runs, found.of(j), strict=False) if a == b]
            assert sum(found.last[r] - found.first[r] for r in both) == 4 * same


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60)), min_size=1, max_size=12),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([1.0, 1.0, 2.3]),
    st.integers(0, 80),
)
@settings(max_examples=150, deadline=None)
def test_a_batch_grows_as_its_sequences_do(many: list[tuple[int, int]], block: int, pace: float, steps: int) -> None:
    batch = DecodeBatch(len(many), block, pace)
    batch.advance(3)
    for i, (context, left) in enumerate(many):
        batch.join(i, context, left)
    clock, held = batch.clock, sum(batch.blocks_of(i) for i in range(len(many)))
    assert held == sum(-(-context // block) for context, _ in many)
    assert batch.total() == sum(context for context, _ in many) == batch.lengths().sum()
    grown, first = batch.growth(steps), batch.until_end()
    assert batch.affordable(steps, grown) == steps
    if grown:
        assert batch.growth(batch.affordable(steps, grown - 1)) < grown
    batch.advance(steps)
    assert sum(batch.blocks_of(i) for i in range(len(many))) == held + grown
    assert batch.total() == sum(context for context, _ in many) + len(many) * (batch.clock - clock)
    ended = set()
    while (i := batch.ended()) >= 0:
        ended.add(i)
    assert ended == {i for i, (_, left) in enumerate(many) if left <= batch.clock - clock}
    assert bool(ended) == (steps >= first)
    for i in sorted(ended):
        batch.leave(i)
    assert batch.rows == len(many) - len(ended) and sum(batch.ring) == batch.rows


def test_dropping_a_sequence_says_what_it_lacks() -> None:
    batch = DecodeBatch(4, 16)
    batch.join(0, 100, 30)
    batch.join(3, 50, 10)
    batch.advance(4)
    assert batch.drop(0) == 26 and batch.until_end() == 6
    with pytest.raises(StopIteration):
        batch.drop(0)
