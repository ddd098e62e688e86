"""The paged cache: blocks, runs of prompts, eviction; beside a cache that keeps every block by itself, as vLLM does."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.base.units import ceil_div
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
        for k in range(cached, ceil_div(tokens, self.size)):
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


@pytest.mark.slow
@given(st.integers(0, 2**31), st.sampled_from([12, 20, 40, 200]), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_segments_are_evicted_as_blocks_are(seed: int, blocks: int, together: int) -> None:
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
        while len(open_) >= together or ceil_div(tokens, size) > len(truth.queue):
            if not open_:
                break
            j, mine = open_.pop(0)
            truth.release(mine)
            ours.release(j, ceil_div(int(lengths[j]), size), int(lengths[j]))
        if ceil_div(tokens, size) > len(truth.queue):
            continue
        cached = ours.match_prefix(i, tokens)
        assert ours.allocate(i, cached, tokens)
        wanted, mine = truth.begin([int(x) for x in ids[i]], tokens)
        assert cached == wanted
        assert ours.free_blocks == len(truth.queue) == sum(ours.free_queue.values())
        open_.append((i, mine))


def test_a_prompt_that_is_all_there_computes_its_last_token() -> None:
    ids = (np.array([1, 2, 3]), np.array([1, 2, 3]), np.array([1, 2, 9]))
    cache = PrefixCache(20, 16, prefix_tree(ids, 16, np.array([48, 48, 48])))
    assert cache.match_prefix(0, 48) == 0 and cache.allocate(0, 0, 48)
    assert cache.match_prefix(1, 48) == 32, "only whole blocks, and never the last token"
    assert cache.match_prefix(2, 48) == 32
    assert cache.allocate(1, 32, 48) and cache.free_blocks == 20 - 3 - 1
    cache.release(0, 3, 48)
    cache.release(1, 3, 48)
    assert cache.free_blocks == 20 and cache.match_prefix(0, 48) == 32, "what is free keeps its content"
    cache.take(20)
    assert cache.match_prefix(0, 48) == 0 and cache.free_blocks == 0


def test_what_is_computed_in_this_step_others_have_in_this_step() -> None:
    ids = (np.arange(4), np.arange(4))
    cache = PrefixCache(100, 16, prefix_tree(ids, 16, np.array([64, 64])))
    assert cache.allocate(0, 0, 40)  # a piece of the prompt: two blocks and a half
    assert cache.match_prefix(1, 64) == 32
    assert cache.extend(0, 40, 64) and cache.match_prefix(1, 64) == 48


def test_an_answer_is_part_of_the_next_prompt() -> None:
    ids = (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4, 5]))
    cache = PrefixCache(100, 16, prefix_tree(ids, 16, np.array([32, 80])))
    assert cache.allocate(0, 0, 32)
    assert cache.match_prefix(1, 80) == 32
    cache.take(2)  # an answer of 40 tokens
    cache.release(0, 5, 32 + 39)
    assert cache.match_prefix(1, 80) == 64


def test_a_preempted_request_may_find_its_blocks_again() -> None:
    cache = PrefixCache(10, 16)
    assert cache.allocate(0, 0, 100) and cache.allocate(1, 0, 40)
    cache.release(0, 7, 100, preempted=True)
    assert cache.match_prefix(0, 101) == 96 and cache.free_blocks == 7
    assert cache.allocate(2, 0, 33)  # takes its last blocks first
    assert cache.match_prefix(0, 101) == 64
    cache.release(1, 3, 40)
    assert (
        cache.allocate(0, 64, 101)
        and cache.free_blocks == 10 - 3 - 7
        and sum(cache.free_queue.values()) == cache.free_blocks
    )


def test_blocks_without_content_are_counted() -> None:
    cache = KVCache(10, 16)
    assert cache.allocate(0, 0, 33) and cache.free_blocks == 7
    assert cache.extend(0, 33, 48) and cache.free_blocks == 7
    assert cache.extend(0, 48, 49) and cache.free_blocks == 6
    assert not cache.allocate(1, 0, 97) and cache.free_blocks == 6
    cache.release(0, 4, 49)
    assert cache.free_blocks == 10


@given(st.integers(0, 2**31), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_a_prefix_tree_says_what_prompts_share(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = tuple(rng.integers(0, 2, rng.integers(0, 8)) for _ in range(n))
    lengths = rng.integers(1, 40, n)
    tree = prefix_tree(blocks, 4, lengths)
    for i in range(n):
        segments = tree.of(i)
        assert sum(tree.last[r] - tree.first[r] for r in segments) == 4 * len(blocks[i])
        assert all(tree.first[b] == tree.last[a] for a, b in pairwise(segments))
        for j in range(n):
            same = next(
                (k for k, (a, b) in enumerate(zip(blocks[i], blocks[j], strict=False)) if a != b),
                min(len(blocks[i]), len(blocks[j])),
            )
            both = [a for a, b in zip(segments, tree.of(j), strict=False) if a == b]
            assert sum(tree.last[r] - tree.first[r] for r in both) == 4 * same


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60)), min_size=1, max_size=12),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([1.0, 1.0, 2.3]),
    st.integers(0, 80),
)
@settings(max_examples=150, deadline=None)
def test_a_batch_grows_as_its_sequences_do(
    many: list[tuple[int, int]], block: int, accepted: float, steps: int
) -> None:
    batch = DecodeBatch(len(many), block, accepted)
    batch.advance(3)
    for i, (context, left) in enumerate(many):
        batch.join(i, context, left)
    clock, held = batch.clock, sum(batch.blocks_of(i) for i in range(len(many)))
    assert held == sum(ceil_div(context, block) for context, _ in many)
    assert batch.total_context() == sum(context for context, _ in many) == batch.contexts().sum()
    grown, first = batch.block_growth(steps), batch.steps_to_first_finish()
    assert batch.max_steps_within(grown, steps) == steps
    if grown:
        assert batch.block_growth(batch.max_steps_within(grown - 1, steps)) < grown
    batch.advance(steps)
    assert sum(batch.blocks_of(i) for i in range(len(many))) == held + grown
    assert batch.total_context() == sum(context for context, _ in many) + len(many) * (batch.clock - clock)
    ended = set()
    while (i := batch.pop_finished()) >= 0:
        ended.add(i)
    assert ended == {i for i, (_, left) in enumerate(many) if left <= batch.clock - clock}
    assert bool(ended) == (steps >= first)
    for i in sorted(ended):
        batch.leave(i)
    assert batch.num_seqs == len(many) - len(ended) == sum(batch.block_phase_counts)


def test_dropping_a_sequence_says_what_it_lacks() -> None:
    batch = DecodeBatch(4, 16)
    batch.join(0, 100, 30)
    batch.join(3, 50, 10)
    batch.advance(4)
    assert batch.drop(0) == 26 and batch.steps_to_first_finish() == 6
    with pytest.raises(StopIteration):
        batch.drop(0)
