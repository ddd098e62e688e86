"""What an engine computes in the next step. A scheduler is one registered function of an engine's state.

    @scheduler()
    def decode_only(engine: SchedulerState) -> SchedulerOutput:
        return True, []

It gives whether the decoding sequences decode in this step, and the chunks of prompts that are computed: (request, new
tokens, tokens before them). It is called when something may change: requests wait, prompts are under way, or blocks run
out. Otherwise every sequence of the batch decodes. What it may read and do is `SchedulerState`, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from ..base.units import ceil_div
from .batch import DecodeBatch
from .kv_cache import KVCache
from .request_table import RequestTable
from .step_cost import Chunk

NO_THRESHOLD = 10**9  # tokens: prompts are cut by the token budget alone
NO_LIMIT = 10**9  # prompts


class SchedulerLimits(NamedTuple):
    """What an engine allows itself in a step, under the names of vLLM's, SGLang's and TensorRT-LLM's flags."""

    max_num_batched_tokens: int
    max_num_seqs: int
    tokens_per_decode: int = 1  # that a decoding sequence computes in a step: more where tokens are drafted
    long_prefill_token_threshold: int = NO_THRESHOLD  # most tokens of one prompt in a step
    enable_chunked_prefill: bool = True
    reserve_full_prompt: bool = False  # a prompt has all its blocks from its first chunk on (Sarathi)
    async_scheduling: bool = False
    ends_on_stop_token: bool = False  # the engine does not know the output length: the step after the last is in vain
    static_batch: bool = False  # finished sequences stay in the batch until all have finished
    priority: bool = False  # the priority policy instead of FCFS
    launch_s: float = 0.0  # s that a step's launches take before the result of the step before is looked at (SGLang)
    load_steps: int = 0  # steps until an engine that computes sees that a load has ended
    results_after_launches: bool = False  # one thread launches a step, then waits for the results of the one before
    scheduler_recv_interval: int = 1  # decode steps from one poll for new requests to the next (SGLang)
    prefill_schedule_interval: int = 1  # steps from one that may compute prompts to the next (vLLM)
    prefill_max_requests: int = NO_LIMIT  # prompts that one step may compute (SGLang)
    batch_wait_timeout_iters: int = 0  # steps that prompts wait for others while sequences decode (TensorRT-LLM) …
    batch_wait_min_tokens: int = 0  # … unless prompts and decodes together have as many tokens as this
    attention_dp_timeout_iters: int = 0  # steps that prompts of one rank wait for those of all (TensorRT-LLM) …
    attention_dp_batching_wait_iters: int = 0  # … and then for more of them


class SchedulerState(Protocol):
    """What a scheduler may read and do; an `EngineCore` is one.

    It reads the queue, the prompts under way, the batch and the cache, and acts by the methods alone, and by extending
    a prompt under way: ``kv_cache.extend`` and a new number in ``prefilling``.
    """

    limits: SchedulerLimits
    table: RequestTable
    kv_cache: KVCache
    batch: DecodeBatch  # the sequences that decode
    waiting: RequestQueue
    running: dict[int, None]  # in order of admission
    prefilling: dict[int, int]  # prompts under way -> num_computed_tokens
    blocks_reserved: int  # that `allocate_decode_blocks` took for this step
    prefill_wait: PrefillWait

    def allocate_decode_blocks(self) -> bool:
        """A block for every decoding sequence whose last one is full, preempting if needed; whether it preempted."""
        raise NotImplementedError

    def next_request(self) -> tuple[int, int]:
        """The waiting request that is next, and its tokens that are in the KV cache; -1: none may begin."""
        raise NotImplementedError

    def admit(self, i: int, num_cached: int, num_new: int) -> None:
        """The first waiting request begins, with ``num_cached`` tokens there and ``num_new`` in this step."""
        raise NotImplementedError

    def preempt(self) -> int:
        """The request admitted last (or of least priority) loses its blocks and waits again; gives its number."""
        raise NotImplementedError

    def reserve_static(self, blocks: int) -> None:
        """Take the blocks of a static batch."""
        raise NotImplementedError


class PrefillWait:
    """Prompts that could be computed, and wait all the same: ``PrefillWait(limits).waits_for_batch(engine)``

    TensorRT-LLM waits for more prompts to begin together (batch_wait_…) and for those of other ranks
    (attention_dp_config), vLLM for a step that all data-parallel ranks compute prompts in (prefill_schedule_interval).
    """

    __slots__ = (
        "active",
        "capacity_bound",
        "deferred",
        "for_batch",
        "held",
        "interval",
        "limits",
        "step",
        "waited_iters",
        "wave_start",
    )

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.interval = limits.prefill_schedule_interval
        self.active = self.interval > 1 or limits.batch_wait_timeout_iters > 0  # else steps need not be counted
        self.waited_iters = 0  # steps that prompts have waited for others
        self.for_batch = False  # they do in this one
        self.held = False  # for prompts of the other ranks (attention_dp_config)
        self.step = self.wave_start = 0  # ranks count steps from when there was nothing to do
        self.deferred = False  # this step computes no prompts
        self.capacity_bound = False  # the last step with prompts left some waiting: no step is without

    def begin_step(self, step: int) -> None:
        """A step is scheduled, the engine's ``step``-th."""
        self.step, self.for_batch, self.deferred = step, False, False

    def end_steps(self, steps: int) -> None:
        """So many decode steps are over."""
        self.waited_iters += (steps - 1) * self.for_batch

    def max_steps(self) -> int:
        """Decode steps until prompts that wait may begin."""
        limits = self.limits
        if self.for_batch:
            return limits.batch_wait_timeout_iters + 1 - self.waited_iters
        return self.interval - (self.step - self.wave_start) % self.interval if self.deferred else NO_LIMIT

    def waits_for_batch(self, engine: SchedulerState) -> bool:
        """Whether prompts that could begin wait in this step for more to begin with them."""
        limits, num_seqs = self.limits, engine.batch.num_seqs
        if self.held or not limits.batch_wait_timeout_iters or not num_seqs:
            return self.held
        tokens = sum(engine.table.prefill_target[i] for i in engine.waiting) + num_seqs * limits.tokens_per_decode
        timed_out = self.waited_iters >= limits.batch_wait_timeout_iters
        self.for_batch = not timed_out and tokens < limits.batch_wait_min_tokens
        self.waited_iters = self.waited_iters + 1 if self.for_batch else 0
        return self.for_batch

    def defers_prefills(self, engine: SchedulerState) -> bool:
        """Whether this step computes no prompts: it is not one of every so many, sequences decode, and the last step
        with prompts could take all that waited."""
        due = (self.step - self.wave_start) % self.interval == 0
        self.deferred = not due and not self.capacity_bound and len(engine.running) > len(engine.prefilling)
        return self.deferred


SchedulerOutput = tuple[bool, list[Chunk]]  # whether the batch decodes, and the chunks of prompts
Schedule = Callable[[SchedulerState], SchedulerOutput]


class Scheduler(NamedTuple):
    """A registered scheduler: ``SCHEDULERS["vllm"].schedule(engine)``

    ``fast_path``: it admits a request whole whenever `admissible_prompt_tokens` and the free blocks allow it, so that
    steps without contention may be taken by `fast_path.UncontendedRun`. A scheduler that wraps such a one keeps it with
    ``SCHEDULERS["vllm"]._replace(schedule=wrapper)``. ``promises_blocks``: a request begins only when there are blocks
    for all outputs to their ends.
    """

    name: str
    schedule: Schedule
    fast_path: bool = False
    promises_blocks: bool = False


SCHEDULERS: dict[str, Scheduler] = {}


def scheduler(*, fast_path: bool = False, promises_blocks: bool = False) -> Callable[[Schedule], Schedule]:
    """Register a scheduler under its function's name: ``@scheduler()``; a second one of that name is an error."""

    def register(schedule: Schedule) -> Schedule:
        name = schedule.__name__
        if name in SCHEDULERS:
            raise ValueError(f"a scheduler named {name!r} is registered already")
        SCHEDULERS[name] = Scheduler(name, schedule, fast_path, promises_blocks)
        return schedule

    return register


def admissible_prompt_tokens(limits: SchedulerLimits, token_budget: int, num_running: int) -> int:
    """vLLM's admission rule, its limits of tokens and sequences: what the next waiting request may compute now.

    0: it waits. Room in the KV cache is the scheduler's next question.

    The one rule of `vllm`, `sarathi` and the fast path, which admits requests whole while it allows their tokens.
    """
    if num_running >= limits.max_num_seqs:
        return 0
    threshold = limits.long_prefill_token_threshold
    return token_budget if token_budget < threshold else threshold


@scheduler(fast_path=True)
def vllm(engine: SchedulerState) -> SchedulerOutput:
    """vLLM's V1 scheduler: one token budget for all requests, running before waiting ones.

    A prompt that is cut begins only if all of it has room at that moment (`scheduler_reserve_full_isl`, the default of
    0.19), though only the blocks of its first chunk are taken. A sequence that needs a block when there is none takes
    those of the request admitted last, which waits again and computes everything anew.
    """
    limits, kv_cache, running = engine.limits, engine.kv_cache, engine.running
    prefilling, waiting, prefill_target = engine.prefilling, engine.waiting, engine.table.prefill_target
    chunks: list[Chunk] = []
    deferred = limits.prefill_schedule_interval > 1 and engine.prefill_wait.defers_prefills(engine)
    # 1. Decoding requests: one more block each where the last one is full.
    preempted = engine.allocate_decode_blocks()
    token_budget = limits.max_num_batched_tokens - engine.batch.num_seqs * limits.tokens_per_decode
    # 2. Prompts under way.
    for i, num_computed in list(prefilling.items()) if prefilling and not deferred else ():
        if token_budget <= 0 or i not in prefilling:
            break
        num_new = min(prefill_target[i] - num_computed, token_budget, limits.long_prefill_token_threshold)
        while not kv_cache.extend(i, num_computed, num_computed + num_new):
            preempted = True
            victim = engine.preempt()
            chunks = [chunk for chunk in chunks if chunk[0] != victim]
            if victim == i:
                break
        else:
            prefilling[i] = num_computed + num_new
            chunks.append((i, num_new, num_computed))
            token_budget -= num_new
    # 3. Waiting requests, in order; none after a preemption.
    while not preempted and waiting and (allowed := admissible_prompt_tokens(limits, token_budget, len(running))) > 0:
        i, num_cached = engine.next_request()
        if i < 0:
            break
        num_prompt = prefill_target[i] - num_cached
        if deferred and num_prompt > 1:  # one whose KV cache was sent goes on at once
            break
        num_new = min(num_prompt, allowed)
        is_cut = num_new < num_prompt
        if is_cut and not (limits.enable_chunked_prefill and kv_cache.can_hold(i, num_cached, prefill_target[i])):
            break
        if not kv_cache.allocate(i, num_cached, num_cached + num_new):
            break
        engine.admit(i, num_cached, num_new)
        chunks.append((i, num_new, num_cached))
        token_budget -= num_new
    if not deferred and not preempted:
        engine.prefill_wait.capacity_bound = len(waiting) > 0
    return True, chunks


@scheduler()
def sarathi(engine: SchedulerState) -> SchedulerOutput:
    """Sarathi-Serve: stall-free batches. As vLLM's, but a prompt begins only when there is room for all of it and a
    hundredth of the cache to spare, so that prompts under way never lack blocks."""
    limits, kv_cache, running = engine.limits, engine.kv_cache, engine.running
    waiting, prefill_target = engine.waiting, engine.table.prefill_target
    preempted = engine.allocate_decode_blocks()
    token_budget = limits.max_num_batched_tokens - engine.batch.num_seqs * limits.tokens_per_decode
    chunks = _continue_prefills(engine, token_budget, limits.long_prefill_token_threshold)
    token_budget -= sum(num_new for _, num_new, _ in chunks)
    while not preempted and waiting and (allowed := admissible_prompt_tokens(limits, token_budget, len(running))) > 0:
        i, num_cached = engine.next_request()
        if i < 0:
            break
        num_prompt = prefill_target[i] - num_cached
        spare = kv_cache.num_blocks // 100 if running else 0
        if kv_cache.free_blocks - ceil_div(num_prompt, kv_cache.block_size) < spare:
            break
        if not kv_cache.allocate(i, num_cached, prefill_target[i]):
            break
        num_new = min(num_prompt, allowed)
        engine.admit(i, num_cached, num_new)
        chunks.append((i, num_new, num_cached))
        token_budget -= num_new
    return True, chunks


def _continue_prefills(engine: SchedulerState, token_budget: int, threshold: int) -> list[Chunk]:
    """The next chunks of prompts under way whose blocks are all taken, as far as the budget goes."""
    prefill_target, chunks = engine.table.prefill_target, []
    for i, num_computed in list(engine.prefilling.items()):
        num_new = min(prefill_target[i] - num_computed, token_budget, threshold)
        if num_new > 0:
            engine.prefilling[i] = num_computed + num_new
            chunks.append((i, num_new, num_computed))
            token_budget -= num_new
    return chunks


@scheduler(promises_blocks=True)
def trtllm(engine: SchedulerState) -> SchedulerOutput:
    """TensorRT-LLM's in-flight batching: decodes first, then whole prompts, in order, as long as the budget lasts.

    A prompt begins when the cache has room for it and for all outputs to their ends, so no request is ever preempted
    (GUARANTEED_NO_EVICT). Only one that no step has room for is cut (enable_chunked_prefill). While sequences decode,
    prompts may wait for others to begin with them (`SchedulerLimits.batch_wait_timeout_iters`).
    """
    limits, kv_cache, waiting = engine.limits, engine.kv_cache, engine.waiting
    prefilling, prefill_target = engine.prefilling, engine.table.prefill_target
    chunks: list[Chunk] = []
    engine.allocate_decode_blocks()
    token_budget = limits.max_num_batched_tokens - engine.batch.num_seqs * limits.tokens_per_decode
    for i, num_computed in list(prefilling.items()):
        num_new = min(prefill_target[i] - num_computed, token_budget)
        if num_new > 0 and kv_cache.extend(i, num_computed, num_computed + num_new):
            prefilling[i] = num_computed + num_new
            chunks.append((i, num_new, num_computed))
            token_budget -= num_new
    unpromised = kv_cache.free_blocks - _promised_blocks(engine)
    continued = len(chunks)
    while unpromised > 0 and token_budget > 0 and waiting and len(engine.running) < limits.max_num_seqs:
        i, num_cached = engine.next_request()
        if i < 0:
            break
        num_prompt = prefill_target[i] - num_cached
        num_new = min(num_prompt, token_budget)
        unpromised -= _final_blocks(engine, i) - num_cached // kv_cache.block_size
        if unpromised < 0 or num_new < num_prompt <= limits.max_num_batched_tokens:
            break
        if len(chunks) == continued and engine.prefill_wait.waits_for_batch(engine):
            break
        if not kv_cache.allocate(i, num_cached, num_cached + num_new):
            break
        engine.admit(i, num_cached, num_new)
        chunks.append((i, num_new, num_cached))
        token_budget -= num_new
    return True, chunks


def _final_blocks(engine: SchedulerState, i: int) -> int:
    """Blocks of a request at the end of its output; its last token is never computed."""
    table = engine.table
    return ceil_div(table.prefill_target[i] + max(table.remaining_tokens[i] - 1, 0), engine.kv_cache.block_size)


def _promised_blocks(engine: SchedulerState) -> int:
    """Blocks that admitted requests will still take, to the ends of their outputs."""
    decoding = engine.batch.blocks_to_completion() - engine.blocks_reserved  # this step's are taken already
    size = engine.kv_cache.block_size
    return decoding + sum(_final_blocks(engine, i) - ceil_div(done, size) for i, done in engine.prefilling.items())


@scheduler()
def prefill_first(engine: SchedulerState) -> SchedulerOutput:
    """Whole prompts before decodes (Orca, FasterTransformer's successors, vLLM's V0): while prompts can begin, a step
    computes as many as the budget takes, uncut, and no sequence decodes; a prompt above the budget comes alone."""
    limits, kv_cache, prefill_target = engine.limits, engine.kv_cache, engine.table.prefill_target
    chunks: list[Chunk] = []
    token_budget = limits.max_num_batched_tokens
    while engine.waiting and len(engine.running) < limits.max_num_seqs and len(chunks) < limits.prefill_max_requests:
        i, num_cached = engine.next_request()
        if i < 0:
            break
        num_new = prefill_target[i] - num_cached
        if (num_new > token_budget and chunks) or not kv_cache.allocate(i, num_cached, prefill_target[i]):
            break
        engine.admit(i, num_cached, num_new)
        chunks.append((i, num_new, num_cached))
        token_budget -= num_new
    if not chunks:
        engine.allocate_decode_blocks()
    return not chunks, chunks


@scheduler()
def static(engine: SchedulerState) -> SchedulerOutput:
    """Static batches: the requests that wait when the engine is empty are served together, and none joins before all
    have finished. Sequences that finish early stay in the batch as padding; each has blocks for the longest request."""
    limits, kv_cache, table, running = engine.limits, engine.kv_cache, engine.table, engine.running
    if not running:
        longest = 0
        while engine.waiting and len(running) < limits.max_num_seqs:
            i = engine.waiting.peek()
            longest = max(longest, table.prefill_target[i] + table.remaining_tokens[i])
            if (len(running) + 1) * ceil_div(longest, kv_cache.block_size) > kv_cache.num_blocks:
                break
            engine.admit(i, 0, 0)
        engine.reserve_static(len(running) * ceil_div(longest, kv_cache.block_size))
    chunks = _continue_prefills(engine, limits.max_num_batched_tokens, NO_THRESHOLD)
    return not chunks, chunks


# ------------------------------------------------------------------ waiting requests: vLLM's two policies


class RequestQueue(Protocol):
    """What an engine and its scheduler ask of the waiting requests."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...

    def push(self, i: int, /) -> None:
        """A request arrives."""

    def push_front(self, i: int, /) -> None:
        """A preempted request waits again."""

    def peek(self) -> int:
        """The request that is next."""
        raise NotImplementedError

    def pop_first(self) -> int:
        """The request that is next leaves the queue."""
        raise NotImplementedError

    def remove(self, i: int, /) -> None:
        """A request that waits is aborted."""


class FCFSQueue(deque[int]):
    """First come, first served; a preempted request goes to the front: ``queue.push(7); queue.peek()  # 7``"""

    push, push_front, pop_first = deque.append, deque.appendleft, deque.popleft

    def peek(self) -> int:
        """The request that is next."""
        return self[0]


class PriorityQueue:
    """By priority (smaller first), then by arrival: ``PriorityQueue(table)``"""

    def __init__(self, table: RequestTable) -> None:
        self.table = table
        self.heap: list[tuple[int, float, int]] = []

    def __len__(self) -> int:
        return len(self.heap)

    def __iter__(self) -> Iterator[int]:
        return (entry[2] for entry in self.heap)

    def push(self, i: int) -> None:
        """A request arrives, or waits again after a preemption."""
        heappush(self.heap, (*priority_key(self.table, i), i))

    push_front = push

    def pop_first(self) -> int:
        """The request that is next leaves the queue."""
        return heappop(self.heap)[2]

    def peek(self) -> int:
        """The request that is next."""
        return self.heap[0][2]

    def remove(self, i: int) -> None:
        """A request that waits is aborted."""
        self.heap = [entry for entry in self.heap if entry[2] != i]
        heapify(self.heap)


def request_queue(limits: SchedulerLimits, table: RequestTable) -> RequestQueue:
    """The queue of an engine's policy: ``request_queue(limits, table).push(7)``"""
    return PriorityQueue(table) if limits.priority else FCFSQueue()


def priority_key(table: RequestTable, i: int) -> tuple[int, float]:
    """Priority and arrival of a request: the smallest key is served first, the largest is preempted first."""
    return (table.priority[i] if table.priority else 0), table.arrival_s[i]
