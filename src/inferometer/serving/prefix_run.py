"""Steps without contention where prompts share prefixes, as the turns of sessions do.

`PrefixRun` is an `UncontendedRun` whose blocks keep their content: a request's cached blocks are looked up and taken
over when it is admitted, and given back with what they hold when it has finished. Blocks for answers are taken from the
cache's queue when the next request is admitted or freed, all at once: what is evicted, and in which order, is the same.
Prompts are admitted as `schedulers.vllm` does it. Where one is cut or must wait, the step is still taken here, and the
rest is the step loop's. So is a prompt of which a tier below the GPU has blocks, until they are loaded.
"""

from __future__ import annotations

from .engine import EngineCore
from .kv_cache import PrefixCache
from .schedulers import admissible_prompt_tokens
from .step_cost import Chunk
from .step_tables import ContextTable
from .uncontended_run import UncontendedRun


class PrefixRun(UncontendedRun):
    """``PrefixRun(engine, engine.cost.closed_form, engine.kv_cache).run(until)``

    ``free_blocks`` are those beyond what running requests will still take; below 0 the step loop has to decide.
    """

    __slots__ = ("cache", "cut", "synced", "tiered", "untaken")

    def __init__(self, engine: EngineCore, decode_table: ContextTable, cache: PrefixCache) -> None:
        super().__init__(engine, decode_table)
        self.cache, self.tiered = cache, engine.tiered
        self.synced = engine.batch.clock  # up to which the blocks of answers are counted
        self.untaken = 0  # of these, blocks that are not taken from the cache yet
        self.cut: tuple[int, int] | None = None  # a prompt that was begun: its request, and its tokens so far

    def _take_growth(self, clock: int) -> None:
        """Blocks that answers fill up to a clock are taken from the cache's queue."""
        blocks = self.untaken + self._growth(clock)
        self.synced, self.untaken = clock, 0
        if blocks:
            self.cache.take(blocks)

    def _growth(self, clock: int) -> int:
        """Blocks that the answers of the batch take from when they were counted last up to a clock."""
        batch, size = self.batch, self.block_size
        cycles, rest = divmod(clock - self.synced, size)
        start = self.synced % size
        end, phases = start + rest, batch.block_phase_counts
        blocks = cycles * batch.num_seqs + sum(phases[start:end])
        return blocks if end <= size else blocks + sum(phases[: end - size])

    def _mixed_step(self, arrived: list[int]) -> bool:
        """A step that computes prompts of requests that arrived; False if the step loop must go on from here."""
        engine, batch, cache, prefill_target = self.engine, self.batch, self.cache, self.table.prefill_target
        self._free_finished()
        if self.tiered is not None and len(arrived) > 1:  # they may have to be loaded one by one
            for i in arrived:
                engine.waiting.push(i)
            return False
        self._take_growth(batch.clock)
        growth = batch.block_phase_counts[batch.clock % self.block_size] if batch.num_seqs else 0
        if growth:
            cache.take(growth)
        chunks, prompt_tokens = self._admit(arrived)
        if not chunks:
            cache.untake(growth)
            return False
        self.synced = batch.clock + (1 if batch.num_seqs else 0)
        completed = [i for i, num_new, num_cached in chunks if num_cached + num_new == prefill_target[i]]
        ahead = self.now - self.visible_until if self.results_late else 0.0
        seconds = self._mixed_seconds(chunks, len(completed), prompt_tokens, ahead)
        self._end_mixed_step(completed, prompt_tokens, len(chunks), seconds, ahead)
        if self.tiered is not None:
            engine._store_computed(chunks, self.now)
        return self.cut is None and self.free_blocks >= 0 and not engine.waiting

    def _admit(self, arrived: list[int]) -> tuple[list[Chunk], int]:
        """What the next step computes of prompts that arrived, and its tokens: `schedulers.vllm`, written out."""
        limits, cache, table, size = self.engine.limits, self.cache, self.table, self.block_size
        prefill_target, prompt_tokens = table.prefill_target, 0
        chunks: list[Chunk] = []
        token_budget = limits.max_num_batched_tokens - self.batch.num_seqs
        num_running, free = self.batch.num_seqs + len(self.finished), cache.free_blocks
        for i in arrived:
            allowed = admissible_prompt_tokens(limits, token_budget, num_running + len(chunks))
            if allowed <= 0:
                break
            prompt = prefill_target[i]
            cached = cache.match_prefix(i, prompt)
            if self.tiered is not None and self.tiered.match_tiers(i, cached, prompt):
                break
            num_new = prompt - cached
            if num_new > allowed:
                if not (limits.enable_chunked_prefill and cache.can_hold(i, cached, prompt)):
                    break
                num_new = allowed
            if not cache.allocate(i, cached, cached + num_new):
                break
            chunks.append((i, num_new, cached))
            token_budget -= num_new
            prompt_tokens += num_new
            table.num_cached_tokens[i] = cached
            cache.queried_tokens += prompt
            cache.hit_tokens += cached
            if cached + num_new < prompt:
                table.scheduled_s[i] = self.now
                self.cut = (i, cached + num_new)
                self.engine.computed_tokens += num_new
            else:  # blocks of its answer, whose last token is never computed
                self.context_before += cached
                last = prompt + max(table.remaining_tokens[i] - 1, 0)
                self.free_blocks -= (last + size - 1) // size - (prompt + size - 1) // size
        self.free_blocks -= free - cache.free_blocks
        for i in arrived[len(chunks) :]:
            self.engine.waiting.push(i)
        return chunks, prompt_tokens

    def _finish_decodes(self, now: float) -> None:
        """Sequences that have all their tokens leave the batch."""
        clock = self.batch.clock
        self.untaken += self._growth(clock)
        self.synced = clock
        super()._finish_decodes(now)

    def _free_finished(self) -> None:
        """Places are free, and blocks, whose content others may use."""
        before = self.batch.clock + self.clock_lag + (not self.async_scheduling)
        if not self.finished or self.finished[0][0] >= before:
            return
        self._take_growth(self.batch.clock)
        cache, kept = self.cache, []
        free = cache.free_blocks
        for entry in self.finished:
            if entry[0] < before:
                cache.release(entry[1], entry[2], entry[3])
            else:
                kept.append(entry)
        self.finished = kept
        self.free_blocks += cache.free_blocks - free

    def _count_blocks(self) -> None:
        self._take_growth(self.batch.clock)

    def _hand_back(self) -> None:
        """Leave the engine as its own steps would."""
        super()._hand_back()
        if self.cut is not None:
            i, num_computed = self.cut
            self.engine.running[i] = None
            self.engine.prefilling[i] = num_computed
