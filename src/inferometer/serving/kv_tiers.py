"""KV blocks below the GPU: CPU memory, a disk, a store that replicas share; and the links between them.

    tier = CacheTier("cpu", 2 << 20, TransferLink(read=55e9, write=55e9), TierStore(num_blocks=4096))
    cache = TieredCache(1000, 16, tree, [tier], prompt_tokens)
    pieces = cache.match_tiers(i, cached=512, tokens=4096)
    cache.start_load(i, 512, pieces, now=1.5)           # seconds at which its blocks are on the GPU

A tier holds blocks of the segments of a `PrefixTree`, of each an interval: stores lengthen it, eviction (least recently
used, the ends of prompts first) shortens it. A link takes one transfer after the other in each direction; latencies of
as many as its ``concurrency`` overlap. Blocks of a lower tier come to the GPU through those above it, one link after
the other, and stay there, too. That is what vLLM does with a CPU tier and secondary tiers (v0.25.1
vllm/v1/kv_offload/tiering/manager.py): stores are cascaded to all tiers, hits are promoted to CPU memory first.

When blocks are stored is the ``write_policy``, in SGLang's words: `write_through` as soon as they are computed, as vLLM
does it, too; `write_through_selective` when a second request has them; `write_back` when the tier above evicts them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from heapq import heappush, heapreplace
from typing import NamedTuple

from .kv_cache import PrefixCache, PrefixTree

LOG_POINTS = 512  # of a log, at most
SELECTIVE_USES = 2  # of write_through_selective: write_through_threshold of SGLang's hiradix_cache.py:207 at cce0a12


class TransferLink:
    """Transfers in two directions: ``TransferLink(read=55e9, write=55e9, latency=1e-4).finish(1.5, 2e6, write=False)``

    ``read`` and ``write`` are bytes a second; without ``duplex`` both directions share them.
    """

    def __init__(
        self, read: float, write: float, latency: float = 0.0, concurrency: int = 1, duplex: bool = True
    ) -> None:
        self.bandwidth = (read, write)
        self.latency, self.concurrency, self.duplex = latency, concurrency, duplex
        self.reset()

    def reset(self) -> None:
        """Nothing was sent yet."""
        self.free_s = [0.0, 0.0]  # of each direction, when what was sent before is through
        self.under_way: tuple[list[float], list[float]] = ([], [])  # heaps: when the last transfers end
        self.bytes_sent, self.busy_s = [0.0, 0.0], [0.0, 0.0]

    def finish(self, now: float, num_bytes: float, *, write: bool) -> float:
        """When a transfer that is handed over now has arrived; it waits for those before it."""
        direction = int(write)
        lane = direction if self.duplex else 0
        heap = self.under_way[lane]
        start = max(now, self.free_s[lane], heap[0] if len(heap) == self.concurrency else 0.0)
        seconds = num_bytes / self.bandwidth[direction]
        self.free_s[lane] = start + seconds
        end = start + seconds + self.latency
        if len(heap) == self.concurrency:
            heapreplace(heap, end)
        else:
            heappush(heap, end)
        self.bytes_sent[direction] += num_bytes
        self.busy_s[direction] += seconds
        return end


class Held(NamedTuple):
    """Blocks of a segment that a tier has, from one up to another, and when the last of them is there."""

    start: int
    stop: int
    ready_s: float


class TierStore:
    """What a tier holds, at most ``num_blocks`` blocks: ``TierStore(4096)``. A shared store is one for all replicas."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks, self.used_blocks = num_blocks, 0
        self.held: OrderedDict[int, Held] = OrderedDict()  # segment -> its blocks; least recently used first
        self.evicted_blocks = 0
        self.demoted: list[tuple[int, int, int]] | None = None  # what was evicted and is to go further down

    def touch(self, path: Sequence[int]) -> None:
        """A request uses these segments: the beginning of its prompt is the last to go."""
        held = self.held
        for segment in reversed(path):
            if segment in held:
                held.move_to_end(segment)

    def add(self, segment: int, start: int, stop: int, ready_s: float, protected: Sequence[int] = ()) -> int:
        """Take over blocks of a segment, as many as there is room for; gives how many of them are new.

        Others make room, but none of ``protected``; where that does not suffice the end is left out. Blocks that do not
        join those held already replace them.
        """
        have = self.held.get(segment, Held(start, start, ready_s))
        if stop < have.start or start > have.stop:
            self._drop(segment, have, have.stop - have.start)
            have = Held(start, start, ready_s)
        first, last, own = min(start, have.start), max(stop, have.stop), have.stop - have.start
        needed = last - first - own
        missing = max(0, needed - self._make_room(needed, {segment, *protected}))
        last -= missing
        if missing and self.demoted is not None:
            self.demoted.append((segment, max(first, last), last + missing))
        if last <= first:
            return 0
        self.held[segment] = Held(first, last, max(ready_s, have.ready_s))
        self.held.move_to_end(segment)
        self.used_blocks += last - first - own
        return max(0, min(last, have.start) - first) + max(0, last - have.stop)

    def _make_room(self, blocks: int, protected: set[int]) -> int:
        """Evict until so many blocks are free; gives how many are."""
        missing = blocks - (self.num_blocks - self.used_blocks)
        while missing > 0:
            victim = next((segment for segment in self.held if segment not in protected), None)
            if victim is None:
                break
            have = self.held[victim]
            gone = min(missing, have.stop - have.start)
            self._drop(victim, have, gone)
            self.evicted_blocks += gone
            if self.demoted is not None:
                self.demoted.append((victim, have.stop - gone, have.stop))
            missing -= gone
        return self.num_blocks - self.used_blocks

    def _drop(self, segment: int, have: Held, blocks: int) -> None:
        """The last blocks of a segment are lost."""
        if have.stop - blocks <= have.start:
            del self.held[segment]
        else:
            self.held[segment] = have._replace(stop=have.stop - blocks)
        self.used_blocks -= blocks


class CacheTier:
    """A tier as one replica sees it: what it holds, and the link from the tier above."""

    def __init__(self, name: str, block_bytes: float, link: TransferLink, store: TierStore) -> None:
        self.name, self.block_bytes, self.link, self.store = name, block_bytes, link, store

    def send(self, now: float, blocks: int, *, write: bool) -> float:
        """When so many blocks have gone down this tier's link, or come up."""
        return self.link.finish(now, blocks * self.block_bytes, write=write)


class TierLog:
    """What a replica's tiers hold and what has gone over their links, each time that changes; of many times, few.

    ``log.rows[-1]  # seconds, blocks on the GPU; of each tier its blocks, and bytes loaded from it and stored in it``
    """

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []
        self.next_s = self.interval = 0.0

    def add(self, now: float, cached_blocks: int, tiers: Sequence[CacheTier]) -> None:
        """How things stand now; the next time is not before an interval that grows with the run."""
        row: list[float] = [now, cached_blocks]
        for tier in tiers:
            row += (tier.store.used_blocks, *tier.link.bytes_sent)
        self.rows.append(tuple(row))
        if len(self.rows) >= 2 * LOG_POINTS:
            self.rows = self.rows[1::2]
            self.interval = max(2 * self.interval, (now - self.rows[0][0]) / LOG_POINTS)
        self.next_s = now + self.interval


class Piece(NamedTuple):
    """Blocks of a segment that one tier has."""

    tier: int
    segment: int
    start: int
    stop: int


class TieredCache(PrefixCache):
    """A replica's KV cache with tiers below: ``TieredCache(1000, 16, tree, tiers, prompt_tokens)``

    A request whose prompt begins with blocks of a tier takes blocks on the GPU (`start_load`) and waits beside the
    queue until they have arrived (`arrived`); then they are its cached tokens.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        tree: PrefixTree,
        tiers: Sequence[CacheTier],
        prompt_tokens: Sequence[int],
        write_policy: str = "write_through",
        prompt_only: bool = False,
    ) -> None:
        super().__init__(num_blocks, block_size, tree)
        self.tiers, self.prompt_tokens = tuple(tiers), prompt_tokens
        self.stores_evicted, self.prompt_only = write_policy == "write_back", prompt_only
        for tier in self.tiers[:-1] if self.stores_evicted else ():
            tier.store.demoted = []
        self.least_uses = SELECTIVE_USES if write_policy == "write_through_selective" else 1
        self.uses: dict[int, int] = {}  # segment -> requests that had it, where that counts
        self.counted: set[int] = set()  # requests that were counted
        self.loading: dict[int, tuple[int, int]] = {}  # request -> tokens cached before, and those with what is loaded
        self.loaded: dict[int, int] = {}  # request that waits with its blocks -> its cached tokens
        self.arrives_s: dict[int, float] = {}  # segment -> when it is on the GPU, last loaded
        self.clock: Callable[[], float] = lambda: 0.0
        self.log = TierLog()

    # ------------------------------------------------------------------ from the tiers to the GPU

    def match_tiers(self, i: int, cached: int, tokens: int) -> list[Piece]:
        """Blocks behind the cached tokens of a request that tiers have, each from the nearest; at least one token of
        ``tokens`` is left to compute."""
        have, limit = cached // self.block_size, (tokens - 1) // self.block_size
        pieces: list[Piece] = []
        path = self._path(i)
        for tier in self.tiers:
            tier.store.touch(path)
        for segment in path:
            first, length = self.start_block[segment], self.length[segment]
            if first >= limit:
                break
            at, length = max(0, have - first), min(length, limit - first)
            while at < length:
                piece = self._piece(segment, at, length)
                if piece is None:
                    return pieces
                pieces.append(piece)
                at = piece.stop
        return pieces

    def _piece(self, segment: int, at: int, upto: int) -> Piece | None:
        for number, tier in enumerate(self.tiers):
            held = tier.store.held.get(segment)
            if held is not None and held.start <= at < held.stop:
                return Piece(number, segment, at, min(held.stop, upto))
        return None

    def start_load(self, i: int, cached: int, pieces: list[Piece], now: float) -> float:
        """Blocks on the GPU, where there is room for them, for what tiers have; gives when they are filled."""
        blocks = sum(piece.stop - piece.start for piece in pieces)
        tokens = cached + blocks * self.block_size
        self._take_over(i, cached, tokens)
        self.loading[i] = (cached, tokens)
        ready_s = self._transfer(i, pieces, now)
        for piece in pieces:
            self.arrives_s[piece.segment] = ready_s
        if now >= self.log.next_s:
            self.log.add(now, self.content_blocks, self.tiers)
        return ready_s

    def being_loaded(self, pieces: list[Piece], now: float) -> float:
        """When blocks of these segments arrive that are on their way already; ``now`` if none are."""
        return max([now, *(self.arrives_s.get(piece.segment, now) for piece in pieces)])

    def reserved_blocks(self, prefill_target: Sequence[int]) -> int:
        """Blocks that requests with loaded ones still need for all of their prompts."""
        held = [*((i, tokens) for i, (_, tokens) in self.loading.items()), *self.loaded.items()]
        return sum(-(-prefill_target[i] // self.block_size) - tokens // self.block_size for i, tokens in held)

    def _transfer(self, i: int, pieces: list[Piece], now: float) -> float:
        """When the blocks have come up through all links; tiers on their way keep them, too."""
        tiers, path = self.tiers, self._path(i)
        ready = [now] * len(tiers)
        for piece in pieces:
            held = tiers[piece.tier].store.held.get(piece.segment)
            ready[piece.tier] = max(ready[piece.tier], held.ready_s if held is not None else now)
        rising, arrived = 0, now
        for number in range(len(tiers) - 1, -1, -1):
            own = sum(piece.stop - piece.start for piece in pieces if piece.tier == number)
            for piece in pieces if rising else ():
                if piece.tier > number:
                    tiers[number].store.add(piece.segment, piece.start, piece.stop, arrived, path)
                    self._demote(number, arrived)
            tiers[number].store.touch(path)
            rising += own
            if rising:
                arrived = tiers[number].send(max(arrived, ready[number]), rising, write=False)
        return arrived

    def arrived(self, i: int) -> None:
        """The blocks of a request are on the GPU, for others to use, too."""
        cached, tokens = self.loading.pop(i)
        self._fill(i, cached, tokens)
        self.loaded[i] = tokens

    def give_up(self, i: int) -> None:
        """A request that waits no longer gives back the blocks that were loaded for it."""
        if i in self.loading:
            self.arrived(i)
        tokens = self.loaded.pop(i, 0)
        if tokens:
            super().release(i, tokens // self.block_size, tokens)

    def match_prefix(self, i: int, tokens: int) -> int:
        """Tokens of a request that are on the GPU, loaded ones included."""
        loaded = self.loaded.get(i)
        return super().match_prefix(i, tokens) if loaded is None else loaded

    def can_hold(self, i: int, cached: int, upto: int) -> bool:
        """Whether the free blocks suffice; those that were loaded are the request's already."""
        if i in self.loaded:
            return -(-upto // self.block_size) - cached // self.block_size <= self.free_blocks
        return super().can_hold(i, cached, upto)

    def allocate(self, i: int, cached: int, upto: int) -> bool:
        """Hand out blocks behind the cached ones; all or nothing."""
        if i not in self.loaded:
            return super().allocate(i, cached, upto)
        if not self.extend(i, cached, upto):
            return False
        del self.loaded[i]
        return True

    # ------------------------------------------------------------------ from the GPU to the tiers

    def computed(self, i: int, upto: int, now: float) -> None:
        """The first tokens of a request are computed: what the policy stores goes down."""
        if self.stores_evicted:
            return
        blocks = min(upto, self.prompt_tokens[i]) if self.prompt_only else upto
        self._store_path(i, blocks // self.block_size, now)

    def _store_path(self, i: int, blocks: int, now: float) -> None:
        """The first blocks of a request go to the tiers that have not got them."""
        path = self._path(i)
        if self.least_uses > 1 and i not in self.counted:
            self.counted.add(i)
            for segment in path:
                self.uses[segment] = self.uses.get(segment, 0) + 1
        pieces: list[tuple[int, int, int]] = []
        for segment in path:
            first = self.start_block[segment]
            stop = min(self.length[segment], blocks - first)
            if first >= blocks:
                break
            if stop > 0 and (self.least_uses == 1 or self.uses[segment] >= self.least_uses):
                pieces.append((segment, 0, stop))
        begun = now
        for number in range(len(self.tiers)):
            now = self._put(number, pieces, now, path)
        if begun >= self.log.next_s:
            self.log.add(begun, self.content_blocks, self.tiers)

    def _put(self, number: int, pieces: Sequence[tuple[int, int, int]], now: float, path: Sequence[int] = ()) -> float:
        """Blocks of segments go into one tier, in one transfer; gives when they are there."""
        tier, new, added = self.tiers[number], 0, []
        for segment, start, stop in pieces:
            held = tier.store.held.get(segment)
            if held is not None and held.start <= start and held.stop >= stop:
                continue
            count = tier.store.add(segment, start, stop, now, path)
            self._demote(number, now)
            if count:
                new += count
                added.append(segment)
        tier.store.touch(path)
        if new:
            now = tier.send(now, new, write=True)
            for segment in added:
                held = tier.store.held.get(segment)
                if held is not None:
                    tier.store.held[segment] = held._replace(ready_s=now)
        return now

    def _demote(self, number: int, now: float) -> None:
        """With write_back, what a tier has evicted goes to the one below."""
        store = self.tiers[number].store
        while store.demoted:
            pieces, store.demoted = store.demoted, []
            self._put(number + 1, pieces, now)

    def warm(self, i: int, tokens: int) -> None:
        """The first tokens of a request are there from the start, in the tiers that the policy stores them in, too."""
        super().warm(i, tokens)
        self.computed(i, tokens, 0.0)
        self.counted.discard(i)

    def end_warming(self) -> None:
        """What was stored so far is there when the run begins, and no traffic of it."""
        for tier in self.tiers:
            tier.link.reset()
            tier.store.evicted_blocks = 0
            for segment, held in tier.store.held.items():
                tier.store.held[segment] = held._replace(ready_s=0.0)
        self.log = TierLog()
        self.log.add(0.0, self.content_blocks, self.tiers)

    def release(self, i: int, blocks: int, computed: int, *, preempted: bool = False) -> None:
        """Blocks go back into the free queue with their content; engines that store outputs do so now."""
        if not self.prompt_only and not preempted:
            self.computed(i, computed, self.clock())
        super().release(i, blocks, computed, preempted=preempted)

    def _on_evicted(self, segment: int, start: int, stop: int) -> None:
        """The GPU evicts blocks of a segment: write_back stores them now."""
        held = self.tiers[0].store.held.get(segment)
        if held is None or held.start > start or held.stop < stop:
            now = self.clock()
            self._put(0, [(segment, start, stop)], now)
            if now >= self.log.next_s:
                self.log.add(now, self.content_blocks, self.tiers)
