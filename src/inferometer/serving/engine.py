"""One engine at work: requests arrive, wait, are computed step by step, and leave.

    engine = EngineCore(cost, limits, table, KVCache(1000, 16), source, SCHEDULERS["vllm"])
    engine.run()                # until there is nothing left to do
    engine.run(until=12.5)      # or every step that begins before then

A request is a row of the `RequestTable`; its state is where its number stands (`EngineCore.status`):

    arrives         admitted           last chunk          last token           blocks are free
    ───────▶ WAITING ──────▶ PREFILLING ─────────▶ DECODING ─────────▶ FINISHING ─────────────▶ FINISHED
                ▲                 │                    │
                └── PREEMPTED ◀───┴────────────────────┘   its blocks are lost: prompt and output so far are prefilled

    WAITING      in ``waiting``; PREEMPTED if it was running before
    LOADING      in ``loading``: it waits for blocks that a tier below the GPU has (vLLM's WAITING_FOR_REMOTE_KVS)
    PREFILLING   in ``running`` and, until its last chunk, in ``prefilling`` (request -> num_computed_tokens)
    DECODING     in ``running`` and in ``batch``
    FINISHING    has all its tokens, but still holds its place (``finishing``) or its blocks (``kv_in_transfer``)
    FINISHED     nowhere; ``table.finished_s`` is set
    REJECTED     in ``refused``: it does not fit into an idle engine

Between two events (a request arrives or finishes, a prompt is under way, blocks run out) every sequence decodes, and
the steps up to the next event are summed at once (`StepCost.decode_steps`). With ``fast_forward=False`` they are taken
one by one; the outcome is the same. With asynchronous scheduling a step is scheduled while the one before it runs: a
request that arrives meanwhile waits for the step after, and one that finishes keeps its place and its blocks for one
step more. The host launches a step as soon as the results of the last but one are there (``visible_until``), so it is
ahead of the device by ``now - visible_until``. Where launching takes longer than that, the results of the step before
come late, because the same thread looks at them afterwards (``results_after_launches``). An engine may poll for new
requests only every so many decode steps (``scheduler_recv_interval``); after a step with a prompt in it, and when idle,
it polls at once.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf, nan

from ..base.units import ceil_div
from .arrivals import RequestSource
from .batch import DecodeBatch
from .engine_time import Throttle
from .inter_token import InterTokenLatencies
from .kv_cache import KVCache
from .kv_tiers import TieredCache
from .outcome import Recorder
from .request_flow import RequestFlow
from .request_table import Finishing, Rejection, RejectionKind, RequestStatus, RequestTable
from .schedulers import PrefillWait, RequestQueue, Scheduler, SchedulerLimits, request_queue
from .step_cost import Chunk, StepCost


class EngineCore(RequestFlow):
    """An engine with its queue, its batch and its KV cache; it is the `SchedulerState` that schedulers see."""

    def __init__(
        self,
        cost: StepCost,
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
        self.cost, self.limits, self.table, self.kv_cache, self.source = cost, limits, table, kv_cache, source
        self.scheduler, self.number, self.fast_forward = scheduler, number, fast_forward
        self.recorder, self.gaps = Recorder(sample_interval), InterTokenLatencies()
        self.waiting: RequestQueue = request_queue(limits, table)
        self.running: dict[int, None] = {}  # in order of admission
        self.prefilling: dict[int, int] = {}  # prompts under way -> num_computed_tokens
        self.batch = DecodeBatch(len(table), kv_cache.block_size, cost.accepted_per_step)
        self.throttle = Throttle(cost.throttle_after or inf, cost.cooling)
        self.now = self.visible_until = 0.0  # s: the clock; arrivals up to `visible_until` are known
        self.next_wakeup = 0.0  # s: nothing can be done before, though requests wait
        self.prefill_wait = PrefillWait(limits)
        self.steps_since_poll = 0  # decode steps, modulo the interval: 0 is a poll
        self.blocks_reserved = 0  # blocks that the step being scheduled has taken for decodes
        self.static_blocks = 0  # blocks of a static batch
        self.preempted_in_step = False
        self.unseen_first_tokens: list[int] = []  # requests whose first token came in the last step
        self.unseen_finishes: list[int] = []  # requests that finished in it
        self.results_late_s = 0.0  # s after the end of the last step but one at which its results were looked at
        self.finishing: list[Finishing] = []
        self.kv_in_transfer: list[tuple[float, int, int, int]] = []  # heap: until when, request, blocks, tokens
        self.tiered = kv_cache if isinstance(kv_cache, TieredCache) else None
        self.loading: list[tuple[float, int, int]] = []  # heap: when its blocks arrive, number of the load, request
        self.num_loads = 0
        self.loaded_by: tuple[int, float] | None = None  # a step, and the time up to which it shows ends of loads
        if self.tiered is not None:
            self.tiered.clock = lambda: self.now
        self.refused: dict[int, Rejection] = {}
        self.steps = self.computed_tokens = 0
        self.busy_s = 0.0
        self.on_finished: Callable[[int, float], float] | None = None  # (request, now) -> until when its blocks stay
        self.sends_caches = False  # blocks stay after the end: they are sent to a replica that decodes

    def status(self, i: int) -> RequestStatus:
        """Where a request is: ``engine.status(7) is RequestStatus.DECODING``"""
        if i in self.refused:
            return RequestStatus.REJECTED
        if i in self.waiting:
            return RequestStatus.PREEMPTED if self.table.num_preemptions[i] else RequestStatus.WAITING
        if self.table.finished_s[i] == self.table.finished_s[i]:
            holds_blocks = i in self.running or any(entry[1] == i for entry in self.kv_in_transfer)
            return RequestStatus.FINISHING if holds_blocks else RequestStatus.FINISHED
        if any(entry[2] == i for entry in self.loading):
            return RequestStatus.LOADING
        if i in self.running:
            return RequestStatus.PREFILLING if i in self.prefilling else RequestStatus.DECODING
        return RequestStatus.UNKNOWN

    # ------------------------------------------------------------------ the step loop

    def run(self, until: float = inf, once: bool = False) -> None:
        """Take all steps that begin before ``until``; with ``once`` only those up to the next event.

        This is the one step loop. Subclasses say when the next step begins (`_begin_step`), what a step is (`_step`),
        and may take steps without contention by themselves (`_run_uncontended`).
        """
        fast_path, self.next_wakeup = not once and self._fast_path_applies(), 0.0
        while self._begin_step(until, once):
            if fast_path and not self.waiting:
                self._run_uncontended(until)
                if self.now >= until:
                    return
            if self.finishing or self.kv_in_transfer or self.loading:
                self._free_finished()
            if self.source.next <= self.visible_until and not self.steps_since_poll:
                self._receive()
            if not self._step(until):
                return
            if self.now >= self.recorder.next_sample:
                self.sample()
            if once:
                return

    def _begin_step(self, until: float, once: bool) -> bool:
        """Whether a step begins before ``until``."""
        return self.now < until

    def _fast_path_applies(self) -> bool:
        """Whether `_run_uncontended` may be called."""
        return False

    def _run_uncontended(self, until: float) -> None:
        """Take steps as long as no request has to wait; leaves everything as `_step` would."""

    def _receive(self) -> None:
        for i in self.source.take(self.visible_until):
            self.table.replica[i] = self.number
            self.waiting.push(i)

    def sample(self) -> None:
        """Record how things stand."""
        kv_cache = self.kv_cache
        self.gaps.compact()
        self.recorder.sample(
            now=self.now,
            running=len(self.running),
            waiting=len(self.waiting),
            kv_used=1 - kv_cache.free_blocks / kv_cache.num_blocks,
            computed_tokens=self.computed_tokens,
            busy_s=self.busy_s,
            steps=self.steps,
        )

    def _step(self, until: float) -> bool:
        """Schedule and compute a step, or several decode steps at once; False if there is nothing before ``until``."""
        decodes, chunks = self._schedule()
        if chunks:
            self._mixed_step(decodes, chunks)
            return True
        if self.batch.num_seqs:
            self._decode_steps(until)
            return True
        return self._idle(until)

    def _schedule(self) -> tuple[bool, list[Chunk]]:
        """What the next step computes: whether the batch decodes, and chunks of prompts."""
        self.preempted_in_step = False
        if self.prefill_wait.active:
            self.prefill_wait.begin_step(self.steps)
        if self.waiting or self.prefilling or self.kv_cache.free_blocks < self.batch.blocks_for_next_step():
            return self.scheduler.schedule(self)
        return True, []

    def _mixed_step(self, decodes: bool, chunks: list[Chunk]) -> None:
        """A step with chunks of prompts in it."""
        num_seqs, completed = self.batch.num_seqs if decodes else 0, self._completed(chunks)
        num_new_tokens = sum([num_new for _, num_new, _ in chunks])
        late, shows_late = 0.0, self.limits.results_after_launches
        ahead = self.now - self.visible_until if shows_late else 0.0
        seconds = self._mixed_seconds(
            self.cost, self.throttle, self.now, num_seqs, chunks, len(completed), num_new_tokens, ahead
        )
        if shows_late:
            decoding = num_seqs * self.limits.tokens_per_decode
            launched = self.cost.host_seconds(num_new_tokens, decoding, num_seqs + len(chunks)) - ahead
            late = min(max(0.0, launched), seconds)
            self.show_results(late)
        self._end_mixed_step(seconds, num_seqs, completed, num_new_tokens, late)
        self._store_computed(chunks, self.now)

    def _completed(self, chunks: list[Chunk]) -> list[int]:
        """The requests whose prompts are done with these chunks."""
        prefill_target = self.table.prefill_target
        return [i for i, num_new, num_computed in chunks if num_computed + num_new == prefill_target[i]]

    def show_results(self, late: float) -> None:
        """The results of the last step are looked at, so many seconds after its end: the next was launched first.

        Where something depends on when a request finishes (the next one of a closed loop, its KV cache), it learnt so
        at once: there only the first tokens come late, of requests that have more than one.
        """
        table, self.results_late_s = self.table, late
        if late:
            on_time = set(self.unseen_finishes) if self.on_finished else set()
            first_tokens = [i for i in self.unseen_first_tokens if i not in on_time]
            finishes = [i for i in self.unseen_finishes if i not in on_time]
            for i in first_tokens:
                table.first_token_s[i] += late
            for i in finishes:
                table.finished_s[i] += late
            had_gaps = self.batch.num_seqs + len(finishes) - len(first_tokens)
            self.gaps.lengthen(self.now - self.visible_until, late, had_gaps)
        self.unseen_first_tokens.clear()
        self.unseen_finishes.clear()

    def forget_unseen_results(self) -> None:
        """A run is broken off: when the last step's results would have been looked at is not known."""
        for i in self.unseen_first_tokens:
            self.table.first_token_s[i] = nan
        for i in self.unseen_finishes:
            self.table.finished_s[i] = nan

    def _end_mixed_step(
        self, seconds: float, num_seqs: int, completed: list[int], num_new_tokens: int, late: float = 0.0
    ) -> None:
        """A step with chunks of prompts in it is over, in which ``num_seqs`` sequences decoded.

        ``late``: seconds after its beginning at which it was launched and the next one could be planned.
        """
        start, limits = self.now, self.limits
        self.now = now = start + seconds
        self.visible_until = start + late if limits.async_scheduling else now
        self.busy_s += seconds
        self.steps += 1
        self.computed_tokens += num_seqs * limits.tokens_per_decode + num_new_tokens
        self.blocks_reserved = self.steps_since_poll = 0
        if num_seqs:
            self.gaps.count(self.batch, self.cost, start, 1, seconds - late, 0.0)
            self._advance(1)
        elif self.batch.finish_heap and not self.batch.last_tokens:
            self.batch.tokens_came(start)
        for i in completed:
            if self.prefilling:
                self.prefilling.pop(i, None)
            self._on_prefill_done(i, now)
        if self.batch.last_tokens:
            self.batch.tokens_came(now)
        if limits.static_batch and not self.prefilling and not self.batch.num_seqs:
            self._end_static_batch()

    def _mixed_seconds(
        self,
        cost: StepCost,
        throttle: Throttle,
        start: float,
        num_seqs: int,
        chunks: list[Chunk],
        num_completed: int,
        num_new_tokens: int,
        ahead: float = 0.0,
    ) -> float:
        """Seconds of a step with chunks of prompts in it, which heats the chip up."""
        batch = self.batch if num_seqs else None
        fraction = throttle.fraction_at(start)
        seconds = cost.mixed_seconds(batch, chunks, num_completed, fraction, ahead)
        prefill_share = num_new_tokens / (num_new_tokens + num_seqs * self.limits.tokens_per_decode)
        throttle.add_load(start, seconds, prefill_share, fraction)
        return seconds

    def _on_prefill_done(self, i: int, now: float) -> None:
        """All of a prompt is computed: its next token comes out."""
        table = self.table
        if table.first_token_s[i] != table.first_token_s[i]:  # nan: it is the first one
            table.first_token_s[i] = now
            if self.limits.results_after_launches:
                self.unseen_first_tokens.append(i)
        else:
            self.gaps.resumed(i, table.first_token_s[i], now)
        context, remaining = table.prefill_target[i], table.remaining_tokens[i]
        if remaining > 1:
            self.batch.join(i, context, remaining - 1)
        else:
            self._finish(i, ceil_div(context, self.kv_cache.block_size), context)

    def _decode_steps(self, until: float) -> None:
        """Steps in which every sequence decodes, up to the next event."""
        batch = self.batch
        self.show_results(0.0)
        max_steps = self._max_decode_steps() if self.fast_forward and batch.finish_heap else 1
        run = self._steps_until_event(max_steps, until) if max_steps > 1 else (1, self.cost.decode_seconds(batch), 0.0)
        self._end_decode_steps(run[0], *(self.throttle.decoding(self.now, seconds) for seconds in run[1:]))

    def _end_decode_steps(self, steps: int, seconds: float, before_last: float) -> None:
        """So many decode steps are over; ``before_last``: their seconds without the last one."""
        batch, limits, now = self.batch, self.limits, self.now
        if not limits.static_batch:
            self.kv_cache.take(batch.block_growth(steps) - self.blocks_reserved)
            self.blocks_reserved = 0
        self.now = now + seconds
        self.visible_until = now + before_last if limits.async_scheduling else self.now
        self.busy_s += seconds
        self.steps += steps
        self.steps_since_poll = (self.steps_since_poll + steps) % limits.scheduler_recv_interval
        if self.prefill_wait.active:
            self.prefill_wait.end_steps(steps)
        self.computed_tokens += steps * batch.num_seqs * limits.tokens_per_decode
        self.gaps.count(batch, self.cost, now, steps, seconds, before_last, self.throttle)
        self._advance(steps)

    def _max_decode_steps(self) -> int:
        """Steps that the batch can decode until a sequence finishes or blocks run out; 1 where a step may change it."""
        batch, limits, free_blocks = self.batch, self.limits, self.kv_cache.free_blocks
        if self.preempted_in_step or (self.finishing and (self.waiting or limits.ends_on_stop_token)):
            return 1
        if self.waiting and self.scheduler.promises_blocks and batch.accepted_per_step != 1:
            return 1  # what is promised is rounded to whole tokens, so each step may let a request begin
        max_steps = batch.steps_to_first_finish()
        blocks_each = int(max_steps * batch.accepted_per_step) // batch.block_size + 2  # more than a sequence can need
        if not limits.static_batch and free_blocks < batch.num_seqs * blocks_each:
            return max(1, batch.max_steps_within(free_blocks + self.blocks_reserved, max_steps))
        return max_steps

    def _steps_until_event(self, max_steps: int, until: float) -> tuple[int, float, float]:
        """Decode steps up to the next event, their seconds, and the seconds without the last one."""
        limits, now, extra = self.limits, self.now, int(self.limits.async_scheduling)
        max_steps, gap = self._next_event(max_steps, until)
        result = self.cost.decode_steps(self.batch, max_steps, self.throttle.cold_seconds(now, gap), extra)
        steps = result[0]
        to_next_poll = -(self.steps_since_poll + steps) % limits.scheduler_recv_interval
        if to_next_poll and steps < max_steps:  # a request that has arrived is not seen before the next poll
            left = self.throttle.cold_seconds(now, until - now)
            return self.cost.decode_steps(self.batch, min(max_steps, steps + to_next_poll), left, extra)
        return result

    def _next_event(self, max_steps: int, until: float) -> tuple[int, float]:
        """Decode steps that may be taken at most, and the seconds until something else may have to be done."""
        limits, now = self.limits, self.now
        gap = until - now
        if self.prefill_wait.active:
            max_steps = min(max_steps, self.prefill_wait.max_steps())
        # first come, first served: where requests wait already, one more at the end of the queue changes nothing
        polls = limits.priority or limits.scheduler_recv_interval > 1 or self.prefill_wait.for_batch
        if polls or not self.waiting:
            gap = min(gap, self.source.next - now)
        if self.kv_in_transfer and self.waiting:
            gap = min(gap, self.kv_in_transfer[0][0] - now)
        if self.loading:
            gap = min(gap, self.loading[0][0] - now)
        return max_steps, gap

    def _advance(self, steps: int) -> None:
        """Steps are over: the batch's clock moves on, and sequences finish."""
        batch = self.batch
        batch.advance(steps)
        while (i := batch.pop_finished()) >= 0:
            self._finish(i, batch.blocks_of(i), batch.offset[i] + batch.clock)
        if self.limits.static_batch and not batch.finish_heap:
            for i in list(batch.offset):
                batch.leave(i)
            self._end_static_batch()

    def _idle(self, until: float) -> bool:
        """Nothing to compute: learn what can be known by now, or skip to the next event; False if ``until`` is before.

        With no step under way asynchronous scheduling is not behind: it knows all arrivals and ends at once.
        """
        self.show_results(0.0)
        if self._catch_up():
            return True
        wakeup = self._wakeup()
        if wakeup >= until or wakeup == inf:
            self.next_wakeup = wakeup
            return False
        self.now = self.visible_until = wakeup
        return True

    def _catch_up(self) -> bool:
        """With nothing to compute, learn what can be known by now; whether that changed anything."""
        self.steps_since_poll, self.prefill_wait.wave_start = 0, self.steps
        if self.finishing or self.preempted_in_step or self.source.next <= self.now:
            self._sync_async_state()
            self.visible_until = self.now
            return True
        if self.waiting and not self.running and not self.kv_in_transfer and not self.loading:
            if not self._give_up_loads():
                self._refuse()
            return True
        return False

    def _wakeup(self) -> float:
        """When an engine with nothing to compute may have something again."""
        freed = self.kv_in_transfer[0][0] if self.kv_in_transfer and self.waiting else inf
        return min(self.source.next, freed, self.loading[0][0] if self.loading else inf)

    def _refuse(self) -> None:
        """The first waiting request does not fit into an idle engine: it never will."""
        i = self.waiting.pop_first()
        cache, tokens = self.kv_cache, self.table.prefill_target[i]
        self.refused[i] = Rejection(
            RejectionKind.KV_BLOCKS,
            f"{tokens:,} tokens do not fit in the {cache.num_blocks:,} blocks of {cache.block_size} tokens that "
            "the KV cache has",
        )
        if self.on_finished:
            self.on_finished(i, self.now)

    def earliest_finish(self) -> float:
        """A lower bound of when the next request finishes, as far as is known without taking a step."""
        if self.waiting or self.prefilling or self.finishing:
            return max(self.now, self.next_wakeup)
        next_arrival = max(self.now, min(self.source.next, self.loading[0][0] if self.loading else inf))
        batch = self.batch
        if not batch.num_seqs:
            return next_arrival
        if not self.fast_forward or not batch.finish_heap:
            return self.now
        steps = batch.max_steps_within(self.kv_cache.free_blocks, batch.steps_to_first_finish())
        decoding = self.cost.decode_steps(batch, steps, inf, 0)[1] if steps else 0.0
        return min(next_arrival, self.now + self.throttle.decoding(self.now, decoding))

    # ------------------------------------------------------------------ requests leave

    def _finish(self, i: int, blocks: int, computed_tokens: int) -> None:
        """A request has all its tokens."""
        limits, batch = self.limits, self.batch
        self.table.finished_s[i] = self.now
        blocks_until = self.on_finished(i, self.now) if self.on_finished else 0.0
        if limits.results_after_launches:
            self.unseen_finishes.append(i)
        if limits.static_batch:
            return
        if i in batch.offset and not (limits.async_scheduling and limits.ends_on_stop_token):
            batch.leave(i)
        if limits.async_scheduling:
            self.finishing.append(Finishing(i, blocks, computed_tokens, self.steps, blocks_until))
        else:
            self._free(i, blocks, computed_tokens, blocks_until)

    def _free(self, i: int, blocks: int, computed_tokens: int, blocks_until: float) -> None:
        """A request's place is free, and its blocks are, unless its KV cache is being sent."""
        del self.running[i]
        if blocks_until > self.now:
            heappush(self.kv_in_transfer, (blocks_until, i, blocks, computed_tokens))
        else:
            self.kv_cache.release(i, blocks, computed_tokens)

    def _free_finished(self) -> None:
        """Free the requests that finished before the last step, and the blocks whose transfer is over."""
        while self.finishing and self.finishing[0].last_step < self.steps:
            i, blocks, computed_tokens, _, blocks_until = self.finishing.pop(0)
            if i in self.batch.offset:  # a token was computed in vain
                blocks, computed_tokens = self.batch.blocks_of(i), computed_tokens + 1
                self.batch.leave(i)
            self._free(i, blocks, computed_tokens, blocks_until)
        while self.kv_in_transfer and self.kv_in_transfer[0][0] <= self.now:
            _, i, blocks, computed_tokens = heappop(self.kv_in_transfer)
            self.kv_cache.release(i, blocks, computed_tokens)
        if self.loading and self.loading[0][0] <= self.visible_until:
            self._see_loads()

    def _see_loads(self) -> None:
        """Loads have ended: the engine sees it some steps later, at once where it has nothing to compute."""
        if self.loaded_by is None:
            self.loaded_by = self.steps + self.limits.load_steps, self.visible_until
        step, until = self.loaded_by
        computes = self.batch.num_seqs or self.prefilling
        if self.steps >= step or not computes:
            self.loaded_by = None
            self._end_loads(until if computes else self.visible_until)

    def _sync_async_state(self) -> None:
        """Asynchronous scheduling has caught up: requests that finished in the last step may be freed now."""
        self.finishing = [request._replace(last_step=-1) for request in self.finishing]
        self.preempted_in_step = True  # what was scheduled may change

    def _end_static_batch(self) -> None:
        """All sequences of a static batch have finished."""
        self.running.clear()
        self.kv_cache.free_blocks += self.static_blocks
        self.static_blocks = 0
