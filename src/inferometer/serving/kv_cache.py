"""The paged KV cache of a replica: blocks of tokens, handed out and taken back as vLLM does it.

Free blocks stand in a queue, those unused for longest first; a block keeps its content until it is handed out again.
With prefix caching a request whose first blocks are still there (in use by other requests, or in the queue) takes them
over. When a request finishes its blocks join the queue last to first, so that the beginnings of prompts stay longest.

Blocks are not objects here. What prompts share is a `PrefixTree`: two prompts with the same first blocks walk along the
same segments until they part, and a segment is named by all that comes before it, as chained block hashes are. A
request's path is a few segments, however long its prompt is. A segment is one entry of the free queue, and is given up
from its end, block by block: that is what block-wise eviction does to it.

cache = PrefixCache(1000, 16, prefix_tree(trace.blocks, trace.block_tokens, trace.input_tokens))
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import numpy as np

from ..base.errors import BadValue
from ..base.units import ceil_div
from ..costs import parallelism
from ..costs.binding import BoundPlan, stage_plans
from ..inference.cache_size import cache_bytes

# Share of a link that the many pieces of a KV cache reach (a page of a layer each): fitted to the first tokens of
# disaggregated servers of B200 that measured 8,192-token prompts; docs/accuracy.md says on which, and how others fare.
KV_TRANSFER_SHARE = 0.2


class PrefixTree:
    """``tree.of(i)``: the segments of request i, from its first token on.

    Segment s covers the tokens from ``first[s]`` up to ``last[s]`` of every prompt that has it.
    """

    def __init__(self, first: np.ndarray, last: np.ndarray, segments: list[tuple[int, ...]], which: list[int]) -> None:
        self.first, self.last = first, last
        self.segments, self.which = segments, which  # segments of every distinct prompt; which one a request has

    def of(self, i: int) -> tuple[int, ...]:
        """The segments of a request, in order."""
        return self.segments[self.which[i]]


def prefix_tree(blocks: tuple[np.ndarray, ...], block_tokens: int, prompts: np.ndarray) -> PrefixTree:
    """The segments of every request, whose leading blocks of ``block_tokens`` tokens have these ids.

    ``prompts`` are the input tokens of every request. Segments part where a prompt ends, too: what follows is its
    output, which the next turn of the conversation has in its prompt.
    """
    lists, which = _distinct(blocks)
    sizes = np.array([len(ids) for ids in lists], np.int64)
    if not sizes.sum():
        empty = np.zeros(0, np.int64)
        return PrefixTree(empty, empty, [()] * len(lists), which)
    # flat: the ids of all distinct lists behind each other, (blocks,); starts: where each list begins, (lists,)
    flat = np.concatenate(lists).astype(np.uint64)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    depth = np.arange(len(flat)) - np.repeat(starts, sizes)  # place of a block in its list
    prefix = np.unique(_fingerprints(flat, depth, starts, sizes), return_inverse=True)[1]  # equal: same up to here
    parts = _branches(prefix, starts, sizes)
    list_of, within = np.array(which), prompts // block_tokens
    ends = (within > 0) & (within <= sizes[list_of])
    parts[prefix[(starts[list_of] + within - 1)[ends]]] = True
    heads = np.flatnonzero((depth == 0) | np.concatenate([[True], parts[prefix[:-1]]]))  # first blocks of segments
    _, seen, segment = np.unique(prefix[heads], return_index=True, return_inverse=True)
    edges = np.append(heads[1:], len(flat))
    first = depth[heads][seen] * block_tokens
    last = first + (edges - heads)[seen] * block_tokens
    owner = np.searchsorted(starts + sizes, heads, side="right")
    cuts = np.searchsorted(owner, np.arange(len(lists) + 1))
    numbers = segment.tolist()
    return PrefixTree(first, last, [tuple(numbers[a:b]) for a, b in pairwise(cuts.tolist())], which)


def lone_prompts(prompts: np.ndarray) -> PrefixTree:
    """Prompts that share nothing, each a segment of its own; its blocks are looked up again if it is preempted."""
    count = len(prompts)
    return PrefixTree(np.zeros(count, np.int64), prompts, [(i,) for i in range(count)], list(range(count)))


def _distinct(blocks: tuple[np.ndarray, ...]) -> tuple[list[np.ndarray], list[int]]:
    """The distinct arrays, and which one every request has: requests with one prefix share one array object."""
    known: dict[int, int] = {}
    lists: list[np.ndarray] = []
    which: list[int] = []
    for ids in blocks:
        number = known.get(id(ids))
        if number is None:
            number = known[id(ids)] = len(lists)
            lists.append(ids)
        which.append(number)
    return lists, which


def _branches(prefix: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """After which prefixes requests part, an end included: (distinct prefixes,) bool."""
    follows = np.append(prefix[1:], -1)
    follows[(starts + sizes - 1)[sizes > 0]] = -1
    lowest, highest = np.full(prefix.max() + 1, np.iinfo(np.int64).max), np.full(prefix.max() + 1, -2)
    np.minimum.at(lowest, prefix, follows)
    np.maximum.at(highest, prefix, follows)
    parts: np.ndarray = lowest != highest
    return parts


def _fingerprints(ids: np.ndarray, depth: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """A 64-bit hash for every block that stands for all blocks before it, too.

    Ids are mixed (splitmix64) and summed with powers of an odd factor, so that order counts: a polynomial hash.
    """
    with np.errstate(over="ignore"):
        mixed = ids + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        powers = np.cumprod(np.full(int(sizes.max()), np.uint64(0xD6E8FEB86659FD93)))
        sums = np.cumsum(mixed * powers[depth])
        before = np.concatenate([np.zeros(1, np.uint64), sums[:-1]])[np.minimum(starts, len(sums) - 1)]
        return np.asarray(sums - np.repeat(before, sizes))


class KVCache:
    """Blocks without content: what an engine has that caches no prefixes, or a trace that shares none.

    cache = KVCache(num_blocks=1000, block_size=16)
    cache.allocate(i, 0, 512)       # True: request i has blocks for 512 tokens
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free_blocks = num_blocks
        self.queried_tokens = self.hit_tokens = 0  # tokens of prompts, and those that the cache had

    def match_prefix(self, i: int, tokens: int) -> int:
        """Tokens of a request's ``tokens`` that need not be computed; at least one always must."""
        return 0

    def can_hold(self, i: int, cached: int, upto: int) -> bool:
        """Whether a request's first ``upto`` tokens, ``cached`` of which are there, have room in the free blocks."""
        return ceil_div(upto, self.block_size) <= self.free_blocks

    def allocate(self, i: int, cached: int, upto: int) -> bool:
        """Hand a request the blocks of its first ``upto`` tokens; False if too few are free."""
        need = ceil_div(upto, self.block_size)
        if need > self.free_blocks:
            return False
        self.free_blocks -= need
        return True

    def extend(self, i: int, computed: int, upto: int) -> bool:
        """More blocks for a request that has those of ``computed`` tokens; False if too few are free."""
        need = ceil_div(upto, self.block_size) - ceil_div(computed, self.block_size)
        if need > self.free_blocks:
            return False
        self.free_blocks -= need
        return True

    def take(self, blocks: int) -> None:
        """Blocks for decoding sequences; the caller has seen that they are free."""
        self.free_blocks -= blocks

    def release(self, i: int, blocks: int, computed: int, *, preempted: bool = False) -> None:
        """A request gives back its ``blocks``, which hold ``computed`` tokens; a ``preempted`` one will come again."""
        self.free_blocks += blocks


_ANONYMOUS = -1 << 50  # keys of the free queue below this are blocks whose content is never looked up again


class PrefixCache(KVCache):
    """Blocks that keep their content: ``PrefixCache(1000, 16, prefix_tree(...))``

    Without a ``tree`` no two requests share anything; but a preempted one may find its own blocks again.
    """

    stores_evicted = False  # `_on_evicted` is to be called

    def __init__(self, num_blocks: int, block_size: int, tree: PrefixTree | None = None) -> None:
        super().__init__(num_blocks, block_size)
        self.tree = tree
        self.no_reuse = tree is None  # nothing in the queue will ever be looked up: counting is enough
        first, last = (tree.first, tree.last) if tree else (np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.start_block: list[int] = (first // block_size).tolist()  # per segment: blocks before it,
        self.length: list[int] = (last // block_size - first // block_size).tolist()  # its blocks,
        self.cached_blocks = [0] * len(self.length)  # those whose content is in the cache,
        self.content_blocks = 0  # of all segments
        self.ref_counts = [0] * len(self.length)  # and the requests that use it
        self._last_anonymous = -1 << 60
        # LRU order; segment (>= 0), preempted request (~i), or anonymous (below _ANONYMOUS) -> blocks
        self.free_queue: OrderedDict[int, int] = OrderedDict({self._last_anonymous: num_blocks})
        self.segments_of: dict[int, dict[int, None]] = {}  # request -> segments that it uses, in order
        self.shared_blocks: dict[int, int] = {}  # request -> its blocks that belong to segments
        self.shared_at_preempt: dict[int, int] = {}  # preempted request -> the same when it left

    def _path(self, i: int) -> tuple[int, ...]:
        return self.tree.of(i) if self.tree is not None else ()

    def match_prefix(self, i: int, tokens: int) -> int:
        """Tokens of a request that need not be computed: those of whole blocks that are still there."""
        if self.no_reuse:
            return 0
        blocks = 0
        for segment in self._path(i):
            blocks += self.cached_blocks[segment]
            if self.cached_blocks[segment] < self.length[segment]:
                break
        own = self.free_queue.get(~i, 0)  # what it left behind when it was preempted
        if own and blocks >= self.shared_at_preempt[i]:
            blocks = max(blocks, self.shared_at_preempt[i] + own)
        return min(blocks, (tokens - 1) // self.block_size) * self.block_size

    def _locate(self, i: int, cached: int) -> tuple[list[int], int, int]:
        """Where a request's cached tokens are: segments, their blocks in the free queue, and blocks that it left."""
        wanted, idle = cached // self.block_size, 0
        segments: list[int] = []
        for segment in self._path(i):
            if self.start_block[segment] >= wanted:
                break
            if not self.cached_blocks[segment]:  # too short for a whole block, or it would have ended the match
                continue
            segments.append(segment)
            idle += self.cached_blocks[segment] if not self.ref_counts[segment] else 0
        covered = self.start_block[segments[-1]] + self.cached_blocks[segments[-1]] if segments else 0
        return segments, idle, max(0, wanted - covered)

    def can_hold(self, i: int, cached: int, upto: int) -> bool:
        """Whether the free blocks suffice; cached blocks that no request uses are among them."""
        if self.no_reuse:
            return super().can_hold(i, cached, upto)
        _, idle, own = self._locate(i, cached)
        return ceil_div(upto, self.block_size) - cached // self.block_size + idle + own <= self.free_blocks

    def allocate(self, i: int, cached: int, upto: int) -> bool:
        """Take over the cached blocks and hand out the others; all or nothing."""
        if self.no_reuse:
            return super().allocate(i, cached, upto)
        if not self._take_over(i, cached, upto):
            return False
        self._fill(i, cached, upto)
        return True

    def _take_over(self, i: int, cached: int, upto: int) -> bool:
        """The blocks of a request, those behind the cached ones still empty; all or nothing."""
        wanted = cached // self.block_size
        segments, idle, own = self._locate(i, cached)
        need = ceil_div(upto, self.block_size) - wanted
        if need + idle + own > self.free_blocks:
            return False
        for segment in segments:
            self.ref_counts[segment] += 1
            self.free_queue.pop(segment, None)
        rest = self.free_queue.pop(~i, own) - own
        self.free_blocks -= idle + own + rest
        self._append_free(self._anonymous_key(), rest)
        self.segments_of[i], self.shared_blocks[i] = dict.fromkeys(segments), wanted - own
        self._evict(need)
        return True

    def extend(self, i: int, computed: int, upto: int) -> bool:
        """More blocks for a request, whose content other requests may use from now on."""
        if self.no_reuse:
            return super().extend(i, computed, upto)
        need = ceil_div(upto, self.block_size) - ceil_div(computed, self.block_size)
        if need > self.free_blocks:
            return False
        self._evict(need)
        self._fill(i, computed, upto)
        return True

    def take(self, blocks: int) -> None:
        """Blocks for decoding sequences, out of the free queue."""
        if self.no_reuse:
            self.free_blocks -= blocks
        else:
            self._evict(blocks)

    def untake(self, blocks: int) -> None:
        """Blocks that were taken are not needed yet: they are the next to be handed out."""
        if blocks:
            self._last_anonymous += 1
            self.free_blocks += blocks
            self.free_queue[self._last_anonymous] = blocks
            self.free_queue.move_to_end(self._last_anonymous, last=False)

    def release(self, i: int, blocks: int, computed: int, *, preempted: bool = False) -> None:
        """Blocks go back into the free queue with their content: the last ones first."""
        if self.no_reuse:
            if not preempted:
                self.free_blocks += blocks
                return
            self.no_reuse = False
            self.free_queue = OrderedDict({self._last_anonymous: self.free_blocks} if self.free_blocks else {})
        self._fill(i, 0, computed)  # the output may be part of the next turn's prompt
        shared = self.shared_blocks.pop(i, 0)
        whole = max(0, computed // self.block_size - shared) if preempted else 0  # what it finds again, if in time
        self._append_free(self._anonymous_key(), blocks - shared - whole)
        if whole:
            self._append_free(~i, whole)
            self.shared_at_preempt[i] = shared
        for segment in reversed(self.segments_of.pop(i, {})):
            self.ref_counts[segment] -= 1
            if not self.ref_counts[segment]:
                self._append_free(segment, self.cached_blocks[segment])

    def warm(self, i: int, tokens: int) -> None:
        """The first tokens of a request are there from the start, as if another one that has them had just ended."""
        blocks = min(tokens // self.block_size, self.num_blocks)
        tokens = blocks * self.block_size
        if blocks and self.allocate(i, PrefixCache.match_prefix(self, i, tokens + 1), tokens):
            PrefixCache.release(self, i, blocks, tokens)

    # ------------------------------------------------------------------ the free queue

    def _evict(self, blocks: int) -> None:
        """Take the blocks that were unused for longest; their content is lost."""
        self.free_blocks -= blocks
        while blocks:
            key, available = next(iter(self.free_queue.items()))
            taken = min(blocks, available)
            if taken < available:
                self.free_queue[key] = available - taken
            else:
                del self.free_queue[key]
            if key >= 0:
                self.cached_blocks[key] -= taken
                self.content_blocks -= taken
                if self.stores_evicted:
                    left = self.cached_blocks[key]
                    self._on_evicted(key, left, left + taken)
            blocks -= taken
        if self.tree is None and all(key < _ANONYMOUS for key in self.free_queue):
            self.no_reuse = True
            self.segments_of.clear()
            self.shared_blocks.clear()

    def _on_evicted(self, segment: int, start: int, stop: int) -> None:
        """The content of some blocks of a segment is lost, where a cache wants to know."""

    def _append_free(self, key: int, blocks: int) -> None:
        if blocks:
            self.free_blocks += blocks
            self.free_queue[key] = self.free_queue.pop(key, 0) + blocks

    def _anonymous_key(self) -> int:
        """A key for blocks whose content is never looked up again; neighbours in the queue are one entry."""
        last = next(reversed(self.free_queue), 0)
        if last >= _ANONYMOUS:
            self._last_anonymous += 1
            return self._last_anonymous
        return last

    def _fill(self, i: int, start: int, upto: int) -> None:
        """The segments of a request from ``start`` on have content up to ``upto`` tokens, which others may use now.

        A segment that another request filled in the meantime stays that request's; the second copy is anonymous.
        """
        end_block, begin_block = upto // self.block_size, start // self.block_size
        for segment in self._path(i):
            first = self.start_block[segment]
            if first >= end_block:
                break
            if first + self.length[segment] <= begin_block:
                continue
            segments = self.segments_of[i]
            cached, filled = self.cached_blocks[segment], min(self.length[segment], end_block - first)
            owns = segment in segments
            if not owns and not cached and filled:
                self.ref_counts[segment] += 1
                segments[segment] = None
                owns = True
            if owns and filled > cached:
                self.cached_blocks[segment] = filled
                self.content_blocks += filled - cached
                self.shared_blocks[i] += filled - cached


# ------------------------------------------------------------------ caches on their way between GPUs


def kv_transfer_seconds(
    prefill_plan: BoundPlan, decode_plan: BoundPlan, prompts: np.ndarray, gpus: int | None = None
) -> list[float]:
    """Seconds that the KV cache of each prompt (tokens) takes from a prefill to a decode replica.

    Every GPU sends its share over its own link, and every GPU at the other end gets its own; the slower side counts.
    What several GPUs keep a copy of, such as a latent cache under tensor parallelism, is sent to each of them: one rank
    with the cache of a prompt sends it eight times to eight. ``gpus`` are those of all pools: where one NVLink domain
    joins them, it is the link, else the network is.
    """
    received = _cache_bytes_of_a_rank(decode_plan, prompts)
    senders, receivers = (plan.plan.tensor_parallel_size for plan in (prefill_plan, decode_plan))
    sent = np.maximum(_cache_bytes_of_a_rank(prefill_plan, prompts), received * receivers / senders)
    seconds = np.zeros(len(prompts))
    for bound_plan, num_bytes in ((prefill_plan, sent), (decode_plan, received)):
        device = bound_plan.device
        link = device.links.get(device.interconnect)
        if gpus is None or link is None or gpus > link.devices:
            link = parallelism.network_link(device)
        if link is None:
            name = device.name
            raise BadValue(f"{name}.toml has no link; a KV transfer needs one: add [links.network] with bandwidth")
        seconds = np.maximum(seconds, link.latency + num_bytes / (KV_TRANSFER_SHARE * link.bandwidth))
    return [float(value) for value in seconds]


def _cache_bytes_of_a_rank(bound_plan: BoundPlan, prompts: np.ndarray) -> np.ndarray:
    """Bytes of each prompt's KV cache on one GPU, of the pipeline stage that has most."""
    stage_bytes = [
        np.broadcast_to(cache_bytes(stage, prompts.astype(float)), prompts.shape) for stage in stage_plans(bound_plan)
    ]
    return np.asarray(np.max(stage_bytes, axis=0))
