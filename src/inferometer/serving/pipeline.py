"""An engine whose model is cut into pipeline stages: as many batches are under way as there are stages.

Each batch is scheduled when its own tokens are back and the first stage is free, and passes from stage to stage,
waiting where the batch before it is slower. A prompt's next chunk may follow in the next batch while the one before is
still under way, as in vLLM; a sequence decodes in the batch that it began in.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from .arrivals import RequestSource
from .batch import DecodeBatch
from .engine import EngineCore
from .engine_time import Throttle
from .kv_cache import KVCache
from .request_table import RequestTable
from .schedulers import Scheduler, SchedulerLimits
from .step_cost import Chunk, StepCost


class StepInFlight(NamedTuple):
    """A step under way: whether it decodes, and the prompts that it completes, with how often each was preempted."""

    decodes: bool
    completed: list[tuple[int, int]]


class PipelineBatch:
    """A batch, and when it is back from the last stage."""

    def __init__(self, batch: DecodeBatch) -> None:
        self.batch = batch
        self.ready = inf
        self.in_flight: StepInFlight | None = None


class PipelineEngine(EngineCore):
    """An engine of several stages: ``PipelineEngine([first, second], limits, table, kv_cache, source, scheduler)``"""

    def __init__(
        self,
        stages: list[StepCost],
        limits: SchedulerLimits,
        table: RequestTable,
        kv_cache: KVCache,
        source: RequestSource,
        scheduler: Scheduler,
        *,
        number: int = 0,
        fast_forward: bool = True,
        sample_interval: float = 0.0,
    ) -> None:
        super().__init__(
            stages[0],
            limits._replace(async_scheduling=False, load_steps=0, scheduler_recv_interval=1),
            table,
            kv_cache,
            source,
            scheduler,
            number=number,
            fast_forward=fast_forward,
            sample_interval=sample_interval,
        )
        self.stages = stages
        count = 1 if limits.static_batch else len(stages)  # a static batch is one
        self.batches = [
            PipelineBatch(DecodeBatch(len(table), kv_cache.block_size, stages[0].accepted_per_step))
            for _ in range(count)
        ]
        self.current = self.batches[0]  # the batch whose step is being scheduled
        self.stage_free = [0.0] * len(stages)  # s: when each stage has done what was scheduled
        self.throttles = [Throttle(stage.throttle_after or inf, stage.cooling) for stage in stages]

    def _begin_step(self, until: float, once: bool) -> bool:
        """The next batch is back, and the first stage free: its tokens come out, and it is scheduled anew."""
        current = self._next_batch()
        if (current.ready >= until and not once) or current.ready == inf:
            return False
        self.current, self.batch = current, current.batch
        if current.in_flight is not None:
            self._land(current, current.in_flight)
        start = max(current.ready, self.stage_free[0])
        if start >= until and not once:
            current.ready = start
            return False
        self.now = self.visible_until = start
        return True

    def earliest_finish(self) -> float:
        """A lower bound of when the next request finishes."""
        return self._next_batch().ready

    def next_step_s(self) -> float:
        """When the next batch is back; or, if none is under way, when the first stage is free for it."""
        following = self._next_batch()
        return following.ready if following.in_flight is not None else max(following.ready, self.stage_free[0])

    def _next_batch(self) -> PipelineBatch:
        """The batch that is back first; of those at one time, one with work before one that waits for some."""
        wakeup = min(self.source.next, self.loading[0][0]) if self.loading else self.source.next
        for one in self.batches:
            if one.in_flight is None and wakeup < one.ready:  # an idle batch begins when a request arrives
                one.ready = max(self.now, wakeup)
        return min(self.batches, key=lambda one: (one.ready, one.in_flight is None))

    def _step(self, until: float) -> bool:
        """Schedule a step of the current batch and send it through the stages."""
        chunks: list[Chunk] = []
        decodes = True
        self.preempted_in_step, self.blocks_reserved = False, 0
        if self.waiting or self.prefilling or self.kv_cache.free_blocks < self.batch.blocks_for_next_step():
            decodes, chunks = self.scheduler.schedule(self)
        num_seqs = self.batch.num_seqs if decodes else 0
        if chunks or num_seqs:
            self._send(chunks, num_seqs)
        else:
            self._postpone()
        return True

    def _postpone(self) -> None:
        """Nothing to compute in this batch until a request arrives or another batch is back."""
        others = [other.ready for other in self.batches if other.in_flight is not None]
        self.current.ready = max(self.now, min([self.source.next, *others, *(entry[0] for entry in self.loading[:1])]))
        if self.current.ready == inf and self.waiting:
            if not self._give_up_loads():
                self._refuse()
            self.current.ready = self.now

    def _send(self, chunks: list[Chunk], num_seqs: int) -> None:
        """A step passes through the stages, one after the other."""
        prefill_target, num_preemptions = self.table.prefill_target, self.table.num_preemptions
        completed = [(i, num_preemptions[i]) for i, new, computed in chunks if computed + new == prefill_target[i]]
        for i, _ in completed:
            self.prefilling.pop(i, None)
        if num_seqs and not self.limits.static_batch:
            self.kv_cache.take(self.batch.block_growth(1) - self.blocks_reserved)
        time, num_new_tokens = self.now, sum(num_new for _, num_new, _ in chunks)
        for number, stage in enumerate(self.stages):
            time = max(time, self.stage_free[number])
            throttle = self.throttles[number]
            if chunks:
                seconds = self._mixed_seconds(stage, throttle, time, num_seqs, chunks, len(completed), num_new_tokens)
            else:
                seconds = throttle.decoding(time, stage.decode_seconds(self.batch))
            time = self.stage_free[number] = time + seconds
            self.busy_s += seconds / len(self.stages)
        self.steps += 1
        self.computed_tokens += num_seqs * self.limits.tokens_per_decode + num_new_tokens
        self.current.ready, self.current.in_flight = time, StepInFlight(num_seqs > 0, completed)
        self._store_computed(chunks, time)

    def _land(self, current: PipelineBatch, step: StepInFlight) -> None:
        """The tokens of a step are there."""
        current.in_flight = None
        self.now = current.ready
        if step.decodes and self.batch.num_seqs:
            for last_s, count in self.batch.last_tokens:
                self.gaps.add(self.now - last_s, count)
            self.batch.last_tokens = []
            self._advance(1)
        for i, num_preemptions in step.completed:
            if self.table.num_preemptions[i] == num_preemptions and i in self.running:
                self._on_prefill_done(i, current.ready)
        self.batch.tokens_came(current.ready)
        if self.limits.static_batch and self.running and not self.prefilling and not self.batch.num_seqs:
            self._end_static_batch()

    def _preemptible(self) -> list[int]:
        decoding = {i for one in self.batches for i in one.batch.offset}
        return [i for i in reversed(self.running) if i in decoding or i in self.prefilling]

    def batch_of(self, i: int) -> DecodeBatch:
        """The batch that a request decodes in."""
        return next((one.batch for one in self.batches if i in one.batch.offset), self.batch)

    def _next_blocks_allocated(self, batch: DecodeBatch) -> bool:
        if batch is self.batch:
            return self.blocks_reserved > 0
        return any(one.batch is batch and one.in_flight is not None and one.in_flight.decodes for one in self.batches)
