"""The step loop without contention: no request waits, and there are blocks for every sequence until it finishes.

Most of a simulation is this: sequences decode, some finish, now and then a prompt arrives and is computed at once.
Nothing has to be scheduled, so nothing is: a request's blocks are set aside for its whole life when it arrives, and
whether it can be admitted whole at once (`schedulers.admissible_prompt_tokens`, and its blocks) is the only question.
As soon as a request must wait, the run hands back to the step loop of `EngineCore`, whose every step it equals: a test
holds both against single steps.

The loop repeats what `EngineCore` does per step, by design: it keeps counters instead of calling a scheduler, and it is
written for one case only. That makes a simulation about twice as fast.
"""

from __future__ import annotations

from heapq import heappop, heappush

from .engine import EngineCore
from .inter_token import SHORT_RUN, US
from .kv_cache import PrefixCache
from .request_table import Finishing
from .schedulers import admissible_prompt_tokens
from .step_cost import Chunk, Throttle
from .step_tables import ContextTable

RETRY_STEPS = 256  # steps until an engine that was short of blocks is tried again


class FastPathEngine(EngineCore):
    """An `EngineCore` that takes steps without contention on the fast path, where its scheduler allows it."""

    retry_at_step = 0  # the step before which the fast path need not be tried again

    def _fast_path_applies(self) -> bool:
        """Whether this engine can go this way at all: the scheduler allows it, and nothing ties its steps together."""
        limits, cache = self.limits, self.kv_cache
        shares_prefixes = isinstance(cache, PrefixCache) and cache.tree is not None
        return (
            self.fast_forward
            and self.scheduler.fast_path
            and self.cost.closed_form is not None
            and not limits.ends_on_stop_token
            and not shares_prefixes
            and self.table.transferred_tokens is None
            and limits.tokens_per_decode == limits.scheduler_recv_interval == 1
            and limits.prefill_schedule_interval == 1
            and not limits.batch_wait_timeout_iters
        )

    def _is_uncontended(self) -> bool:
        """Whether no request waits or is about to leave, and all decoding ones have their blocks to the end."""
        if self.waiting or self.prefilling or self.finishing or self.kv_in_transfer or self.steps < self.retry_at_step:
            return False
        cache = self.kv_cache
        may_reuse = isinstance(cache, PrefixCache) and not cache.no_reuse
        if may_reuse or self.batch.blocks_to_completion() > cache.free_blocks:
            self.retry_at_step = self.steps + RETRY_STEPS
            return False
        return True

    def _run_uncontended(self, until: float) -> None:
        """Take steps as long as no request has to wait; leaves everything as `_step` would."""
        if self._is_uncontended():
            assert self.cost.closed_form is not None
            UncontendedRun(self, self.cost.closed_form).run(until)


class UncontendedRun:
    """A stretch of steps without contention: ``UncontendedRun(engine, engine.cost.closed_form).run(until)``

    It keeps an engine's totals in local names, and its `DecodeBatch` up to date but for its count of block
    phases; `_write_back` and `_hand_back` make both whole again.
    """

    __slots__ = (
        "async_scheduling",
        "batch",
        "block_size",
        "decode_table",
        "engine",
        "finished",
        "free_blocks",
        "limits",
        "prompt_tokens",
        "running",
        "table",
        "usable_blocks",
    )

    def __init__(self, engine: EngineCore, decode_table: ContextTable) -> None:
        self.engine, self.batch, self.decode_table = engine, engine.batch, decode_table
        self.limits, self.running, self.table = engine.limits, engine.running, engine.table
        self.block_size, self.async_scheduling = engine.kv_cache.block_size, engine.limits.async_scheduling
        self.free_blocks = engine.kv_cache.free_blocks - engine.batch.blocks_to_completion()  # beyond those set aside
        self.usable_blocks = engine.kv_cache.free_blocks + engine.batch.blocks_held()  # free, or held by sequences here
        self.finished: list[tuple[int, int]] = []  # finished in the last step and not freed yet: request, blocks
        self.prompt_tokens = 0  # computed since the last `_write_back`

    def run(self, until: float) -> None:
        """Take steps that begin before ``until``, as long as no request has to wait."""
        engine, batch, source, recorder = self.engine, self.batch, self.engine.source, self.engine.recorder
        finish_heap, id_bits, search = batch.finish_heap, batch.id_bits, self.decode_table.search
        mixed_seconds, throttle, extra_steps = engine.cost.mixed_seconds, engine.throttle, int(self.async_scheduling)
        now, visible_until, finished = engine.now, engine.visible_until, self.finished
        gap_counts, num_steps, computed_tokens, busy_s = engine.gaps.counts, 0, 0, 0.0
        while now < until:
            next_arrival, num_seqs, chunks = source.next, batch.num_seqs, None
            if not num_seqs and visible_until < next_arrival < until:  # idle: asynchronous scheduling is not behind
                now = visible_until = next_arrival if next_arrival > now else now
                self._free_finished()
            if next_arrival <= visible_until:
                arrived = source.take(visible_until)
                if not arrived:  # all were rejected on arrival
                    continue
                chunks = self._admit(arrived, now)
                if chunks is None:
                    break
                steps, before_last, decodes = 1, 0.0, batch if num_seqs else None
                seconds = (
                    mixed_seconds(decodes, chunks, len(chunks))
                    if throttle is None
                    else self._throttled_seconds(throttle, chunks, now)
                )
            elif num_seqs:
                gap = (next_arrival if next_arrival < until else until) - now
                max_steps, total = (finish_heap[0] >> id_bits) - batch.clock, batch.offset_sum + num_seqs * batch.clock
                steps, seconds, before_last = search(num_seqs, total, max_steps, gap, extra_steps)
            else:
                break
            visible_until = now + before_last if extra_steps else now + seconds
            now += seconds
            num_steps += steps
            computed_tokens += steps * num_seqs
            busy_s += seconds
            if steps <= SHORT_RUN:
                gap_counts[int(seconds * US / steps)] += steps * num_seqs
            else:
                engine.gaps.count(batch, engine.cost, now, steps, seconds, before_last)
            if finished:  # in the step before
                self._free_finished()
            if num_seqs:
                clock = batch.clock = batch.clock + steps
                if finish_heap[0] >> id_bits <= clock:
                    self._finish_decodes(now)
            if chunks:
                self._start_decodes(chunks, now)
            if now >= recorder.next_sample:
                self._write_back(now, visible_until, num_steps, computed_tokens, busy_s)
                num_steps, computed_tokens, busy_s = 0, 0, 0.0
                engine.sample()
        self._write_back(now, visible_until, num_steps, computed_tokens, busy_s)
        self._hand_back()

    def _admit(self, arrived: list[int], now: float) -> list[Chunk] | None:
        """The prompts of requests that arrived, if all can be admitted whole; None if one must wait, as all do then."""
        size, table, limits, running = self.block_size, self.table, self.limits, self.running
        prefill_target, remaining_tokens, number = table.prefill_target, table.remaining_tokens, self.engine.number
        blocks = prompt_tokens = 0
        chunks = []
        for i in arrived:
            prompt, remaining = prefill_target[i], remaining_tokens[i]
            prompt_tokens += prompt
            # blocks at its end, where the last token is never computed: ceil_div, written out
            blocks += (prompt + size - 1 + (remaining - 1 if remaining > 1 else 0)) // size
            table.replica[i] = number
            chunks.append((i, prompt, 0))
        token_budget = limits.max_num_batched_tokens - self.batch.num_seqs
        num_ahead = len(running) + len(arrived) - 1  # of the last of them
        if blocks > self.free_blocks or prompt_tokens > admissible_prompt_tokens(limits, token_budget, num_ahead):
            for i in arrived:
                self.engine.waiting.push(i)
            return None
        self.free_blocks -= blocks
        self.prompt_tokens += prompt_tokens
        for i in arrived:
            running[i] = None
            table.scheduled_s[i] = now
        return chunks

    def _throttled_seconds(self, throttle: Throttle, chunks: list[Chunk], now: float) -> float:
        """Seconds of a step in which whole prompts are computed while the batch decodes; it heats the chip up."""
        num_seqs, fraction = self.batch.num_seqs, throttle.fraction_at(now)
        seconds = self.engine.cost.mixed_seconds(self.batch if num_seqs else None, chunks, len(chunks), fraction)
        num_new_tokens = chunks[0][1] if len(chunks) == 1 else sum([prompt for _, prompt, _ in chunks])
        throttle.add_load(now, seconds, num_new_tokens / (num_new_tokens + num_seqs), fraction)
        return seconds

    def _start_decodes(self, chunks: list[Chunk], now: float) -> None:
        """Prompts are done: their first tokens are out, and their sequences join the batch."""
        batch, table = self.batch, self.table
        clock, finish_heap, id_bits = batch.clock, batch.finish_heap, batch.id_bits
        for i, prompt, _ in chunks:
            table.first_token_s[i] = now
            remaining = table.remaining_tokens[i] - 1
            offset = batch.offset[i] = prompt - clock
            batch.offset_sum += offset
            heappush(finish_heap, (clock + (remaining if remaining > 0 else 0)) << id_bits | i)
        batch.num_seqs += len(chunks)
        if finish_heap[0] >> id_bits <= clock:  # with their first token some have all of them
            self._finish_decodes(now)

    def _finish_decodes(self, now: float) -> None:
        """Sequences that have all their tokens leave the batch."""
        batch, table, on_finished, size = self.batch, self.table, self.engine.on_finished, self.block_size
        finish_heap, id_bits, clock = batch.finish_heap, batch.id_bits, batch.clock
        mask = (1 << id_bits) - 1
        while finish_heap and finish_heap[0] >> id_bits <= clock:
            i = heappop(finish_heap) & mask
            offset = batch.offset.pop(i)
            batch.offset_sum -= offset
            batch.num_seqs -= 1
            table.finished_s[i] = now
            if on_finished is not None:
                on_finished(i, now)
            self.finished.append((i, (offset + clock + size - 1) // size))  # ceil_div, written out
        if not self.async_scheduling:
            self._free_finished()

    def _free_finished(self) -> None:
        """Places and blocks are free: a step after the end with asynchronous scheduling, at once without."""
        finished, running = self.finished, self.running
        for i, blocks in finished:
            del running[i]
            self.free_blocks += blocks
        finished.clear()

    def _write_back(self, now: float, visible_until: float, steps: int, decoded_tokens: int, busy_s: float) -> None:
        """Bring the engine's clocks, totals and free blocks up to date."""
        engine = self.engine
        engine.now, engine.visible_until = now, visible_until
        engine.steps += steps
        engine.busy_s += busy_s
        engine.computed_tokens += decoded_tokens + self.prompt_tokens
        engine.kv_cache.queried_tokens += self.prompt_tokens
        self.prompt_tokens = 0
        unfreed_blocks = sum([blocks for _, blocks in self.finished])
        engine.kv_cache.free_blocks = self.usable_blocks - self.batch.blocks_held() - unfreed_blocks

    def _hand_back(self) -> None:
        """Leave the batch and the finishing requests as the engine's own steps would."""
        batch, engine = self.batch, self.engine
        batch.steps = batch.clock
        batch.block_phase_counts = [0] * batch.block_size
        for offset in batch.offset.values():
            batch.block_phase_counts[-offset % batch.block_size] += 1
        engine.finishing = [Finishing(i, blocks, 0, engine.steps, 0.0) for i, blocks in self.finished]
