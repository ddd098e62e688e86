"""How hot a chip is: prompts keep its matrix units busy until the power limit bites, and everything else lets it cool.

heat = Heat(0.1)
heat.at(12.0)                        # 0.0: cold, clocks are high
heat.worked(12.0, 0.05, 1.0)         # 50 ms of prompts
heat.at(12.05)                       # 0.39
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import exp, inf
from typing import NamedTuple

from .arrivals import RequestSource
from .batch import DecodeBatch
from .fast_path import fast_path_applies, is_uncontended, run_uncontended
from .kv_cache import KVCache
from .recorder import Recorder
from .request_queue import FCFSQueue, PriorityQueue, priority_key
from .request_table import RequestTable
from .schedulers import Plan
from .step_cost import Chunk, StepCost


class Throttle:
    """The share of its loss of speed that a chip has reached, moving with one time constant both ways."""

    __slots__ = ("after", "level", "when")

    def __init__(self, after: float) -> None:
        self.after = after  # s
        self.level = self.when = 0.0

    def at(self, now: float) -> float:
        """From 0 (cold) to 1."""
        return self.level * exp((self.when - now) / self.after) if self.level else 0.0

    def worked(self, start: float, took: float, share: float) -> None:
        """A step is over, of which a ``share`` was prompts."""
        busy = took * share
        level = 1 - (1 - self.at(start)) * exp(-busy / self.after)
        self.level, self.when = level * exp((busy - took) / self.after), start + took


# ------------------------------------------------------------------ replica
# One engine at work: requests come, wait, are computed step by step, and leave.
#
# replica = Replica(times, Limits(tokens=8192, seqs=256), ledger, KVCache(1000, 16), feed, SCHEDULERS["vllm"])
# replica.run()                # until there is nothing left to do
# replica.run(until=12.5)      # or every step that begins before then
#
# Between two events (a request comes or ends, a prompt is under way, blocks run out) everyone decodes, and the steps up
# to the next event are summed at once (`StepTime.run`). With ``fast=False`` they are taken one by one; the outcome is the
# same. With asynchronous scheduling a step is planned while the one before it runs: who comes in the meantime waits for
# the step after, and whoever ends keeps his place and his blocks for one step more. An engine may look only every so many
# steps who has come (``interval``); after a step with a prompt in it, and with nothing to do, it looks at once.


Ended = tuple[int, int, int, int, float]  # a request, its blocks, tokens in them, its last step, until when they stay


class SchedulerLimits(NamedTuple):
    """What an engine allows itself in a step."""

    tokens: int  # max_num_batched_tokens
    seqs: int  # max_num_seqs
    width: int = 1  # tokens of a sequence that decodes (more where tokens are drafted)
    piece: int = 10**9  # the longest piece of one prompt (long_prefill_token_threshold)
    chunked: bool = True  # prompts may be cut
    whole: bool = False  # a prompt has all its blocks from the beginning (Sarathi)
    lag: bool = False  # asynchronous scheduling
    wasted: bool = False  # answers end with a stop token: the step after the last one computes a token in vain
    padded: bool = False  # answers that have ended stay in the batch until all have (static batches)
    priority: bool = False
    interval: int = 1  # steps without prompts from one look at who has come to the next (SGLang's recv interval)
    hold: int = 0  # steps that prompts are held back for company while others answer (TensorRT-LLM's batch wait) ...
    company: int = 0  # ... unless they and the answers are as many tokens as this


class EngineCore:
    """An engine with its queue, its batch and its cache."""

    def __init__(
        self,
        times: StepCost,
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
        self.times, self.limits, self.ledger, self.cache, self.feed = times, limits, ledger, cache, feed
        self.plan, self.number, self.fast = plan, number, fast
        self.watch = Recorder(apart)
        self.waiting: FCFSQueue | PriorityQueue = PriorityQueue(ledger) if limits.priority else FCFSQueue()
        self.running: dict[int, None] = {}  # in order of admission
        self.partial: dict[int, int] = {}  # prompts under way -> tokens computed
        self.batch = DecodeBatch(len(ledger), cache.size, times.pace)
        self.heat = Throttle(times.throttled) if times.throttled else None
        self.now = self.seen = 0.0  # the clock; arrivals up to `seen` are known
        self.asleep = 0.0  # until when nothing can be done, though somebody waits
        self.held, self.holding = 0, False  # steps that prompts were held back; whether they are in this one
        self.blind = 0  # steps without prompts since somebody looked who has come, modulo the interval: 0 is a look
        self.taken = 0  # blocks that the step being planned has taken for answers
        self.upset = False  # somebody was preempted in this step
        self.reserved = 0  # blocks of a static batch
        self.leaving: list[Ended] = []  # over, but with place and blocks
        self.lent: list[tuple[float, int, int, int]] = []  # blocks of requests that are gone: until when
        self.refused: dict[int, str] = {}
        self.patience = 0  # the step before which `glide` need not be tried again
        self.steps = self.computed = 0
        self.busy = 0.0
        self.ends: Callable[[int, float], float] | None = None  # told of every end; says until when the blocks stay

    # ------------------------------------------------------------------ the loop

    def run(self, until: float = inf, once: bool = False) -> None:
        """Take all steps that begin before ``until``; with ``once`` only those up to the next event."""
        easy, self.asleep = not once and fast_path_applies(self), 0.0
        while self.now < until:
            if easy and not self.waiting and is_uncontended(self):
                run_uncontended(self, until)
                if self.now >= until:
                    return
            if self.leaving or self.lent:
                self._let_go()
            if self.feed.next <= self.seen and not self.blind:
                self._receive()
            self.upset = self.holding = False
            if self.waiting or self.partial or self.cache.free < self.batch.needs():
                decoding, chunks = self.plan(self)
                if chunks:
                    self._mixed(decoding, chunks)
                elif self.batch.rows:
                    self._decode(until)
                elif not self._wake(until):
                    return
            elif self.batch.rows:
                self._decode(until)
            elif not self._wake(until):
                return
            if self.now >= self.watch.due:
                self.watch.look(self)
            if once:
                return

    def _receive(self) -> None:
        for i in self.feed.take(self.seen):
            self.ledger.replica[i] = self.number
            self.waiting.push(i)

    def _mixed(self, decoding: bool, chunks: list[Chunk]) -> None:
        """A step with pieces of prompts in it."""
        target, batch, start, limits = self.ledger.target, self.batch, self.now, self.limits
        rows = batch.rows if decoding else 0
        ends = [i for i, new, done in chunks if done + new == target[i]]
        new = sum([tokens for _, tokens, _ in chunks])
        took = self._computed(self.times, self.heat, start, rows, new, chunks, len(ends))
        self.now = now = start + took
        self.seen = start if limits.lag else now
        self.busy += took
        self.steps += 1
        self.computed += rows * limits.width + new
        self.taken = self.blind = 0
        if rows:
            self._pass(1)
        for i in ends:
            if self.partial:
                self.partial.pop(i, None)
            self._speak(i, now)
        if limits.padded and not self.partial and not batch.rows:
            self._clear()

    def _computed(
        self, times: StepCost, heat: Throttle | None, start: float, rows: int, new: int, chunks: list[Chunk], ends: int
    ) -> float:
        """Seconds of a step with pieces of prompts in it, which heats the chip up."""
        batch = self.batch if rows else None
        if heat is None:
            return times.mixed(batch, chunks, ends)
        took = times.mixed(batch, chunks, ends, heat.at(start))
        heat.worked(start, took, new / (new + rows * self.limits.width))
        return took

    def _speak(self, i: int, now: float) -> None:
        """A prompt is computed: out comes a token."""
        ledger = self.ledger
        if ledger.first[i] != ledger.first[i]:  # nan: it is the first one
            ledger.first[i] = now
        context, left = ledger.target[i], ledger.left[i]
        if left > 1:
            self.batch.join(i, context, left - 1)
        else:
            self._end(i, -(-context // self.cache.size), context)

    def _decode(self, until: float) -> None:
        """Steps in which everyone decodes, up to the next event."""
        batch, limits, now = self.batch, self.limits, self.now
        most = 1
        if self.fast and batch.ends and not self.upset and not (self.leaving and (self.waiting or limits.wasted)):
            most = batch.until_end()
            if not limits.padded and self.cache.free < batch.rows * (int(most * batch.pace) // batch.block + 2):
                most = max(1, batch.affordable(most, self.cache.free + self.taken))
        if most > 1:
            gap = until - now
            if self.holding:
                most = min(most, limits.hold + 1 - self.held)
            # first come, first served: who comes last changes nothing
            if limits.priority or limits.interval > 1 or self.holding or not self.waiting:
                gap = min(gap, self.feed.next - now)
            if self.lent and self.waiting:
                gap = min(gap, self.lent[0][0] - now)
            steps, took, before = self.times.run(batch, most, gap, int(limits.lag))
            late = -(self.blind + steps) % limits.interval
            if late and steps < most:  # whoever came is not seen before the next look
                steps, took, before = self.times.run(batch, min(most, steps + late), until - now, int(limits.lag))
        else:
            steps, took, before = 1, self.times.decode(batch), 0.0
        if not limits.padded:
            self.cache.take(batch.growth(steps) - self.taken)
            self.taken = 0
        self.now = now + took
        self.seen = now + before if limits.lag else self.now
        self.busy += took
        self.steps += steps
        self.blind = (self.blind + steps) % limits.interval
        self.held += (steps - 1) * self.holding
        self.computed += steps * batch.rows * limits.width
        self._pass(steps)

    def _pass(self, steps: int) -> None:
        """Steps are over: the clock moves on, and answers end."""
        batch = self.batch
        batch.advance(steps)
        i = batch.ended()
        while i >= 0:
            self._end(i, batch.blocks_of(i), batch.offset[i] + batch.clock)
            i = batch.ended()
        if self.limits.padded and not batch.ends:
            for i in list(batch.offset):
                batch.leave(i)
            self._clear()

    # ------------------------------------------------------------------ who leaves

    def _end(self, i: int, blocks: int, computed: int) -> None:
        """A request has all its tokens."""
        limits, batch = self.limits, self.batch
        self.ledger.finished[i] = self.now
        until = self.ends(i, self.now) if self.ends else 0.0
        if limits.padded:
            return
        if i in batch.offset and not (limits.lag and limits.wasted):
            batch.leave(i)
        if limits.lag:
            self.leaving.append((i, blocks, computed, self.steps, until))
        else:
            self._free(i, blocks, computed, until)

    def _free(self, i: int, blocks: int, computed: int, until: float) -> None:
        """A request's place is free, and its blocks are, unless they are lent until later."""
        del self.running[i]
        if until > self.now:
            heappush(self.lent, (until, i, blocks, computed))
        else:
            self.cache.release(i, blocks, computed)

    def _clear(self) -> None:
        """A static batch is over."""
        self.running.clear()
        self.cache.free += self.reserved
        self.reserved = 0

    def _let_go(self) -> None:
        """Places and blocks of those who ended before the last step, and blocks that were lent until now."""
        while self.leaving and self.leaving[0][3] < self.steps:
            i, blocks, computed, _, until = self.leaving.pop(0)
            if i in self.batch.offset:  # a token was computed in vain
                blocks, computed = self.batch.blocks_of(i), computed + 1
                self.batch.leave(i)
            self._free(i, blocks, computed, until)
        while self.lent and self.lent[0][0] <= self.now:
            _, i, blocks, computed = heappop(self.lent)
            self.cache.release(i, blocks, computed)

    def _know_all(self) -> None:
        """Nobody's end is unknown any more."""
        self.leaving = [(i, blocks, computed, -1, held) for i, blocks, computed, _, held in self.leaving]
        self.upset = True  # what was planned may change

    def _wake(self, until: float) -> bool:
        """Nothing to compute: find out what can be known by now, or sleep until something comes; False if nothing does.

        With nothing under way asynchronous scheduling is not behind: it knows at once who came and who ended.
        """
        self.blind = 0
        if self.leaving or self.upset or self.feed.next <= self.now:
            self._know_all()
            self.seen = self.now
            return True
        if self.waiting and not self.running and not self.lent:
            self._refuse()
            return True
        then = min(self.feed.next, self.lent[0][0] if self.lent and self.waiting else inf)
        if then >= until or then == inf:
            self.asleep = then
            return False
        self.now = self.seen = then
        return True

    def _refuse(self) -> None:
        """The first in line does not fit into an empty engine: it never will."""
        i = self.waiting.pop_first()
        cache, tokens = self.cache, self.ledger.target[i]
        self.refused[i] = (
            f"{tokens:,} tokens do not fit into the {cache.blocks:,} blocks of {cache.size} tokens that "
            "the KV cache has"
        )
        if self.ends:
            self.ends(i, self.now)

    def horizon(self) -> float:
        """Nothing ends before this, as far as can be told without taking a step."""
        if self.waiting or self.partial or self.leaving:
            return max(self.now, self.asleep)
        sent = max(self.now, self.feed.next)
        batch = self.batch
        if not batch.rows:
            return sent
        if not self.fast or not batch.ends:
            return self.now
        steps = batch.affordable(batch.until_end(), self.cache.free)
        return min(sent, self.now + self.times.run(batch, steps, inf, 0)[1]) if steps else self.now

    # ------------------------------------------------------------------ what schedulers ask for

    def cached(self, i: int) -> int:
        """Tokens of a waiting request that are in the cache."""
        given = self.ledger.given
        return self.cache.match(i, self.ledger.target[i]) if given is None else given[i]

    def admit(self, i: int, cached: int, new: int) -> None:
        """The first in line begins, with ``cached`` tokens there and ``new`` ones in this step."""
        self.waiting.pop_first()
        self.running[i] = None
        ledger = self.ledger
        if ledger.scheduled[i] != ledger.scheduled[i]:
            ledger.scheduled[i] = self.now
            if ledger.given is None:
                ledger.cached[i] = cached
                self.cache.asked += ledger.target[i]
                self.cache.hits += cached
        if cached + new < ledger.target[i]:
            self.partial[i] = cached + new

    def holds(self) -> bool:
        """Whether those who could begin are held back in this step, for more of them to begin together."""
        limits, rows = self.limits, self.batch.rows
        if not limits.hold or not rows:
            return False
        there = sum(self.ledger.target[i] for i in self.waiting) + rows * limits.width
        self.holding = self.held < limits.hold and there < limits.company
        self.held = self.held + 1 if self.holding else 0
        return self.holding

    def grow_answers(self) -> bool:
        """Blocks for everyone who decodes; whoever was admitted last gives way where there are too few. False if so."""
        batch, cache = self.batch, self.cache
        while batch.needs() > cache.free:
            if self._able():
                self.preempt()
            else:  # only tokens in vain are left: they are not computed
                self._know_all()
                self._let_go()
        self.taken = batch.needs()
        cache.take(self.taken)
        return not self.upset

    def preempt(self) -> int:
        """Whoever was admitted last, or is of least priority, waits again and loses his blocks."""
        able = self._able()
        i = max(able, key=lambda j: priority_key(self.ledger, j)) if self.limits.priority else able[0]
        ledger, batch, size = self.ledger, self._home(i), self.cache.size
        if i in self.partial:
            computed = self.partial.pop(i)
            blocks = -(-(ledger.target[i] if self.limits.whole else computed) // size)
        else:
            ledger.left[i] = batch.drop(i)
            computed = batch.offset[i] + batch.clock
            blocks = batch.blocks_of(i)
            if self._granted(batch):
                more = batch.blocks_of(i, batch.stride()) - blocks
                blocks += more
                self.taken -= more if batch is self.batch else 0
            ledger.target[i] = computed + 1
            batch.leave(i)
        if ledger.given is not None:
            ledger.given[i] = 0
        self.upset = True
        ledger.preempted[i] += 1
        del self.running[i]
        self.cache.release(i, blocks, computed, again=True)
        self.waiting.push_front(i)
        return i

    def _able(self) -> list[int]:
        """Who can be preempted, the last one admitted first."""
        gone = {ended[0] for ended in self.leaving}
        return [i for i in reversed(self.running) if i not in gone]

    def _home(self, i: int) -> DecodeBatch:
        """The batch that a request decodes in."""
        return self.batch

    def _granted(self, batch: DecodeBatch) -> bool:
        """Whether the sequences of a batch have their blocks for its next tokens already."""
        return self.taken > 0

    def reserve(self, blocks: int) -> None:
        """Blocks of a static batch."""
        self.reserved = blocks
        self.cache.free -= blocks
