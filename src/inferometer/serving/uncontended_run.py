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

from bisect import bisect_right
from heapq import heappop, heappush

import numpy as np

from .engine import EngineCore
from .inter_token import ROW_BITS, SHORT_RUN, WARM
from .request_table import Finishing
from .schedulers import admissible_prompt_tokens
from .step_cost import Chunk
from .step_tables import ContextTable


class UncontendedRun:
    """A stretch of steps without contention: ``UncontendedRun(engine, engine.cost.closed_form).run(until)``

    It keeps an engine's clocks itself, and its `DecodeBatch` up to date but for its count of block phases. All else
    follows: a step is a tick of the batch's clock, tokens that were computed are contexts that grew, the engine is busy
    unless it waits for an arrival. `_write_back` and `_hand_back` make the engine whole again.
    """

    __slots__ = (
        "async_scheduling",
        "batch",
        "block_size",
        "clock_lag",
        "context_before",
        "context_finished",
        "decode_table",
        "engine",
        "finished",
        "free_blocks",
        "frequent",
        "gap_log",
        "idle_until",
        "now",
        "prompt_tokens",
        "results_late",
        "shift",
        "steps_before",
        "sure_tokens",
        "table",
        "usable_blocks",
        "visible_until",
        "visits",
    )

    def __init__(self, engine: EngineCore, decode_table: ContextTable) -> None:
        batch, limits = engine.batch, engine.limits
        self.engine, self.batch, self.decode_table, self.table = engine, batch, decode_table, engine.table
        self.now = self.idle_until = engine.now  # from `idle_until` on the engine was busy, but for the time before
        self.visible_until = engine.visible_until
        self.block_size, self.async_scheduling = engine.kv_cache.block_size, limits.async_scheduling
        self.results_late = limits.results_after_launches
        self.free_blocks = engine.kv_cache.free_blocks - batch.blocks_to_completion()  # beyond those set aside
        self.usable_blocks = engine.kv_cache.free_blocks + batch.blocks_held()  # free, or held by sequences here
        # finished and not freed yet: the step, the request, its blocks and the tokens in them; freed when it is needed
        self.finished: list[tuple[int, int, int, int]] = []
        self.clock_lag = 0  # steps in which no sequence decoded, so that the batch's clock stood
        self.prompt_tokens = 0
        self.steps_before, self.context_before, self.context_finished = batch.clock, batch.total_context(), 0
        self.visits, self.shift = engine.gaps.visits_of(decode_table)
        self.gap_log = engine.gaps.log
        decode_table.lines += [None] * (min(limits.max_num_seqs, len(engine.table)) + 1 - len(decode_table.lines))
        self.frequent = {} if engine.cost.throttle_after else engine.cost.frequent
        # tokens of a step that `admissible_prompt_tokens` allows whatever else there is
        self.sure_tokens = min(limits.max_num_batched_tokens, limits.long_prefill_token_threshold)

    def run(self, until: float) -> None:
        """Take steps that begin before ``until``, as long as no request has to wait."""
        source, batch, number = self.engine.source, self.batch, self.engine.number
        while self.now < until:
            if source.next <= self.visible_until:
                arrived = source.take(self.visible_until)  # none: all were rejected on arrival
                for i in arrived if number else ():
                    self.table.replica[i] = number
                if arrived and not self._mixed_step(arrived):
                    break
            elif batch.num_seqs:
                self._decode_steps(until)
            else:
                self.engine.show_results(0.0)
                if source.next >= until:
                    break
                self._skip_to(max(self.now, source.next))  # idle: asynchronous scheduling is not behind
        self._write_back(self.now)
        self._hand_back()

    def _skip_to(self, now: float) -> None:
        """Nothing to do before ``now``; what has finished is freed."""
        self.engine.busy_s += self.now - self.idle_until
        self.now = self.visible_until = self.idle_until = now
        self.clock_lag += 1  # as if a step had passed …
        self._free_finished()
        self.clock_lag -= 1  # … since the last one

    def _decode_steps(self, until: float) -> None:
        """Steps in which every sequence decodes, until a request has arrived.

        `ContextTable.search` is written out: all contexts grow by one a step, so the fraction of their mean stays.
        """
        batch, source, now, visible_until = self.batch, self.engine.source, self.now, self.visible_until
        finish_heap, id_bits, clock, num_seqs = batch.finish_heap, batch.id_bits, batch.clock, batch.num_seqs
        lines, visits, shift, offset_sum = self.decode_table.lines, self.visits, self.shift, batch.offset_sum
        middle = shift + 1
        if self.results_late:
            self.engine.show_results(0.0)
        next_arrival, next_sample, is_async = source.next, self.engine.recorder.next_sample, self.async_scheduling
        throttle = self.engine.throttle if self.engine.throttle.cooling else None
        while next_arrival > visible_until and num_seqs and now < until:
            gap, total = (next_arrival if next_arrival < until else until) - now, offset_sum + num_seqs * clock
            if throttle is not None:
                gap = throttle.cold_seconds(now, gap)
            low, steps = total // num_seqs, (finish_heap[0] >> id_bits) - clock
            fraction, last, line = total / num_seqs - low, low + steps, lines[num_seqs]
            if line is None or (shift and len(line[0]) < last + 2):
                line = self.decode_table.line(num_seqs, last + 1)
            c, v = line  # seconds up to a context, and of a step there: those up to `total` are `here`
            here = c[low] + v[low] * fraction
            seconds = c[last] + v[last] * fraction - here
            if seconds >= gap:
                some = 1
                if gap > 0.0:
                    place = bisect_right(c, here + gap, low, last + 2) - 1
                    some = place - low + (here + gap - c[place] > v[place] * fraction) or 1
                    some += is_async
                if some < steps:
                    steps, last = some, low + some
                    seconds = c[last] + v[last] * fraction - here
            cold, before_last = seconds, c[last - 1] + v[last - 1] * fraction - here
            if throttle is not None:
                seconds, before_last = throttle.decoding(now, seconds), throttle.decoding(now, before_last)
            if throttle is not None and seconds > (1 + WARM) * cold:
                self.engine.gaps.add_durations(throttle.decoding_each(now, np.array(v[low:last])), num_seqs)
            elif steps <= SHORT_RUN:
                visits[num_seqs << ROW_BITS | low + last >> middle] += steps  # by the mean context of the run
            else:
                self._count_steps(num_seqs, low, steps)
            visible_until = now + before_last if is_async else now + seconds
            now += seconds
            clock += steps
            batch.clock = clock
            if finish_heap[0] >> id_bits <= clock:
                self._finish_decodes(now)
                if self.results_late and source.next > visible_until:  # the next step decodes: nothing is late
                    self.engine.show_results(0.0)
                num_seqs, offset_sum, next_arrival = batch.num_seqs, batch.offset_sum, source.next
            if now >= next_sample:
                next_sample = self._sample(now)
        self.now, self.visible_until = now, visible_until

    def _count_steps(self, num_seqs: int, low: int, steps: int) -> None:
        """The decode steps of a long run, by their mean contexts."""
        visits, shift, row = self.visits, self.shift, num_seqs << ROW_BITS
        width = max(SHORT_RUN, 1 << shift)
        whole = low + steps - steps % width
        for at in range(low + width // 2, whole, width):
            visits[row | at >> shift] += width
        rest = low + steps - whole
        visits[row | whole + rest // 2 >> shift] += rest

    def _mixed_step(self, arrived: list[int]) -> bool:
        """A step that computes the prompts of requests that arrived, all of them whole; False if one must wait."""
        engine, batch, table, start, size = self.engine, self.batch, self.table, self.now, self.block_size
        prefill_target, remaining_tokens, num_seqs = table.prefill_target, table.remaining_tokens, batch.num_seqs
        blocks = prompt_tokens = 0
        for i in arrived:
            prompt, remaining = prefill_target[i], remaining_tokens[i]
            prompt_tokens += prompt
            # blocks at its end, where the last token is never computed: ceil_div, written out
            blocks += (prompt + size - 1 + (remaining - 1 if remaining > 1 else 0)) // size
        if (
            blocks > self.free_blocks
            or prompt_tokens + num_seqs > self.sure_tokens
            or num_seqs + len(self.finished) + len(arrived) > engine.limits.max_num_seqs
        ) and not self._admissible(arrived, prompt_tokens, blocks):
            return False
        self.free_blocks -= blocks
        self.prompt_tokens += prompt_tokens
        ahead = start - self.visible_until if self.results_late else 0.0
        if num_seqs and prompt_tokens in self.frequent and len(arrived) == 1:
            seconds = self.frequent[prompt_tokens][0].one(num_seqs, batch.offset_sum + num_seqs * batch.clock)
        else:
            chunks: list[Chunk] = [(i, prefill_target[i], 0) for i in arrived]
            seconds = self._mixed_seconds(chunks, len(chunks), prompt_tokens, ahead)
        self._end_mixed_step(arrived, prompt_tokens, len(arrived), seconds, ahead)
        return True

    def _end_mixed_step(
        self, completed: list[int], prompt_tokens: int, num_prompts: int, seconds: float, ahead: float
    ) -> None:
        """A step with prompts in it is over, of which some were completed: their requests decode from now on."""
        engine, batch, table, start, late = self.engine, self.batch, self.table, self.now, 0.0
        num_seqs, size = batch.num_seqs, self.block_size
        prefill_target, remaining_tokens = table.prefill_target, table.remaining_tokens
        if self.results_late:
            engine.now, engine.visible_until = start, self.visible_until
            launched = engine.cost.host_seconds(prompt_tokens, num_seqs, num_seqs + num_prompts) - ahead
            late = min(max(0.0, launched), seconds)
            engine.show_results(late)
        self.gap_log += (seconds - late, num_seqs)
        self.now = now = start + seconds
        self.visible_until = start + late if self.async_scheduling else now
        finish_heap, id_bits = batch.finish_heap, batch.id_bits
        if num_seqs:
            batch.clock += 1
            if finish_heap[0] >> id_bits <= batch.clock:
                self._finish_decodes(now)
        else:
            self.clock_lag += 1
        clock, offsets, scheduled_s, first_token_s = batch.clock, batch.offset, table.scheduled_s, table.first_token_s
        phases = batch.block_phase_counts
        for i in completed:
            scheduled_s[i], first_token_s[i] = start, now
            remaining = remaining_tokens[i] - 1
            offset = offsets[i] = prefill_target[i] - clock
            batch.offset_sum += offset
            phases[-offset % size] += 1
            heappush(finish_heap, (clock + (remaining if remaining > 0 else 0)) << id_bits | i)
        if self.results_late:
            engine.unseen_first_tokens += completed
        batch.num_seqs += len(completed)
        if finish_heap and finish_heap[0] >> id_bits <= clock:  # with their first token some have all of them
            self._finish_decodes(now)
        if now >= engine.recorder.next_sample:
            self._sample(now)

    def _admissible(self, arrived: list[int], prompt_tokens: int, blocks: int) -> bool:
        """Whether the prompts of requests that arrived may all begin whole now; if not, all of them wait."""
        self._free_finished()
        limits, num_seqs = self.engine.limits, self.batch.num_seqs
        num_ahead = num_seqs + len(self.finished) + len(arrived) - 1  # of the last of them
        token_budget = limits.max_num_batched_tokens - num_seqs
        if blocks <= self.free_blocks and prompt_tokens <= admissible_prompt_tokens(limits, token_budget, num_ahead):
            return True
        for i in arrived:
            self.engine.waiting.push(i)
        return False

    def _mixed_seconds(self, chunks: list[Chunk], num_completed: int, prompt_tokens: int, ahead: float) -> float:
        """Seconds of a step in which prompts are computed while the batch decodes; it heats the chip up."""
        cost, throttle, num_seqs = self.engine.cost, self.engine.throttle, self.batch.num_seqs
        decodes = self.batch if num_seqs else None
        fraction = throttle.fraction_at(self.now)
        seconds = cost.mixed_seconds(decodes, chunks, num_completed, fraction, ahead)
        throttle.add_load(self.now, seconds, prompt_tokens / (prompt_tokens + num_seqs), fraction)
        return seconds

    def _finish_decodes(self, now: float) -> None:
        """Sequences that have all their tokens leave the batch."""
        batch, finished_s, on_finished, size = (
            self.batch,
            self.table.finished_s,
            self.engine.on_finished,
            self.block_size,
        )
        finish_heap, id_bits, clock, offsets = batch.finish_heap, batch.id_bits, batch.clock, batch.offset
        mask, step, phases = (1 << id_bits) - 1, clock + self.clock_lag, batch.block_phase_counts
        while finish_heap and finish_heap[0] >> id_bits <= clock:
            i = heappop(finish_heap) & mask
            offset = offsets.pop(i)
            batch.offset_sum -= offset
            batch.num_seqs -= 1
            phases[-offset % size] -= 1
            finished_s[i] = now
            context = offset + clock
            self.context_finished += context
            self.finished.append((step, i, (context + size - 1) // size, context))  # ceil_div, written out
            if on_finished is not None:
                on_finished(i, now)
            if self.results_late:
                self.engine.unseen_finishes.append(i)
        if not self.async_scheduling:
            self._free_finished()

    def _free_finished(self) -> None:
        """Places and blocks are free: a step after the end with asynchronous scheduling, at once without."""
        if not self.finished:
            return
        before = self.batch.clock + self.clock_lag + (not self.async_scheduling)
        self.free_blocks += sum([blocks for step, _, blocks, _ in self.finished if step < before])
        self.finished = [entry for entry in self.finished if entry[0] >= before]

    def _sample(self, now: float) -> float:
        """Record how things stand; gives when that is due again."""
        self._write_back(now)
        engine, kv_cache = self.engine, self.engine.kv_cache
        engine.gaps.compact()
        engine.recorder.sample(
            now=now,
            running=self.batch.num_seqs + len(self.finished),
            waiting=0,
            kv_used=1 - kv_cache.free_blocks / kv_cache.num_blocks,
            computed_tokens=engine.computed_tokens,
            busy_s=engine.busy_s,
            steps=engine.steps,
        )
        return engine.recorder.next_sample

    def _write_back(self, now: float) -> None:
        """Bring the engine's totals and free blocks up to date."""
        engine, batch = self.engine, self.batch
        self._free_finished()
        engine.busy_s += now - self.idle_until
        self.idle_until = now
        steps, context = batch.clock + self.clock_lag, batch.total_context() + self.context_finished
        engine.steps += steps - self.steps_before
        engine.computed_tokens += context - self.context_before
        self.steps_before, self.context_before = steps, context
        self._count_blocks()

    def _count_blocks(self) -> None:
        """Bring the cache's free blocks up to date."""
        unfreed_blocks = sum([blocks for _, _, blocks, _ in self.finished]) if self.finished else 0
        self.engine.kv_cache.free_blocks = self.usable_blocks - self.batch.blocks_held() - unfreed_blocks

    def _hand_back(self) -> None:
        """Leave the engine as its own steps would: its clocks, its batch, requests that run and that finish."""
        batch, engine = self.batch, self.engine
        engine.now, engine.visible_until = self.now, self.visible_until
        engine.kv_cache.queried_tokens += self.prompt_tokens
        batch.steps = batch.clock
        finishing = [i for _, i, _, _ in self.finished]
        earlier = [i for i in engine.running if i in batch.offset]  # in order of admission, as those that came since
        engine.running.clear()
        engine.running.update(dict.fromkeys([*earlier, *batch.offset, *finishing]))
        engine.finishing = [Finishing(i, blocks, context, engine.steps, 0.0) for _, i, blocks, context in self.finished]
