"""The step loop without contention: no request waits, and there are blocks for every sequence until it finishes.

Most of a simulation is this: sequences decode, some finish, now and then a prompt arrives and is computed at once.
Nothing has to be scheduled, so nothing is: a request's blocks are set aside for its whole life when it arrives, and
whether it can be admitted whole at once (`schedulers.max_new_tokens`, and its blocks) is the only question. As soon as
a request must wait, the run hands back to the step loop of `EngineCore`, whose every step it equals: a test holds both
against single steps.

The loop repeats what `EngineCore` does per step, by design: it is twice as fast, for it keeps counters instead of
asking a scheduler, and it is written for one case only.
"""

from __future__ import annotations

from heapq import heappop, heappush

from .engine import EngineCore, Finishing
from .kv_cache import PrefixCache
from .schedulers import max_new_tokens
from .step_cost import Chunk
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

    It keeps the clocks and totals of an engine in slots, and the engine's `DecodeBatch` up to date but for its count of
    block phases; `_write_back` makes both whole again.
    """

    __slots__ = (
        "async_scheduling",
        "batch",
        "block_size",
        "busy_s",
        "computed_tokens",
        "decode_table",
        "engine",
        "finished",
        "free_blocks",
        "now",
        "queried_tokens",
        "steps",
        "visible_until",
    )

    def __init__(self, engine: EngineCore, decode_table: ContextTable) -> None:
        self.engine, self.batch, self.decode_table = engine, engine.batch, decode_table
        self.block_size, self.async_scheduling = engine.kv_cache.block_size, engine.limits.async_scheduling
        self.free_blocks = engine.kv_cache.free_blocks - engine.batch.blocks_to_completion()  # beyond those set aside
        self.finished: list[tuple[int, int]] = []  # finished in the last step and not freed yet: request, blocks
        self.now, self.visible_until = engine.now, engine.visible_until
        self.steps = self.computed_tokens = self.queried_tokens = 0
        self.busy_s = 0.0

    def run(self, until: float) -> None:
        """Take steps that begin before ``until``, as long as no request has to wait."""
        batch, source, recorder = self.batch, self.engine.source, self.engine.recorder
        finish_heap, id_bits, search = batch.finish_heap, batch.id_bits, self.decode_table.search
        extra_steps = int(self.async_scheduling)
        while self.now < until:
            next_arrival = source.next
            num_seqs = batch.num_seqs
            if not num_seqs and self.visible_until < next_arrival < until:
                self._skip_to(next_arrival)
            if next_arrival <= self.visible_until:
                arrived = source.take(self.visible_until)
                if not arrived:  # all were rejected on arrival
                    continue
                chunks = self._admit(arrived)
                if chunks is None:
                    break
                self._mixed_step(chunks)
            elif num_seqs:
                start, clock = self.now, batch.clock
                steps, seconds, before_last = search(
                    num_seqs,
                    batch.offset_sum + num_seqs * clock,
                    (finish_heap[0] >> id_bits) - clock,
                    (next_arrival if next_arrival < until else until) - start,
                    extra_steps,
                )
                self.now = start + seconds
                self.visible_until = start + before_last if extra_steps else self.now
                self.steps += steps
                self.computed_tokens += steps * num_seqs
                self.busy_s += seconds
                batch.clock = clock = clock + steps
                if self.finished:
                    self._free_finished()
                if finish_heap[0] >> id_bits <= clock:
                    self._finish_decodes()
            else:
                break
            if self.now >= recorder.next_sample:
                self._write_back()
                self.engine.sample()
        self._write_back()
        self._hand_back()

    def _skip_to(self, next_arrival: float) -> None:
        """The engine is idle until a request arrives; asynchronous scheduling is not behind then."""
        self.now = self.visible_until = next_arrival if next_arrival > self.now else self.now
        self._free_finished()

    def _admit(self, arrived: list[int]) -> list[Chunk] | None:
        """The prompts of requests that arrived, if all can be admitted whole; None if one must wait, as all do then."""
        engine, table, size = self.engine, self.engine.table, self.block_size
        prefill_target, remaining_tokens, replica, number = (
            table.prefill_target,
            table.remaining_tokens,
            table.replica,
            engine.number,
        )
        blocks = prompt_tokens = 0
        for i in arrived:
            prompt, remaining = prefill_target[i], remaining_tokens[i]
            prompt_tokens += prompt
            # to its end, whose last token is never computed: ceil_div, written out
            blocks += (prompt + (remaining - 1 if remaining > 1 else 0) + size - 1) // size
            replica[i] = number
        limits, running = engine.limits, engine.running
        token_budget = limits.max_num_batched_tokens - self.batch.num_seqs
        num_ahead = len(running) + len(arrived) - 1  # of the last of them
        if blocks > self.free_blocks or prompt_tokens > max_new_tokens(limits, token_budget, num_ahead):
            for i in arrived:
                engine.waiting.push(i)
            return None
        self.free_blocks -= blocks
        self.queried_tokens += prompt_tokens
        now, scheduled_s = self.now, table.scheduled_s
        chunks = []
        for i in arrived:
            running[i] = None
            scheduled_s[i] = now
            chunks.append((i, prefill_target[i], 0))
        return chunks

    def _mixed_step(self, chunks: list[Chunk]) -> None:
        """A step in which whole prompts are computed while the batch decodes."""
        engine, batch, start = self.engine, self.batch, self.now
        num_seqs, throttle = batch.num_seqs, engine.throttle
        num_new_tokens = sum([prompt for _, prompt, _ in chunks])
        if throttle is None:
            seconds = engine.cost.mixed_seconds(batch if num_seqs else None, chunks, len(chunks))
        else:
            thermal_state = throttle.fraction_at(start)
            seconds = engine.cost.mixed_seconds(batch if num_seqs else None, chunks, len(chunks), thermal_state)
            throttle.add_load(start, seconds, num_new_tokens / (num_new_tokens + num_seqs))
        self.now = now = start + seconds
        self.visible_until = start if self.async_scheduling else now
        self.steps += 1
        self.computed_tokens += num_seqs + num_new_tokens
        self.busy_s += seconds
        if self.finished:
            self._free_finished()
        if num_seqs:
            batch.clock += 1
            if batch.finish_heap[0] >> batch.id_bits <= batch.clock:
                self._finish_decodes()
        table = engine.table
        first_token_s, remaining_tokens = table.first_token_s, table.remaining_tokens
        for i, prompt, _ in chunks:
            first_token_s[i] = now
            remaining = remaining_tokens[i] - 1
            if remaining > 0:
                offset = batch.offset[i] = prompt - batch.clock
                batch.offset_sum += offset
                batch.num_seqs += 1
                heappush(batch.finish_heap, (batch.clock + remaining) << batch.id_bits | i)
            else:
                self._finish(i, prompt)

    def _finish_decodes(self) -> None:
        """Sequences that have all their tokens leave the batch."""
        batch = self.batch
        finish_heap, id_bits, clock = batch.finish_heap, batch.id_bits, batch.clock
        mask = (1 << id_bits) - 1
        while finish_heap and finish_heap[0] >> id_bits <= clock:
            i = heappop(finish_heap) & mask
            offset = batch.offset.pop(i)
            batch.offset_sum -= offset
            batch.num_seqs -= 1
            self._finish(i, offset + clock)

    def _finish(self, i: int, tokens: int) -> None:
        """A request has all its tokens; with asynchronous scheduling it keeps place and blocks for one step more."""
        engine = self.engine
        engine.table.finished_s[i] = self.now
        if engine.on_finished is not None:
            engine.on_finished(i, self.now)
        blocks = (tokens + self.block_size - 1) // self.block_size  # ceil_div, written out
        if self.async_scheduling:
            self.finished.append((i, blocks))
        else:
            del engine.running[i]
            self.free_blocks += blocks

    def _free_finished(self) -> None:
        running = self.engine.running
        for i, blocks in self.finished:
            del running[i]
            self.free_blocks += blocks
        self.finished = []

    def _write_back(self) -> None:
        """Bring the engine's clocks, totals and free blocks up to date."""
        engine = self.engine
        engine.now, engine.visible_until = self.now, self.visible_until
        engine.steps += self.steps
        engine.busy_s += self.busy_s
        engine.computed_tokens += self.computed_tokens
        self.steps, self.computed_tokens, self.busy_s = 0, 0, 0.0
        engine.kv_cache.queried_tokens += self.queried_tokens
        self.queried_tokens = 0
        engine.kv_cache.free_blocks = self.free_blocks + self.batch.blocks_to_completion()

    def _hand_back(self) -> None:
        """Leave the batch and the finishing requests as the engine's own steps would."""
        batch, engine = self.batch, self.engine
        batch.steps = batch.clock
        batch.block_phase_counts = [0] * batch.block_size
        for offset in batch.offset.values():
            batch.block_phase_counts[-offset % batch.block_size] += 1
        engine.finishing = [Finishing(i, blocks, 0, engine.steps, 0.0) for i, blocks in self.finished]
