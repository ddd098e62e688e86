"""An engine whose model is cut into pipeline stages: as many batches are under way as there are stages.

Each batch is planned when its own tokens are back and the first stage is free, and passes from stage to stage, waiting
where the batch before it is slower. A prompt's next piece may follow in the next batch while the one before is still
under way, as in vLLM; who decodes stays in the batch that he began in.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from .arrivals import RequestSource
from .batch import DecodeBatch
from .engine import EngineCore, SchedulerLimits, Throttle
from .kv_cache import KVCache
from .request_table import RequestTable
from .schedulers import Plan
from .step_cost import Chunk, StepCost


class StepInFlight(NamedTuple):
    """A step under way: whether answers are in it, and the prompts that it ends, with how often each was preempted."""

    decoding: bool
    ends: list[tuple[int, int]]


class PipelineBatch:
    """A batch, and when it is back from the last stage."""

    def __init__(self, batch: DecodeBatch) -> None:
        self.batch = batch
        self.ready = inf
        self.flight: StepInFlight | None = None


class PipelineEngine(EngineCore):
    """A replica of several stages: ``Pipeline([first, second], limits, ledger, cache, feed, plan)``"""

    def __init__(
        self,
        stages: list[StepCost],
        limits: SchedulerLimits,
        ledger: RequestTable,
        cache: KVCache,
        feed: RequestSource,
        plan: Callable[[EngineCore], Plan],
        *,
        number: int = 0,
        fast: bool = True,
        apart: float = 0.0,
    ) -> None:
        limits = limits._replace(lag=False, interval=1)
        super().__init__(stages[0], limits, ledger, cache, feed, plan, number=number, fast=fast, apart=apart)
        self.stages = stages
        lanes = 1 if limits.padded else len(stages)  # a static batch is one
        self.lanes = [PipelineBatch(DecodeBatch(len(ledger), cache.size, stages[0].pace)) for _ in range(lanes)]
        self.free = [0.0] * len(stages)  # when each stage has done what was planned
        self.heats = [Throttle(stage.throttled) if stage.throttled else None for stage in stages]

    def run(self, until: float = inf, once: bool = False) -> None:
        """Take all steps that begin before ``until``; with ``once`` the next one."""
        while True:
            lane = self._next()
            if (lane.ready >= until and not once) or lane.ready == inf:
                return
            self.batch = lane.batch
            if lane.flight is not None:
                self._land(lane)
            start = max(lane.ready, self.free[0])
            if start >= until and not once:
                lane.ready = start
                return
            self.now = self.seen = start
            if self.lent:
                self._let_go()
            if self.feed.next <= start:
                self._receive()
            self._step(lane)
            if self.now >= self.watch.due:
                self.watch.look(self)
            if once:
                return

    def horizon(self) -> float:
        """Nothing ends before this."""
        return self._next().ready

    def _next(self) -> PipelineBatch:
        """The batch that is back first; of those at one time, one with work before one that waits for some."""
        for lane in self.lanes:
            if lane.flight is None and self.feed.next < lane.ready:  # who is idle begins when something comes
                lane.ready = max(self.now, self.feed.next)
        return min(self.lanes, key=lambda lane: (lane.ready, lane.flight is None))

    def _step(self, lane: PipelineBatch) -> None:
        """Plan a step of this batch and send it through the stages."""
        chunks: list[Chunk] = []
        decoding = True
        self.upset, self.taken = False, 0
        if self.waiting or self.partial or self.cache.free < self.batch.needs():
            decoding, chunks = self.plan(self)
        rows = self.batch.rows if decoding else 0
        if not chunks and not rows:
            others = [other.ready for other in self.lanes if other.flight is not None]
            lane.ready = max(self.now, min([self.feed.next, *others]))
            if lane.ready == inf and self.waiting:
                self._refuse()
                lane.ready = self.now
            return
        target, preempted = self.ledger.target, self.ledger.preempted
        ends = [(i, preempted[i]) for i, new, done in chunks if done + new == target[i]]
        for i, _ in ends:
            self.partial.pop(i, None)
        if rows and not self.limits.padded:
            self.cache.take(self.batch.growth(1) - self.taken)
        time, new = self.now, sum(tokens for _, tokens, _ in chunks)
        for number, stage in enumerate(self.stages):
            time = max(time, self.free[number])
            if chunks:
                took = self._computed(stage, self.heats[number], time, rows, new, chunks, len(ends))
            else:
                took = stage.decode(self.batch)
            time = self.free[number] = time + took
            self.busy += took / len(self.stages)
        self.steps += 1
        self.computed += rows * self.limits.width + new
        lane.ready, lane.flight = time, StepInFlight(rows > 0, ends)

    def _land(self, lane: PipelineBatch) -> None:
        """The tokens of a step are there."""
        flight, lane.flight = lane.flight, None
        assert flight is not None
        self.now = lane.ready
        if flight.decoding and self.batch.rows:
            self._pass(1)
        for i, before in flight.ends:
            if self.ledger.preempted[i] == before and i in self.running:
                self._speak(i, lane.ready)
        if self.limits.padded and self.running and not self.partial and not self.batch.rows:
            self._clear()

    def _able(self) -> list[int]:
        decoding = {i for lane in self.lanes for i in lane.batch.offset}
        return [i for i in reversed(self.running) if i in decoding or i in self.partial]

    def _home(self, i: int) -> DecodeBatch:
        return next((lane.batch for lane in self.lanes if i in lane.batch.offset), self.batch)

    def _granted(self, batch: DecodeBatch) -> bool:
        if batch is self.batch:
            return self.taken > 0
        return any(lane.batch is batch and lane.flight is not None and lane.flight.decoding for lane in self.lanes)
