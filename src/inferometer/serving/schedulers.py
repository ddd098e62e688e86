"""Who computes what in the next step. A scheduler is one function of a replica.

It gives whether those who decode do so in this step, and the pieces of prompts that are computed: (request, tokens,
tokens before them). `replica` says what there is: ``waiting`` (first come first, or by priority), ``partial`` (prompts
that were begun: request -> tokens computed), ``batch`` (who decodes), ``cache`` (blocks), ``limits``. It is asked when
something may change: prompts wait or are under way, or blocks run out. Otherwise everyone decodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .step_cost import Chunk

if TYPE_CHECKING:
    from .engine import EngineCore

Plan = tuple[bool, list[Chunk]]
SCHEDULERS: dict[str, Callable[[EngineCore], Plan]] = {}


def scheduler(function: Callable[[EngineCore], Plan]) -> Callable[[EngineCore], Plan]:
    """Register a scheduler under its name: ``@scheduler``"""
    SCHEDULERS[function.__name__] = function
    return function


@scheduler
def vllm(replica: EngineCore) -> Plan:
    """vLLM's V1 scheduler: one budget of tokens for everyone, those who run before those who wait.

    Everyone who decodes gets a token, then prompts under way go on, then waiting ones begin, in order, as long as the
    budget, the sequences and the blocks last; a prompt that is cut begins only if all of it has room at that moment
    (`scheduler_reserve_full_isl`, the default of 0.19), though only the blocks of its first piece are taken. Who needs
    a block when there is none takes those of whoever was admitted last, which waits again and computes everything
    anew; nobody is admitted then.
    """
    limits, cache, target = replica.limits, replica.cache, replica.ledger.target
    chunks: list[Chunk] = []
    calm = replica.grow_answers()
    budget = limits.tokens - replica.batch.rows * limits.width
    for i, done in list(replica.partial.items()) if replica.partial else ():
        if budget <= 0 or i not in replica.partial:
            break
        new = min(target[i] - done, budget, limits.piece)
        while not cache.extend(i, done, done + new):
            calm = False
            victim = replica.preempt()
            chunks = [chunk for chunk in chunks if chunk[0] != victim]
            if victim == i:
                break
        else:
            replica.partial[i] = done + new
            chunks.append((i, new, done))
            budget -= new
    while calm and budget > 0 and replica.waiting and len(replica.running) < limits.seqs:
        i = replica.waiting.peek()
        cached = replica.cached(i)
        new = min(target[i] - cached, budget, limits.piece)
        cut = new < target[i] - cached
        if cut and not (limits.chunked and cache.fits(i, cached, target[i])):
            break
        if not cache.begin(i, cached, cached + new):
            break
        replica.admit(i, cached, new)
        chunks.append((i, new, cached))
        budget -= new
    return True, chunks


@scheduler
def sarathi(replica: EngineCore) -> Plan:
    """Sarathi-Serve: stall-free batches. As vLLM's, but a prompt begins only when there is room for all of it and a
    hundredth of the cache to spare, so that prompts under way never lack blocks."""
    limits, cache, target = replica.limits, replica.cache, replica.ledger.target
    chunks: list[Chunk] = []
    calm = replica.grow_answers()
    budget = limits.tokens - replica.batch.rows * limits.width
    for i, done in list(replica.partial.items()):
        new = min(target[i] - done, budget, limits.piece)
        if new > 0:
            replica.partial[i] = done + new
            chunks.append((i, new, done))
            budget -= new
    while calm and budget > 0 and replica.waiting and len(replica.running) < limits.seqs:
        i = replica.waiting.peek()
        cached = replica.cached(i)
        spare = cache.blocks // 100 if replica.running else 0
        if cache.free - -(-(target[i] - cached) // cache.size) < spare or not cache.begin(i, cached, target[i]):
            break
        new = min(target[i] - cached, budget, limits.piece)
        replica.admit(i, cached, new)
        chunks.append((i, new, cached))
        budget -= new
    return True, chunks


@scheduler
def trtllm(replica: EngineCore) -> Plan:
    """TensorRT-LLM's in-flight batching: answers first, then whole prompts, in order, as long as the budget lasts.

    A prompt begins when the cache has room for it and for all answers to their ends, so nobody is ever preempted
    (GUARANTEED_NO_EVICT). Only one that no step has room for is cut (enable_chunked_prefill). While others answer,
    prompts may be held back for company (`Limits.hold`).
    """
    limits, cache, ledger = replica.limits, replica.cache, replica.ledger
    chunks: list[Chunk] = []
    replica.grow_answers()
    budget = limits.tokens - replica.batch.rows * limits.width
    for i, done in list(replica.partial.items()):
        new = min(ledger.target[i] - done, budget)
        if new > 0 and cache.extend(i, done, done + new):
            replica.partial[i] = done + new
            chunks.append((i, new, done))
            budget -= new
    room = cache.free - _promised(replica)
    begun = len(chunks)
    while room > 0 and budget > 0 and replica.waiting and len(replica.running) < limits.seqs:
        i = replica.waiting.peek()
        cached = replica.cached(i)
        prompt = ledger.target[i] - cached
        new = min(prompt, budget)
        room -= _blocks(replica, i) - cached // cache.size
        if room < 0 or new < prompt <= limits.tokens or (len(chunks) == begun and replica.holds()):
            break
        if not cache.begin(i, cached, cached + new):
            break
        replica.admit(i, cached, new)
        chunks.append((i, new, cached))
        budget -= new
    return True, chunks


def _blocks(replica: EngineCore, i: int) -> int:
    """Blocks of a request at the end of its answer."""
    ledger = replica.ledger
    return -(-(ledger.target[i] + max(ledger.left[i] - 1, 0)) // replica.cache.size)


def _promised(replica: EngineCore) -> int:
    """Blocks that those who were admitted will still take, to the ends of their answers."""
    found = replica.batch.lacking() - replica.taken  # those of this step are taken already
    return found + sum(_blocks(replica, i) - -(-done // replica.cache.size) for i, done in replica.partial.items())


@scheduler
def prefill_first(replica: EngineCore) -> Plan:
    """Whole prompts before answers (Orca, FasterTransformer's successors, vLLM's V0): while prompts can begin, a step
    computes as many as the budget takes, uncut, and nobody decodes; a prompt above the budget comes alone."""
    limits, cache, target = replica.limits, replica.cache, replica.ledger.target
    chunks: list[Chunk] = []
    budget = limits.tokens
    while replica.waiting and len(replica.running) < limits.seqs:
        i = replica.waiting.peek()
        cached = replica.cached(i)
        new = target[i] - cached
        if (new > budget and chunks) or not cache.begin(i, cached, target[i]):
            break
        replica.admit(i, cached, new)
        chunks.append((i, new, cached))
        budget -= new
    if not chunks:
        replica.grow_answers()
    return not chunks, chunks


@scheduler
def static(replica: EngineCore) -> Plan:
    """Static batches: whoever waits when the engine is empty is served together, and nobody joins before all have
    ended. Answers that end early stay in the batch as padding; the cache holds the longest prompt and answer for each.
    """
    limits, cache, ledger = replica.limits, replica.cache, replica.ledger
    if not replica.running:
        longest = 0
        while replica.waiting and len(replica.running) < limits.seqs:
            i = replica.waiting.peek()
            longest = max(longest, ledger.target[i] + ledger.left[i])
            if (len(replica.running) + 1) * -(-longest // cache.size) > cache.blocks:
                break
            replica.admit(i, 0, 0)
        replica.reserve(len(replica.running) * -(-longest // cache.size))
    chunks: list[Chunk] = []
    budget = limits.tokens
    for i, done in list(replica.partial.items()):
        new = min(ledger.target[i] - done, budget)
        if new > 0:
            replica.partial[i] = done + new
            chunks.append((i, new, done))
            budget -= new
    return not chunks, chunks
