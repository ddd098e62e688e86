"""The loop of a replica at ease: nobody waits, and there are blocks for everyone to the end of his answer.

Most of a simulation is this: answers go on, some end, now and then a prompt comes and is read at once. Nothing has to
be decided, so nothing is: a request's blocks are set aside for its whole life when it comes, whether it fits is the
only question, and everything stands in local names. As soon as somebody must wait, `glide` hands back to
`Replica.run`, whose every step it equals (a test holds both against single steps).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from .kv_cache import PrefixCache
from .schedulers import vllm

if TYPE_CHECKING:
    from .engine import EngineCore

RETRY_STEPS = 256  # steps until an engine short of blocks is looked at again


def fast_path_applies(replica: EngineCore) -> bool:
    """Whether a replica can go this way at all: vLLM's scheduler, and nothing that ties its steps together."""
    limits, cache = replica.limits, replica.cache
    sharing = isinstance(cache, PrefixCache) and cache.paths is not None
    return (
        replica.fast
        and replica.times.closed
        and replica.plan is vllm
        and not limits.wasted
        and not sharing
        and replica.ledger.given is None
        and limits.width == limits.interval == 1
        and not limits.hold
    )


def is_uncontended(replica: EngineCore) -> bool:
    """Whether nobody waits or is about to go, and all who answer have their blocks to the end."""
    if replica.waiting or replica.partial or replica.leaving or replica.lent or replica.steps < replica.patience:
        return False
    cache = replica.cache
    if (isinstance(cache, PrefixCache) and not cache.calm) or replica.batch.lacking() > cache.free:
        replica.patience = replica.steps + RETRY_STEPS
        return False
    return True


def run_uncontended(replica: EngineCore, until: float) -> None:
    """Take all steps that begin before ``until``, as long as the replica is at ease."""
    batch, cache, feed, ledger, times, watch = (
        replica.batch,
        replica.cache,
        replica.feed,
        replica.ledger,
        replica.times,
        replica.watch,
    )
    limits, running, told, number = replica.limits, replica.running, replica.ends, replica.number
    ends, offset, size, bits = batch.ends, batch.offset, batch.block, batch.bits
    mask, lag, tokens, seqs = (1 << bits) - 1, int(limits.lag), min(limits.tokens, limits.piece), limits.seqs
    first, finished, scheduled, target, left = (
        ledger.first,
        ledger.finished,
        ledger.scheduled,
        ledger.target,
        ledger.left,
    )
    search, mixed, heat = times.whole.search, times.mixed, replica.heat
    now, seen, clock, rows, base = replica.now, replica.seen, batch.clock, batch.rows, batch.base
    free = cache.free - batch.lacking()
    gone: list[tuple[int, int]] = []  # ended with the last step: request, blocks
    steps = computed = asked = 0
    busy = 0.0
    while now < until:
        coming = feed.next
        chunks = []
        if not rows and seen < coming < until:  # idle: asynchronous scheduling is not behind then
            now = seen = coming if coming > now else now
            for i, blocks in gone:
                del running[i]
                free += blocks
            gone = []
        if coming <= seen:
            new = feed.take(seen)
            if not new:  # all that came were rejected
                continue
            need = prompts = 0
            for i in new:
                prompts += target[i]
                need += -(-(target[i] + (left[i] - 1 if left[i] > 1 else 0)) // size)
                ledger.replica[i] = number
            if need > free or prompts > tokens - rows or len(running) + len(new) > seqs:
                for i in new:
                    replica.waiting.push(i)
                break
            free -= need
            asked += prompts
            for i in new:
                running[i] = None
                scheduled[i] = now
                chunks.append((i, target[i], 0))
        elif not rows:
            break
        start = now
        if chunks:
            batch.rows, batch.base, batch.clock = rows, base, clock
            if heat is None:
                took = mixed(batch if rows else None, chunks, len(chunks))
            else:
                took = mixed(batch if rows else None, chunks, len(chunks), heat.at(start))
                heat.worked(start, took, prompts / (prompts + rows))
            now = start + took
            seen = start if lag else now
            steps += 1
            clock += 1 if rows else 0
            computed += rows + prompts
        else:
            stop = coming if coming < until else until
            many, took, before = search(rows, base + rows * clock, (ends[0] >> bits) - clock, stop - start, lag)
            now = start + took
            seen = start + before if lag else now
            steps += many
            clock += many
            computed += many * rows
        busy += took
        if gone:
            for i, blocks in gone:
                del running[i]
                free += blocks
            gone = []
        while ends and ends[0] >> bits <= clock:
            i = heappop(ends) & mask
            finished[i] = now
            mine = offset.pop(i)
            base -= mine
            rows -= 1
            if told is not None:
                told(i, now)
            if lag:
                gone.append((i, -(-(mine + clock) // size)))
            else:
                del running[i]
                free += -(-(mine + clock) // size)
        for i, context, _ in chunks:
            first[i] = now
            more = left[i] - 1
            if more > 0:
                mine = offset[i] = context - clock
                base += mine
                rows += 1
                heappush(ends, (clock + more) << bits | i)
            else:
                finished[i] = now
                if told is not None:
                    told(i, now)
                if lag:
                    gone.append((i, -(-context // size)))
                else:
                    del running[i]
                    free += -(-context // size)
        if now >= watch.due:
            replica.now, batch.clock = now, clock
            replica.steps += steps
            replica.busy += busy
            replica.computed += computed
            steps, computed, busy = 0, 0, 0.0
            cache.free = free + batch.lacking()
            watch.look(replica)
    batch.clock = batch.steps = clock
    batch.rows, batch.base = rows, base
    batch.ring = [0] * size
    for mine in offset.values():
        batch.ring[-mine % size] += 1
    cache.free = free + batch.lacking()
    cache.asked += asked
    replica.now, replica.seen = now, seen
    replica.steps += steps
    replica.busy += busy
    replica.computed += computed
    replica.leaving = [(i, blocks, 0, replica.steps, 0.0) for i, blocks in gone]
