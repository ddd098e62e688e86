"""Replicas that serve while a clock runs: requests come one by one, and tokens are out when the clock has reached them.

    fleet = LiveFleet(pools, options)
    request = fleet.submit(now, TokenBlocks(512, hashes), output_tokens=128)
    while not request.finished_s:
        now = fleet.advance(now)        # takes the steps that begin by now; gives when there is something to do again
        request.num_tokens              # that have come out by now

The step loop is the one of `simulate`, a step at a time: a step is scheduled when it begins, with the requests that are
there by then. So requests that arrive at the times of a trace have the times that `simulate` gives them. Nothing here
looks at a real clock: whoever calls says what time it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace
from math import inf, isnan, nan, nextafter
from typing import NamedTuple, Protocol

import msgspec

from ..base.errors import BadValue
from .deployment import Pools, ServingOptions, build_fleet, caches_prefixes
from .engine import EngineCore
from .inter_token import InterTokenLatencies
from .live_prefix import LivePrefixCache, LivePrefixTree
from .lockstep import LockstepServer
from .pipeline import PipelineEngine
from .replica_pool import ReplicaPool
from .request_table import RequestTable
from .step_clock import ContextList, compiled_stages
from .step_cost import StepCost

ROWS = 1 << 16  # requests that are in the server at once
LONGEST = 1 << 20  # tokens of a sequence, where the model has no limit
GAPS_KEPT = 1 << 16  # entries of a log that is never read
STEPS_AT_ONCE = 200  # of a server that the clock has left behind, before others have their turn
ABORTED = "aborted"
WARM_SEQS, WARM_STEP, WARM_CONTEXT = 512, 64, 512  # steps that are looked up before the first request


class TokenBlocks(Protocol):
    """What the prefix cache knows of a request: the number of its tokens, and hashes of blocks of them."""

    num_tokens: int

    def hashes(self, size: int) -> Sequence[int]:
        """Of every whole block of so many tokens of the prompt, each with all before it."""
        raise NotImplementedError

    def output_hashes(self, size: int, first: int, last: int) -> Sequence[int]:
        """Of the blocks from ``first`` up to ``last``, which hold the end of the prompt and the output."""
        raise NotImplementedError


class LiveRequest(msgspec.Struct, eq=False, kw_only=True):
    """A request in the server; seconds of the fleet's clock, nan where it never came to that."""

    row: int
    replica: int
    content: TokenBlocks
    input_tokens: int
    output_tokens: int
    arrival_s: float
    num_tokens: int = 0  # that have come out
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    scheduled_s: float = nan
    first_token_s: float = nan
    last_token_s: float = nan
    finished_s: float = nan
    reason: str = ""  # why it was refused, after all
    wake: Callable[[], None] = lambda: None  # called when there are new tokens, or none will come

    @property
    def is_over(self) -> bool:
        """Whether no more tokens come."""
        return not isnan(self.finished_s) or bool(self.reason)


class StepRecord(NamedTuple):
    """What happened since the last look: steps of a replica."""

    replica: int
    steps: int


class LiveFleet:
    """The replicas of pools, ready for requests: ``LiveFleet(pools, options).submit(now, content, 128)``"""

    def __init__(self, pools: Pools, options: ServingOptions, rows: int = ROWS) -> None:
        reason = next((pool.reason for _, pool in pools if pool.reason), "")
        if reason:
            raise BadValue(reason)
        if any(pool.bound_plan.plan.kv_offload is not None for _, pool in pools):
            raise BadValue(
                "the mock keeps KV blocks on the GPU alone: leave out the flags of KV tiers, such as "
                "`kv_offloading_size`, or use `inferometer simulate`, which has them"
            )
        pools = [(role, pool._replace(stages=live_stages(pool))) for role, pool in pools]
        options = msgspec.structs.replace(options, fast_forward=False)
        plan, engine = pools[0][1].bound_plan.plan, pools[0][1].bound_plan.engine
        is_http = plan.frontend == "http"
        self.longest = plan.max_model_len or LONGEST  # tokens of a sequence
        self.overhead_s = engine.request_overhead + (engine.http_overhead if is_http else 0.0)
        self.token_overhead_s = engine.token_overhead if is_http else 0.0
        self.frontends = [-inf] * options.api_server_count  # when each has read the prompts that it was sent
        self.last_ready = -inf
        self.table = RequestTable([0] * rows, [0] * rows, [0] * rows if options.policy == "priority" else None)
        self.tree = LivePrefixTree(plan.block_size) if caches_prefixes(pools, options) else None
        self.fleet = build_fleet([pool for _, pool in pools], self.table, options, False, self.tree, 0, 0.0)
        self.free_rows = deque(range(rows))  # those that became free last are used last
        self.requests: dict[int, LiveRequest] = {}  # by row, until the engine has done with them
        self.of_server: list[dict[int, LiveRequest]] = [{} for _ in self.fleet.servers]  # those that are not over
        self.leaving: list[LiveRequest] = []  # over, but their engine still has their blocks
        self.last_step_s = [0.0] * len(self.fleet.servers)
        self.late: list[tuple[float, int, list[LiveRequest]]] = []  # heap: requests to wake when their results are seen
        self.on_step: Callable[[StepRecord], None] = lambda record: None
        for replica in self.fleet.replicas:
            replica.recorder.next_sample = inf
            if self.tree is not None:
                cache = LivePrefixCache(replica.kv_cache.num_blocks, self.tree)
                cache.before_release = self._add_output
                replica.kv_cache = cache
        if self.tree is not None:
            self.tree.on_forgotten.append(self._forget_segments)

    def warm_up(self) -> None:
        """Look frequent steps up once: the first one of its kind takes some ms, which a client would notice."""
        context = min(WARM_CONTEXT, self.longest)
        for stage in {id(stage): stage for replica in self.fleet.replicas for stage in _stages(replica)}.values():
            limits = self.fleet.replicas[0].limits
            for num_seqs in range(1, min(limits.max_num_seqs, WARM_SEQS) + 1, WARM_STEP):
                stage.decode_seconds(ContextList([context] * num_seqs))
            num_new = min(limits.max_num_batched_tokens, self.longest)
            while num_new:
                for cached in {0, min(context, self.longest - num_new)}:
                    stage.mixed_seconds(ContextList([context]), [(0, num_new, cached)], 1)
                num_new //= 2

    # ------------------------------------------------------------------ requests come and go

    def submit(self, now: float, content: TokenBlocks, output_tokens: int, priority: int = 0) -> LiveRequest | None:
        """A request is sent at ``now``; None if there is no room for one more."""
        if not self.free_rows:
            return None
        row = self.free_rows.popleft()
        self.table.put(row, content.num_tokens, output_tokens, priority)
        self.table.arrival_s[row] = now
        if self.tree is not None:
            self.tree.put(row, content.hashes(self.tree.tokens))
        fleet = self.fleet
        fleet.send(row, self._ready(now, content.num_tokens))
        index = fleet.replica_of[row]
        request = LiveRequest(
            row=row,
            replica=index,
            content=content,
            input_tokens=content.num_tokens,
            output_tokens=output_tokens,
            arrival_s=now,
        )
        number = fleet.server_of[index]
        self.requests[row] = self.of_server[number][row] = request
        server = fleet.servers[number]
        server.next_wakeup = min(server.next_wakeup, fleet.inboxes[index].next)
        return request

    def abort(self, request: LiveRequest) -> None:
        """The client is gone: the request leaves the queue, or its place and its blocks."""
        if request.is_over:
            return
        self._collect(request)
        self.fleet.inboxes[request.replica].remove(request.row)
        self.fleet.replicas[request.replica].abort(request.row)
        request.reason = request.reason or ABORTED
        self._over(request)

    def _ready(self, now: float, num_tokens: int) -> float:
        """When an engine has a request that is sent now: its front end has read it, and requests stay in order."""
        read = now
        if self.token_overhead_s:
            read = max(now, self.frontends[0]) + self.token_overhead_s * num_tokens
            heapreplace(self.frontends, read)
        self.last_ready = max(self.last_ready, read + self.overhead_s)
        return self.last_ready

    # ------------------------------------------------------------------ time passes

    def due(self) -> float:
        """When there is something to do next."""
        return min(min(map(next_step_s, self.fleet.servers)), self.late[0][0] if self.late else inf)

    def advance(self, now: float) -> float:
        """Take the steps that begin by now and hand out the tokens that are there; gives when to come again."""
        for number in range(len(self.fleet.servers)):
            self._advance_server(number, now)
        while self.late and self.late[0][0] <= now:
            for request in heappop(self.late)[2]:
                request.wake()
        return self.due()

    def _advance_server(self, number: int, now: float) -> None:
        """Where the clock has left several steps behind, their tokens come together."""
        server, last = self.fleet.servers[number], -inf
        passes = isinstance(server, PipelineEngine)  # its tokens come out when its next step begins
        for _ in range(STEPS_AT_ONCE):
            due = next_step_s(server)
            if due > now:
                break
            catches_up = due + self.last_step_s[number] <= now  # the next step will be over, too
            news = [] if passes or catches_up else self._news(number)
            self._run(number, due)
            self.last_step_s[number], last = next_step_s(server) - due, due
            self._wake(number, due, news)
        if last > -inf and (passes or server.now <= now):
            self._wake(number, last, self._news(number))

    def _run(self, number: int, due: float) -> None:
        """Take the step that begins at ``due``; what will never be read of it is thrown away."""
        server = self.fleet.servers[number]
        ranks, first = list(_ranks(server)), self.fleet.server_of.index(number)
        before = [rank.steps for rank in ranks]
        server.run(nextafter(due, inf))
        for k, (rank, steps) in enumerate(zip(ranks, before, strict=True)):
            if rank.steps > steps:
                self.on_step(StepRecord(first + k, rank.steps - steps))
            if len(rank.gaps.log) + len(rank.gaps.counts) > GAPS_KEPT:
                gaps = InterTokenLatencies()
                gaps.away, gaps.rejoined_s = rank.gaps.away, rank.gaps.rejoined_s
                rank.gaps = gaps
        self.table.pauses.clear()
        if self.leaving:
            self._free_rows()

    def _news(self, number: int) -> list[LiveRequest]:
        """The requests of a server that have new tokens, or are over."""
        return [request for request in self.of_server[number].values() if self._collect(request)]

    def _collect(self, request: LiveRequest) -> bool:
        """Bring a request up to date with its row; whether that is news for its client."""
        table, row, engine = self.table, request.row, self.fleet.replicas[request.replica]
        if row in engine.refused:
            request.reason = engine.refused.pop(row).reason
            return True
        if isnan(table.first_token_s[row]):
            return False
        had, batch = request.num_tokens, engine.batch_of(row)
        if not isnan(table.finished_s[row]):
            request.num_tokens, request.finished_s = request.output_tokens, table.finished_s[row]
        elif row in batch.offset:
            since = batch.clock + batch.offset[row] - table.prefill_target[row]
            came = request.output_tokens - table.remaining_tokens[row] + 1 + since
            request.num_tokens = max(had, min(came, request.output_tokens))
        return request.num_tokens > had

    def _wake(self, number: int, due: float, news: list[LiveRequest]) -> None:
        """Tell the clients: at once, or as late as the engine looked at the results of the step."""
        table, late = self.table, max(rank.results_late_s for rank in _ranks(self.fleet.servers[number]))
        for request in news:
            row = request.row
            request.scheduled_s, request.first_token_s = table.scheduled_s[row], table.first_token_s[row]
            request.num_cached_tokens = table.num_cached_tokens[row]
            request.last_token_s = due + late
            if request.is_over:
                request.finished_s = table.finished_s[row]
                if request.finished_s < request.last_token_s:  # the clock had left several steps behind
                    request.last_token_s = request.finished_s
                self._over(request)
        if late and news:
            heappush(self.late, (due + late, len(self.late), news))
            return
        for request in news:
            request.wake()

    def _over(self, request: LiveRequest) -> None:
        """No more tokens come."""
        row = request.row
        request.num_preemptions = self.table.num_preemptions[row]
        del self.of_server[self.fleet.server_of[request.replica]][row]
        self.fleet.finished(row)
        self.leaving.append(request)

    def _free_rows(self) -> None:
        """The rows of requests that have left their engines can be used again."""
        still = []
        for request in self.leaving:
            if request.row in self.fleet.replicas[request.replica].running:
                still.append(request)
                continue
            del self.requests[request.row]
            if self.tree is not None:
                self.tree.drop(request.row)
            self.free_rows.append(request.row)
        self.leaving = still

    # ------------------------------------------------------------------ the prefix cache

    def _add_output(self, row: int, computed: int) -> None:
        """What a request has computed beyond its prompt may be the beginning of the next turn's."""
        assert self.tree is not None
        size, known = self.tree.tokens, len(self.tree.of(row))
        if computed // size > known:
            self.tree.extend(row, self.requests[row].content.output_hashes(size, known, computed // size))

    def _forget_segments(self, segments: set[int]) -> None:
        for sent in self.fleet.sent_segments:
            sent -= segments


def next_step_s(server: EngineCore | LockstepServer) -> float:
    """When the next step of a server begins, as far as is known."""
    return server.next_step_s() if isinstance(server, PipelineEngine) else max(server.now, server.next_wakeup)


def _ranks(server: EngineCore | LockstepServer) -> Sequence[EngineCore]:
    return server.ranks if isinstance(server, LockstepServer) else [server]


def _stages(replica: EngineCore) -> Sequence[StepCost]:
    return replica.stages if isinstance(replica, PipelineEngine) else [replica.cost]


def live_stages(pool: ReplicaPool) -> list[StepCost]:
    """Tables of steps for every sequence that a server takes, not for those of a trace."""
    return compiled_stages(pool.bound_plan, pool.bound_plan.plan.max_model_len or LONGEST)
