"""What a scheduler does with an engine's requests: admit one, make room for those that decode, preempt one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush

from ..base.units import ceil_div
from .batch import DecodeBatch
from .inter_token import InterTokenLatencies
from .kv_cache import KVCache
from .kv_tiers import Piece, TieredCache
from .request_table import Finishing, RequestTable
from .schedulers import RequestQueue, SchedulerLimits, priority_key
from .step_cost import Chunk


class RequestFlow(ABC):
    """The part of an `EngineCore` that schedulers act on, as their `SchedulerState` says."""

    limits: SchedulerLimits
    table: RequestTable
    kv_cache: KVCache
    tiered: TieredCache | None  # the same, where it has tiers below
    loading: list[tuple[float, int, int]]
    num_loads: int
    batch: DecodeBatch
    gaps: InterTokenLatencies
    waiting: RequestQueue
    running: dict[int, None]
    prefilling: dict[int, int]
    finishing: list[Finishing]
    now: float
    blocks_reserved: int
    static_blocks: int
    preempted_in_step: bool

    @abstractmethod
    def _sync_async_state(self) -> None:
        """Asynchronous scheduling has caught up."""

    @abstractmethod
    def _free_finished(self) -> None:
        """Free the requests that finished before the last step."""

    def num_cached_tokens(self, i: int) -> int:
        """Tokens of a waiting request that are in the KV cache."""
        transferred = self.table.transferred_tokens
        return self.kv_cache.match_prefix(i, self.table.prefill_target[i]) if transferred is None else transferred[i]

    def next_request(self) -> tuple[int, int]:
        """The waiting request that is next, and its tokens that are in the KV cache; -1: none may begin.

        Requests whose blocks a tier has stand aside until these are on the GPU (vLLM's WAITING_FOR_REMOTE_KVS).
        """
        i = self.waiting.peek()
        num_cached = self.num_cached_tokens(i)
        if self.tiered is None or self.table.transferred_tokens is not None:
            return i, num_cached
        return self._next_with_tiers(self.tiered, i, num_cached)

    def _next_with_tiers(self, cache: TieredCache, i: int, num_cached: int) -> tuple[int, int]:
        """The next request that has nothing to load, from ``i`` on."""
        prefill_target = self.table.prefill_target
        while True:
            pieces = [] if i in cache.loaded else cache.match_tiers(i, num_cached, prefill_target[i])
            if not pieces:
                return i, num_cached
            arrives_s = cache.being_loaded(pieces, self.now)
            if arrives_s <= self.now:  # else another request waits for the same blocks
                reserved = cache.reserved_blocks(prefill_target) * cache.block_size
                if not cache.can_hold(i, num_cached, prefill_target[i] + reserved):
                    return -1, 0
                arrives_s = cache.start_load(i, num_cached, pieces, self.now)
                self._count_tier_hits(i, pieces)
            if arrives_s <= self.now:
                cache.arrived(i)
                return i, cache.loaded[i]
            self.waiting.pop_first()
            self.num_loads += 1
            heappush(self.loading, (arrives_s, self.num_loads, i))
            if not self.waiting:
                return -1, 0
            i = self.waiting.peek()
            num_cached = self.num_cached_tokens(i)

    def _count_tier_hits(self, i: int, pieces: list[Piece]) -> None:
        """Tokens of a prompt that came from each tier, as long as it has not begun."""
        if self.table.scheduled_s[i] != self.table.scheduled_s[i]:  # nan: not yet
            for number, tokens in enumerate(self.table.tier_tokens):
                blocks = sum(piece.stop - piece.start for piece in pieces if piece.tier == number)
                tokens[i] = blocks * self.kv_cache.block_size

    def admit(self, i: int, num_cached: int, num_new: int) -> None:
        """The first waiting request begins, with ``num_cached`` tokens there and ``num_new`` in this step."""
        self.waiting.pop_first()
        self.running[i] = None
        table = self.table
        if table.scheduled_s[i] != table.scheduled_s[i]:  # nan: for the first time
            table.scheduled_s[i] = self.now
            if table.transferred_tokens is None:
                table.num_cached_tokens[i] = num_cached
                self.kv_cache.queried_tokens += table.prefill_target[i]
                self.kv_cache.hit_tokens += num_cached
        elif i in table.preempted_s:
            table.resume(i, self.now)
        if num_cached + num_new < table.prefill_target[i]:
            self.prefilling[i] = num_cached + num_new

    def allocate_decode_blocks(self) -> bool:
        """A block for every decoding sequence whose last one is full, preempting if needed; whether it preempted."""
        batch, kv_cache = self.batch, self.kv_cache
        while batch.blocks_for_next_step() > kv_cache.free_blocks:
            if self._preemptible():
                self.preempt()
            else:  # only sequences that have finished are left, whose tokens in vain are not computed
                self._sync_async_state()
                self._free_finished()
        self.blocks_reserved = batch.blocks_for_next_step()
        kv_cache.take(self.blocks_reserved)
        return self.preempted_in_step

    def preempt(self) -> int:
        """The request admitted last (or of least priority) loses its blocks and waits again; gives its number."""
        candidates = self._preemptible()
        i = max(candidates, key=lambda j: priority_key(self.table, j)) if self.limits.priority else candidates[0]
        blocks, computed = self._leave(i)
        if self.table.transferred_tokens is not None:
            self.table.transferred_tokens[i] = 0
        self.preempted_in_step = True
        self.table.preempt(i, self.now)
        self.kv_cache.release(i, blocks, computed, preempted=True)
        self.waiting.push_front(i)
        return i

    def _end_loads(self, now: float) -> None:
        """Requests whose blocks have arrived are the next ones, in the order of their arrival."""
        assert self.tiered is not None
        arrived: list[int] = []
        while self.loading and self.loading[0][0] <= now:
            i = heappop(self.loading)[2]
            arrived.append(i)
            if i in self.tiered.loading:
                self.tiered.arrived(i)
        for i in reversed(arrived):
            self.waiting.push_front(i)

    def _give_up_loads(self) -> bool:
        """Waiting requests give back blocks that were loaded for them, with their content; whether there were any."""
        if self.tiered is None or not self.tiered.loaded:
            return False
        for i in list(self.tiered.loaded):
            self.tiered.give_up(i)
            for tokens in self.table.tier_tokens:
                tokens[i] = 0
        return True

    def _store_computed(self, chunks: list[Chunk], now: float) -> None:
        """Chunks of prompts have been computed: tiers may store them."""
        if self.tiered is not None:
            for i, num_new, num_computed in chunks:
                self.tiered.computed(i, num_computed + num_new, now)

    def abort(self, i: int) -> None:
        """A request's client is gone: between two steps it leaves the queue, or its place and its blocks."""
        if self.tiered is not None:
            self.loading = [entry for entry in self.loading if entry[2] != i]
            heapify(self.loading)
            self.tiered.give_up(i)
        if i in self.running:
            if not self.limits.static_batch and i in self._preemptible():
                self.kv_cache.release(i, *self._leave(i))
        elif i in self.waiting:
            self.waiting.remove(i)

    def _leave(self, i: int) -> tuple[int, int]:
        """A request leaves its place before it has finished; gives its blocks and the tokens in them."""
        table, batch, block_size = self.table, self.batch_of(i), self.kv_cache.block_size
        if i in self.prefilling:
            computed = self.prefilling.pop(i)
            blocks = ceil_div(table.prefill_target[i] if self.limits.reserve_full_prompt else computed, block_size)
        else:
            table.remaining_tokens[i] = batch.drop(i)
            computed = batch.offset[i] + batch.clock
            blocks = batch.blocks_of(i)
            if self._next_blocks_allocated(batch):
                more = batch.blocks_of(i, batch.next_gain()) - blocks
                blocks += more
                self.blocks_reserved -= more if batch is self.batch else 0
            table.prefill_target[i] = computed + 1
            batch.leave(i)
            self.gaps.preempted(batch, i, table.first_token_s[i], self.now)
        del self.running[i]
        return blocks, computed

    def _preemptible(self) -> list[int]:
        """Requests that can be preempted, the last one admitted first."""
        finished = {request.request for request in self.finishing}
        return [i for i in reversed(self.running) if i not in finished]

    def batch_of(self, i: int) -> DecodeBatch:
        """The batch that a request decodes in."""
        return self.batch

    def _next_blocks_allocated(self, batch: DecodeBatch) -> bool:
        """Whether the sequences of a batch have the blocks of its next tokens already."""
        return self.blocks_reserved > 0

    def reserve_static(self, blocks: int) -> None:
        """Take the blocks of a static batch."""
        self.static_blocks = blocks
        self.kv_cache.free_blocks -= blocks
