"""Seconds of steps that data-parallel ranks take together, because they meet at the experts of a mixture.

cost = lockstep_cost(step_cost(bound_plan, longest=4096))
cost.mixed_seconds([RankStep(None, [(7, 512, 0)], 1), RankStep(batch, [], 0)])      # a prompt on the first of two ranks
cost.decode_steps([batch, None], 100, gap=0.5, extra=0)                             # the second one is idle

In every layer all ranks wait for the slowest one's attention, and then for the experts, which compute the tokens of all
of them. So a step takes the longest of what ranks do for themselves, and the shared work of the sum of their tokens. A
dispatch takes as long as the rank with most tokens needs; where experts are sliced, every rank gets all tokens. Steps
that run as CUDA graphs are padded on all ranks to what the largest of them needs, as engines do; without graphs each
has its own tokens. With one load on all ranks this is `CompiledCost`'s answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.cache import cache_by_identity
from ..costs import binding, host, roofline
from ..costs.step import Group, Step
from ..network.graph import Block
from ..network.operators import Op
from .batch import DecodeContexts, JoinedBatch, are_joining
from .step_cost import Chunk, CompiledCost, FullAttentionCost
from .step_tables import ContextTable, CountTable, StepParts, decode_only_parts, steps_within

FEW_STEPS = 24  # up to here plain numbers are faster than arrays


class RankStep(NamedTuple):
    """What one rank computes in a step; nothing at all if it is idle."""

    batch: DecodeContexts | None  # the sequences that decode
    chunks: list[Chunk]
    num_completed: int  # prompts that the chunks complete
    thermal_state: float = 0.0  # `Throttle.fraction_at`

    @property
    def num_seqs(self) -> int:
        """Sequences that decode."""
        return self.batch.num_seqs if self.batch is not None else 0

    @property
    def num_new_tokens(self) -> int:
        """Tokens of prompts."""
        return sum([num_new for _, num_new, _ in self.chunks])


class LockstepCost:
    """Steps of ``num_ranks`` ranks of one server, from the tables of one rank."""

    def __init__(self, cost: CompiledCost) -> None:
        self.cost, self.engine = cost, cost.bound_plan.engine
        env, tokens = cost.bound_plan.env, cost.parts.tokens
        self.num_ranks, self.gathered, self.overlap = int(env["dp"]), bool(env["gathered"]), env["overlap"]
        self.side_stream_tokens = env["side_stream_tokens"]
        self.by_own_tokens = self._table(_only(tokens, lambda op: not op.axis and op.kind != "moe"), per_rank=True)
        self.collectives = self._table(_only(tokens, lambda op: op.axis not in ("", "ep")), per_rank=True)
        self.exchange = self._table(_only(tokens, lambda op: op.axis == "ep"), per_rank=not self.gathered)
        self.experts = self._table(_only(tokens, lambda op: op.kind == "moe"), per_rank=False)
        beside = {op.side_stream_of for block in tokens for op in block.ops if op.side_stream_of}
        self.streams = _only(tokens, lambda op: bool(op.side_stream_of) or op.name in beside) if beside else ()
        self.savings: dict[tuple[int, int], float] = {}  # of a second stream: own tokens, those of all -> seconds
        self.scans = decode_only_parts(StepParts((), (), {}, {}, cost.parts.other))[0]
        self.by_num_seqs = CountTable(self._of_num_seqs)
        plain = isinstance(cost, FullAttentionCost) and cost.closed_form is not None and cost.draft_table is None
        self.look_back = cost.look_back if plain and isinstance(cost, FullAttentionCost) else None
        self._captured: dict[tuple[int, bool], int] = {}  # tokens, with prompts or not -> those of the graph; 0: none
        self._decode_envs: dict[int, dict[str, Any]] = {}

    def mixed_seconds(self, ranks: Sequence[RankStep]) -> float:
        """Seconds of a step in which some rank computes chunks of prompts."""
        if all(are_joining(rank.chunks) for rank in ranks):
            return self.decode_steps([JoinedBatch(rank.batch, rank.chunks) for rank in ranks], 1, 1e-12, 0)[1]
        cost, each = self.cost, self.cost.tokens_per_decode
        counts = [rank.num_new_tokens + rank.num_seqs * each for rank in ranks]
        busiest = counts.index(max(counts))
        most = ranks[busiest]
        looking_back = [self._looking_back(rank) for rank in ranks]
        kernels = self._kernels(counts, looking_back, has_prompts=True)
        drafting = 0.0
        if cost.draft_table is not None:
            batches = [rank.batch for rank in ranks if rank.batch is not None and rank.num_seqs]
            drafting = max([cost.draft_table.one(b.num_seqs, b.total_context()) for b in batches], default=0.0)
        env = {
            **cost.env,
            "tokens": counts[busiest],
            "seqs": max([rank.num_seqs + len(rank.chunks) for rank in ranks]),
            "prefill_tokens": max(most.num_new_tokens, 1),  # graphs are those of steps with prompts on every rank
            "thermal_state": most.thermal_state,
        }
        return float(cost.with_engine_time(env, kernels)) + drafting

    def decode_steps(
        self, batches: Sequence[DecodeContexts | None], max_steps: int, gap: float, extra: int
    ) -> tuple[int, float, float]:
        """Steps in which the sequences of all ranks decode; see `StepCost.decode_steps`."""
        if self.look_back is not None:
            few = self._few_steps(self.look_back, batches, max_steps, gap, extra)
            if few is not None:
                return few
        return steps_within(lambda first, steps: self._durations(batches, first, steps), max_steps, gap, extra)

    def _few_steps(
        self, look_back: ContextTable, batches: Sequence[DecodeContexts | None], max_steps: int, gap: float, extra: int
    ) -> tuple[int, float, float] | None:
        """As `decode_steps`, in plain numbers, which is faster for a few steps; None where there are more."""
        decoding = [batch for batch in batches if batch is not None and batch.num_seqs]
        num_seqs = [batch.num_seqs for batch in decoding]
        contexts = [batch.total_context() for batch in decoding]
        own = self._own_seconds(num_seqs)
        fixed = [
            seconds + self.cost.by_logits(n) + self._scan_seconds(n) for seconds, n in zip(own, num_seqs, strict=True)
        ]
        env = self._decode_env(max(num_seqs))
        shared = self._with_shared(0.0, num_seqs, has_prompts=False)  # the same in every step, if nothing is hidden
        times = [0.0]  # at the beginning of every step

        def take_step() -> None:
            ahead = len(times) - 1
            slowest = max(
                [
                    look_back.one(n, context + n * ahead) + seconds
                    for n, context, seconds in zip(num_seqs, contexts, fixed, strict=True)
                ]
            )
            kernels = self._with_shared(slowest, num_seqs, has_prompts=False) if self.overlap else slowest + shared
            times.append(times[-1] + float(self.cost.with_engine_time(env, kernels)))

        take_step()
        if min(gap / times[1], max_steps) > FEW_STEPS:
            return None
        while times[-1] < gap and len(times) <= max_steps:
            take_step()
        steps = max(1, min(max_steps, bisect_left(times, gap) + extra))
        if steps == len(times):
            take_step()
        return steps, times[steps], times[steps - 1]

    def _decode_env(self, most: int) -> dict[str, Any]:
        """All names of a step in which the busiest rank decodes so many sequences, but for its context."""
        if most not in self._decode_envs:
            each = self.cost.tokens_per_decode
            step = Step((Group(most, each, 0, each, True),))
            self._decode_envs[most] = binding.step_env(self.cost.bound_plan, step)
        return self._decode_envs[most]

    def _durations(self, batches: Sequence[DecodeContexts | None], first: int, steps: int) -> np.ndarray:
        """Seconds of some decode steps, each by itself: (steps,)."""
        cost, each = self.cost, self.cost.tokens_per_decode
        decoding = [batch for batch in batches if batch is not None and batch.num_seqs]
        counts = [batch.num_seqs * each for batch in decoding]
        looking_back = [
            cost.look_back_durations(batch, first, steps) + cost.by_logits(count) + self._scan_seconds(batch.num_seqs)
            for batch, count in zip(decoding, counts, strict=True)
        ]
        kernels = self._kernels(counts, looking_back, has_prompts=False)
        most = max([batch.num_seqs for batch in decoding])
        env = self._decode_env(most)
        seconds: Any = cost.with_engine_time(env, kernels)
        if cost.draft_table is not None:
            table = cost.draft_table
            drafts = [
                np.interp(b.total_context() / b.num_seqs + b.gains(first, steps), table.nodes, table.row(b.num_seqs))
                for b in decoding
            ]
            seconds = seconds + np.max(drafts, axis=0)
        return np.broadcast_to(seconds, (steps,))

    def _looking_back(self, rank: RankStep) -> float:
        """Seconds of what a rank computes beside the work that follows from its tokens: attention, scans, logits."""
        cost, batch, chunks = self.cost, rank.batch, rank.chunks
        seconds, decoding = 0.0, rank.num_seqs * cost.tokens_per_decode
        if not decoding and not chunks:
            return 0.0
        if chunks:
            is_fresh = len(chunks) == 1 and not chunks[0][2]
            seconds += (
                cost.by_fresh_prompt(chunks[0][1])
                if is_fresh
                else cost.prompt_attention_seconds(rank.num_new_tokens, chunks)
            )
        if batch is not None and decoding:
            seconds += cost.decode_attention_seconds(batch)
        if cost.parts.other:
            env = cost.exact_env(batch if decoding else None, chunks, rank.num_completed)
            seconds += float(cost.padded_seconds(cost.parts.other, env))
        return seconds + cost.by_logits(rank.num_completed + decoding)

    def _kernels(self, counts: list[int], looking_back: list[Any], *, has_prompts: bool) -> Any:
        """Seconds of all kernels, where each rank has ``counts`` tokens and looks back for so many seconds."""
        own = self._own_seconds(counts, has_prompts=has_prompts)
        slowest = looking_back[0] + own[0]
        for seconds, fixed in zip(looking_back[1:], own[1:], strict=True):
            slowest = np.maximum(slowest, seconds + fixed)
        return self._with_shared(slowest, counts, has_prompts=has_prompts)

    def _padded(self, counts: list[int], has_prompts: bool) -> tuple[list[int], int, int]:
        """Tokens of each rank as they are computed, of the largest, and of all."""
        most = max(counts)
        key = (most, has_prompts)
        if key not in self._captured:
            eager = host.without_graphs(self.engine, most, has_prompts)
            self._captured[key] = 0 if eager else int(host.padded_tokens(self.engine, most, float(has_prompts)))
        if not self._captured[key]:
            return counts, most, sum(counts)
        most = self._captured[key]
        return [most] * len(counts), most, most * self.num_ranks

    def _own_seconds(self, counts: list[int], *, has_prompts: bool = False) -> list[float]:
        """Seconds of each rank for its own tokens, but for what looks back."""
        padded, _, _ = self._padded(counts, has_prompts)
        return [self.by_own_tokens(count) + self.collectives(count) if count else 0.0 for count in padded]

    def _with_shared(self, slowest: Any, counts: list[int], *, has_prompts: bool) -> Any:
        """Seconds of all kernels: those of the slowest rank, and what all ranks do together."""
        _, most, total = self._padded(counts, has_prompts)
        seconds = slowest + self.experts(total) - self._side_stream_savings(most, total)
        exchanging = self.exchange(total if self.gathered else most)
        communicating = exchanging + self.collectives(most)
        hidden = self.overlap * np.minimum(communicating, seconds - self.collectives(most)) if self.overlap else 0.0
        return seconds + exchanging - hidden

    def _scan_seconds(self, num_seqs: int) -> float:
        return self.by_num_seqs(num_seqs) if self.scans else 0.0

    def _side_stream_savings(self, own: int, total: int) -> float:
        """Seconds that a second stream saves, in which shared experts run beside the routed ones."""
        if not self.streams or not own <= self.side_stream_tokens:
            return 0.0
        key = (own, total)
        if key not in self.savings:
            plan, env = self.cost.bound_plan, {**self.cost.env, "tokens": own, "moe_tokens": total}
            together = roofline.kernel_seconds(self.streams, env, plan.sources)
            apart = roofline.kernel_seconds(self.streams, {**env, "side_stream_tokens": 0}, plan.sources)
            self.savings[key] = float(apart - together)
        return self.savings[key]

    def _table(self, blocks: tuple[Block, ...], *, per_rank: bool) -> CountTable:
        """Seconds by a rank's own tokens, or by those of all ranks."""
        plan, ranks = self.cost.bound_plan, 1 if per_rank else self.num_ranks

        def estimate(counts: np.ndarray) -> Any:
            env = {**self.cost.env, "tokens": counts / ranks, "moe_tokens": counts / ranks * self.num_ranks}
            return roofline.kernel_seconds(blocks, env, plan.sources)

        return CountTable(estimate)

    def _of_num_seqs(self, counts: np.ndarray) -> Any:
        each = self.cost.tokens_per_decode
        env = binding.step_env(self.cost.bound_plan, Step((Group(counts, each, 0, each, True),)))
        return self.cost.padded_seconds(self.scans, env)


@cache_by_identity(64)
def lockstep_cost(cost: CompiledCost) -> LockstepCost:
    """The steps of all ranks; simulations of one server share its tables: ``lockstep_cost(pool.stages[0])``"""
    return LockstepCost(cost)


def _only(blocks: tuple[Block, ...], wanted: Callable[[Op], bool]) -> tuple[Block, ...]:
    """The blocks with some of their operators."""
    kept = [msgspec.structs.replace(block, ops=tuple(op for op in block.ops if wanted(op))) for block in blocks]
    return tuple(block for block in kept if block.ops)
