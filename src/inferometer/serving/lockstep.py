"""Data-parallel ranks of a mixture's server: their tokens meet at the experts of every layer, so all step together.

server = LockstepServer([RankEngine(cost, limits, table, KVCache(1000, 16), inbox, scheduler) for inbox in inboxes])
server.run()            # as `EngineCore.run`, for all ranks

Each rank has its own queue, batch and KV cache, and schedules its own part of a step. The step takes as long as all
parts together need (`LockstepCost`): a prompt on one rank holds up the sequences of all others, and a rank without
requests computes an empty batch as long as another one has some.

vLLM runs dummy batches on idle ranks (`DPEngineCoreProc.run_busy_loop`, vllm/v1/engine/core.py:1956 at 0.25.1) and pads
ranks to each other where steps are CUDA graphs (`_synchronize_dp_ranks`, vllm/v1/worker/dp_utils.py:152). SGLang
gathers the tokens of all ranks before a step and gives idle ranks an idle batch (`prepare_mlp_sync_batch_raw`,
managers/scheduler_dp_attn_mixin.py:199 at 0.5.9). TensorRT-LLM adds dummy requests (`_pad_attention_dp_dummy_request`,
_torch/pyexecutor/py_executor.py), and may hold prompts back until every rank has one (`_balance_adp_requests`).
"""

from __future__ import annotations

from math import inf

from .engine import EngineCore
from .lockstep_cost import RankStep, lockstep_cost
from .step_cost import Chunk, CompiledCost


class RankEngine(EngineCore):
    """One rank: it schedules its part of a step, and its server says how long the step took."""

    chunks: list[Chunk]  # of the step that is planned
    num_decoding = 0  # sequences that decode in it
    thermal_state = 0.0

    def receive(self) -> None:
        """Free what has finished, and receive what has arrived."""
        if self.finishing or self.kv_in_transfer or self.loading:
            self._free_finished()
        if self.source.next <= self.visible_until and not self.steps_since_poll:
            self._receive()

    @property
    def has_prompt(self) -> bool:
        """Whether a request waits that there is a place for."""
        return bool(self.waiting) and len(self.running) < self.limits.max_num_seqs

    def plan_step(self, hold_prompts: bool) -> None:
        """Schedule this rank's part of the next step."""
        self.prefill_wait.held = hold_prompts
        decodes, self.chunks = self._schedule()
        self.num_decoding = self.batch.num_seqs if decodes else 0

    def planned_step(self) -> RankStep:
        """This rank's part of the step."""
        self.thermal_state = self.throttle.fraction_at(self.now)
        batch = self.batch if self.num_decoding else None
        return RankStep(batch, self.chunks, len(self._completed(self.chunks)), self.thermal_state)

    def end_step(self, seconds: float) -> None:
        """The step is over, in which some rank computed a prompt."""
        if not self.chunks:
            self.end_decode_steps(1, seconds, 0.0)
            return
        num_new_tokens = sum([num_new for _, num_new, _ in self.chunks])
        prefill_share = num_new_tokens / (num_new_tokens + self.num_decoding * self.limits.tokens_per_decode)
        self.throttle.add_load(self.now, seconds, prefill_share, self.thermal_state)
        self._end_mixed_step(seconds, self.num_decoding, self._completed(self.chunks), num_new_tokens)
        self._store_computed(self.chunks, self.now)

    def end_decode_steps(self, steps: int, seconds: float, before_last: float) -> None:
        """Steps without prompts on this rank are over; without sequences, too, they were empty batches."""
        idle = not self.batch.num_seqs
        self._end_decode_steps(steps, seconds, before_last)
        if idle:
            self.steps_since_poll = 0  # it polls after every empty batch

    def next_event(self, max_steps: int, until: float) -> tuple[int, float]:
        """Decode steps that this rank allows at most, and the seconds until it may have something else to do."""
        if self.batch.num_seqs:
            limit = self._max_decode_steps() if self.fast_forward and self.batch.finish_heap else 1
            max_steps = min(max_steps, limit)
        interval = self.limits.scheduler_recv_interval
        if interval > 1 and self.source.next <= self.now:  # it is not seen before the next poll
            return min(max_steps, interval - self.steps_since_poll), until - self.now
        return self._next_event(max_steps, until)

    def steps_to_finish(self) -> int:
        """Steps until a sequence finishes or blocks run out; 0: the next step may be another one."""
        if not self.fast_forward or not self.batch.finish_heap:
            return 0
        return self.batch.max_steps_within(self.kv_cache.free_blocks, self.batch.steps_to_first_finish())

    def catch_up(self) -> bool:
        """With nothing to compute on any rank, learn what can be known by now; whether that changed anything."""
        return self._catch_up()

    def wakeup(self) -> float:
        """When a rank with nothing to compute may have something again."""
        return self._wakeup()

    def skip_to(self, now: float) -> None:
        """Nothing happens before ``now``."""
        self.now = self.visible_until = now


class PromptBalance:
    """TensorRT-LLM's ``attention_dp_config``: prompts begin when every rank has one, so that they hold up all but once.

    They begin at once where a rank has no sequences to decode, and at the latest at every ``timeout_iters``-th step.
    Once all ranks have one, ``batching_wait_iters`` steps more may be waited for others.
    """

    def __init__(self, ranks: list[RankEngine]) -> None:
        limits = ranks[0].limits
        self.ranks, self.timeout_iters = ranks, limits.attention_dp_timeout_iters
        self.batching_wait_iters = limits.attention_dp_batching_wait_iters
        self.waited_iters = self.batching_iters = 0
        self.holding = False

    def should_hold(self) -> bool:
        """Whether prompts are held back in the next step, which is counted."""
        if not self.timeout_iters:
            return False
        all_decode = all(rank.batch.num_seqs or not rank.waiting for rank in self.ranks)
        if all(rank.has_prompt for rank in self.ranks):
            self.waited_iters = 0
            self.holding = all_decode and self.batching_iters < self.batching_wait_iters
            self.batching_iters = self.batching_iters + 1 if self.holding else 0
        else:
            self.waited_iters += 1
            self.holding = all_decode and self.waited_iters < self.timeout_iters
            if not self.holding:
                self.waited_iters = 0
        return self.holding

    def max_steps(self) -> int:
        """Decode steps until prompts that are held back may begin, whatever arrives."""
        if not self.holding or not any(rank.has_prompt for rank in self.ranks):
            return 10**9
        if self.batching_iters:
            return self.batching_wait_iters + 1 - self.batching_iters
        return self.timeout_iters - self.waited_iters

    def add_steps(self, steps: int) -> None:
        """So many steps were taken without asking."""
        if not self.timeout_iters or not steps:
            return
        if self.batching_iters:
            self.batching_iters += steps
        else:
            self.waited_iters = (self.waited_iters + steps) % self.timeout_iters


class LockstepServer:
    """A server whose ranks step together: ``LockstepServer(ranks).run()``"""

    def __init__(self, ranks: list[RankEngine]) -> None:
        assert isinstance(ranks[0].cost, CompiledCost)
        self.ranks, self.cost = ranks, lockstep_cost(ranks[0].cost)
        self.extra_steps = int(ranks[0].limits.async_scheduling)
        self.next_wakeup = 0.0  # s: nothing can be done before, though requests wait
        self.prompt_balance = PromptBalance(ranks)

    @property
    def now(self) -> float:
        """The clock of all ranks (s)."""
        return self.ranks[0].now

    def run(self, until: float = inf, once: bool = False) -> None:
        """Take all steps that begin before ``until``; with ``once`` only those up to the next event."""
        ranks, self.next_wakeup = self.ranks, 0.0
        while self.now < until:
            for rank in ranks:
                rank.receive()
            hold_prompts = self.prompt_balance.should_hold()
            for rank in ranks:
                rank.plan_step(hold_prompts)
            if any(rank.chunks for rank in ranks):
                seconds = self.cost.mixed_seconds([rank.planned_step() for rank in ranks])
                for rank in ranks:
                    rank.end_step(seconds)
            elif any(rank.batch.num_seqs for rank in ranks):
                self._decode_steps(until)
            elif not self._idle(until):
                return
            for rank in ranks:
                if rank.now >= rank.recorder.next_sample:
                    rank.sample()
            if once:
                return

    def _decode_steps(self, until: float) -> None:
        """Steps in which every sequence decodes, up to the next event on any rank."""
        max_steps, gap = self.prompt_balance.max_steps(), until - self.now
        for rank in self.ranks:
            max_steps, rank_gap = rank.next_event(max_steps, until)
            gap = min(gap, rank_gap)
        batches = [rank.batch for rank in self.ranks]
        steps, seconds, before_last = self.cost.decode_steps(batches, max_steps, gap, self.extra_steps)
        for rank in self.ranks:
            rank.end_decode_steps(steps, seconds, before_last)
        self.prompt_balance.add_steps(steps - 1)

    def _idle(self, until: float) -> bool:
        """Nothing to compute on any rank: skip to the next event; False if ``until`` is before it."""
        caught_up = [rank.catch_up() for rank in self.ranks]  # every one of them
        if any(caught_up):
            return True
        wakeup = min([rank.wakeup() for rank in self.ranks])
        if wakeup >= until or wakeup == inf:
            self.next_wakeup = wakeup
            return False
        for rank in self.ranks:
            rank.skip_to(wakeup)
        return True

    def earliest_finish(self) -> float:
        """A lower bound of when the next request finishes, as far as is known without taking a step.

        Steps grow with the context, so as many as the first one's seconds are a bound.
        """
        ranks, now = self.ranks, self.now
        if any(rank.waiting or rank.prefilling or rank.finishing for rank in ranks):
            return max(now, self.next_wakeup)
        next_arrival = max(now, min([rank.wakeup() for rank in ranks]))
        decoding = [rank for rank in ranks if rank.batch.num_seqs]
        if not decoding:
            return next_arrival
        steps = min([rank.steps_to_finish() for rank in decoding])
        first = self.cost.decode_steps([rank.batch for rank in ranks], 1, inf, 0)[1] if steps else 0.0
        return min(next_arrival, now + steps * first)
