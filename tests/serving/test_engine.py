"""The simulator: steps summed at once are steps taken one by one, and whatever happens, nothing is lost."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferometer.base.units import ceil_div
from inferometer.costs.binding import bind
from inferometer.inference.request import build_request
from inferometer.serving.arrivals import ClosedLoop, OpenLoop, by_arrival, is_closed_loop
from inferometer.serving.engine import EngineCore
from inferometer.serving.fast_path import FastPathEngine
from inferometer.serving.kv_cache import KVCache, PrefixCache, prefix_tree
from inferometer.serving.pipeline import PipelineEngine
from inferometer.serving.request_table import RequestTable, column
from inferometer.serving.schedulers import SCHEDULERS, SchedulerLimits
from inferometer.serving.step_cost import StepCost, step_cost
from inferometer.serving.trace import Trace

EXAMPLES = int(os.environ.get("SERVING_EXAMPLES", "60"))  # a few thousand find the rarest troubles
QUICK = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def cost_of(model: str = "llama-2-7b", gpu: str = "a100-sxm-80gb", **options: Any) -> StepCost:
    request = build_request(model, gpu, **options)
    bound_plan = bind(request.model, request.device, request.engine, request.plan, roles=request.roles)
    return step_cost(bound_plan._replace(env={**bound_plan.env, "uniform_lengths": 0.0}), 1024)


class CheckedCache(PrefixCache):
    """A cache that looks after itself: what is free is what stands in the queue, and never less than nothing."""

    def allocate(self, i: int, cached: int, upto: int) -> bool:
        return self._checked(super().allocate(i, cached, upto))

    def extend(self, i: int, computed: int, upto: int) -> bool:
        return self._checked(super().extend(i, computed, upto))

    def take(self, blocks: int) -> None:
        assert blocks >= 0
        self._checked(super().take(blocks))

    def release(self, i: int, blocks: int, computed: int, *, preempted: bool = False) -> None:
        assert blocks >= 0
        self._checked(super().release(i, blocks, computed, preempted=preempted))

    def _checked(self, result: Any) -> Any:
        assert 0 <= self.free_blocks <= self.num_blocks
        if not self.no_reuse:
            assert sum(self.free_queue.values()) == self.free_blocks
            assert all(0 <= have <= length for have, length in zip(self.cached_blocks, self.length, strict=True))
            used = sum(have for have, users in zip(self.cached_blocks, self.ref_counts, strict=True) if users)
            assert used <= self.num_blocks - self.free_blocks
        return result


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Up to 40 requests that come in bursts, of all lengths, some alike at the beginning, some after one another."""
    n = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    longest = draw(st.sampled_from([20, 200, 400]))
    inputs, outputs = rng.integers(1, longest, n), rng.integers(0, longest // 2, n)
    arrival = np.round(rng.exponential(draw(st.sampled_from([0.0, 0.02, 0.3, 3.0])), n).cumsum(), 4)
    rng.shuffle(arrival)
    after = None
    if draw(st.booleans()):
        after = np.where(rng.random(n) < 0.4, rng.integers(-1, np.maximum(np.arange(n), 1), n), -1)
        after = np.minimum(after, np.arange(n) - 1)
    blocks, size = None, draw(st.sampled_from([8, 16, 48]))
    if draw(st.booleans()):
        group = rng.integers(0, 4, n)
        parting = rng.integers(0, 6, n)
        blocks = tuple(
            np.array([g * 1000 + k if k < p else 10**6 + 1000 * i + k for k in range((m + o) // size)], np.int64)
            for i, (g, p, m, o) in enumerate(zip(group, parting, inputs, outputs, strict=True))
        )
    return Trace(
        input_tokens=inputs,
        output_tokens=outputs,
        arrival_s=arrival,
        blocks=blocks,
        block_tokens=size,
        after=after,
        think_s=rng.exponential(0.1, n) if after is not None else None,
        priority=rng.integers(0, 3, n),
    )


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    """An engine: its scheduler, its limits, and how many blocks it has beyond what one request needs."""
    name = draw(st.sampled_from(sorted(SCHEDULERS)))
    width = draw(st.sampled_from([1, 1, 1, 4]))
    async_scheduling = name != "static" and draw(st.booleans())
    return {
        "scheduler": name,
        "spare": draw(st.sampled_from([0, 3, 20, 1000])),
        "size": draw(st.sampled_from([1, 8, 16])),
        "max_concurrency": draw(st.sampled_from([None, None, 1, 4])),
        "caching": draw(st.booleans()),
        "width": width,
        "stages": draw(st.sampled_from([1, 1, 1, 2])),
        "limits": SchedulerLimits(
            max_num_batched_tokens=draw(st.sampled_from([64, 256, 2048])),
            max_num_seqs=draw(st.sampled_from([1, 4, 16])),
            tokens_per_decode=width,
            long_prefill_token_threshold=draw(st.sampled_from([10**9, 10**9, 40])),
            reserve_full_prompt=name == "sarathi",
            static_batch=name == "static",
            async_scheduling=async_scheduling,
            results_after_launches=async_scheduling and name == "vllm" and draw(st.booleans()),
            ends_on_stop_token=draw(st.booleans()),
            priority=draw(st.booleans()),
            scheduler_recv_interval=draw(st.sampled_from([1, 1, 3, 30])),
            prefill_schedule_interval=draw(st.sampled_from([1, 1, 4])),
            prefill_max_requests=draw(st.sampled_from([10**9, 10**9, 2])),
            batch_wait_timeout_iters=draw(st.sampled_from([0, 0, 5])),
            batch_wait_min_tokens=draw(st.sampled_from([50, 10**6])),
        ),
    }


def serve(trace: Trace, engine: dict[str, Any], *, fast_forward: bool = True) -> tuple[RequestTable, EngineCore]:
    limits, size = engine["limits"], engine["size"]
    inputs, outputs = trace.input_tokens.tolist(), trace.output_tokens.tolist()
    table = RequestTable(inputs[:], outputs[:], trace.priority.tolist() if limits.priority else None)
    if is_closed_loop(trace, engine["max_concurrency"]):
        source: Any = ClosedLoop(trace, table.arrival_s, engine["max_concurrency"], 0.001)
    else:
        source = OpenLoop(*by_arrival(trace), table.arrival_s, 0.001)
    longest = max(i + o for i, o in zip(inputs, outputs, strict=True)) + limits.tokens_per_decode
    blocks = ceil_div(longest, size) + 1 + trace.block_tokens // size + engine["spare"]
    caching = engine["caching"] and not limits.static_batch
    known = None
    if caching and trace.blocks is not None:
        known = prefix_tree(trace.blocks, trace.block_tokens, trace.input_tokens)
    cache = CheckedCache(blocks, size, known) if caching else KVCache(blocks, size)
    options = {} if limits.tokens_per_decode == 1 else {"speculative_config": _SPECULATION}
    scheduler = SCHEDULERS[engine["scheduler"]]
    if engine["stages"] > 1:
        replica: EngineCore = PipelineEngine(
            [cost_of(**options)] * engine["stages"], limits, table, cache, source, scheduler
        )
    else:
        replica = FastPathEngine(cost_of(**options), limits, table, cache, source, scheduler, fast_forward=fast_forward)
    if isinstance(source, ClosedLoop):
        replica.on_finished = source.finished
    replica.run()
    return table, replica


_SPECULATION = '{"method": "ngram", "num_speculative_tokens": 3, "acceptance_length": 2.3}'


@pytest.mark.slow
@given(traces(), engines())
@QUICK
def test_whatever_happens_nothing_is_lost(trace: Trace, engine: dict[str, Any]) -> None:
    table, replica = serve(trace, engine)
    arrival, scheduled, first, finished = (
        column(x) for x in (table.arrival_s, table.scheduled_s, table.first_token_s, table.finished_s)
    )
    assert not replica.refused
    assert not np.isnan(finished).any(), "a request was lost"
    assert (arrival <= scheduled).all() and (scheduled < first).all(), "time ran backwards"
    assert (first <= finished).all() and (arrival >= trace.arrival_s).all()
    if not engine["limits"].priority:
        order = np.lexsort((scheduled, arrival))
        assert (np.diff(scheduled[order]) >= 0).all(), "a request was served before its turn"
    odd = engine["limits"].static_batch or engine["limits"].ends_on_stop_token or engine["width"] > 1
    if not odd and not column(table.num_preemptions).any():
        prompts = trace.input_tokens - column(table.num_cached_tokens)
        assert replica.computed_tokens == (prompts + np.maximum(trace.output_tokens - 1, 0)).sum(), (
            "tokens are not conserved"
        )
    gaps = replica.gaps.histogram()
    assert (gaps.counts >= 0).all() and not replica.gaps.away
    if engine["width"] == 1:
        assert gaps.counts.sum() == np.maximum(trace.output_tokens - 1, 0).sum(), "gaps between tokens are missing"
    between = (finished - first).sum()  # lengths of gaps are kept to 0.2%
    assert abs((gaps.seconds * gaps.counts).sum() - between) <= 1e-6 * gaps.counts.sum() + 2e-3 * between + 1e-9
    assert not replica.running and not replica.waiting and not replica.prefilling and not replica.batch.num_seqs
    assert replica.kv_cache.free_blocks + sum(one.blocks for one in replica.finishing) <= replica.kv_cache.num_blocks
    if isinstance(replica.kv_cache, PrefixCache) and not replica.finishing:
        cache = replica.kv_cache
        assert cache.free_blocks == cache.num_blocks
        assert not any(cache.ref_counts) and not cache.segments_of and not cache.shared_blocks


@pytest.mark.slow
@given(traces(), engines())
@QUICK
def test_steps_summed_at_once_are_steps_taken_one_by_one(trace: Trace, engine: dict[str, Any]) -> None:
    engine = {**engine, "stages": 1}
    one, slow = serve(trace, engine, fast_forward=False)
    all_, fast = serve(trace, engine)
    assert slow.steps == fast.steps and slow.computed_tokens == fast.computed_tokens
    for name in ("arrival_s", "scheduled_s", "first_token_s", "finished_s"):
        np.testing.assert_allclose(column(getattr(all_, name)), column(getattr(one, name)), rtol=1e-9, atol=1e-9)
    for name in ("num_cached_tokens", "num_preemptions"):
        np.testing.assert_array_equal(column(getattr(all_, name)), column(getattr(one, name)))
    assert slow.kv_cache.free_blocks == fast.kv_cache.free_blocks
    assert slow.kv_cache.hit_tokens == fast.kv_cache.hit_tokens
    stepped, summed = slow.gaps.histogram(), fast.gaps.histogram()
    assert stepped.counts.sum() == summed.counts.sum()
    ranks = np.arange(0.5, stepped.counts.sum())
    sorted_gaps = [g.seconds[np.searchsorted(np.cumsum(g.counts), ranks)] for g in (stepped, summed)]
    np.testing.assert_allclose(*sorted_gaps, rtol=0.02, atol=2e-6)  # few gaps: a rank at a jump


def test_a_wrapped_scheduler_keeps_the_fast_path() -> None:
    calls: list[int] = []

    def counted(state: Any) -> Any:
        calls.append(1)
        return SCHEDULERS["vllm"].schedule(state)

    wrapped = SCHEDULERS["vllm"]._replace(schedule=counted)
    for scheduler, contended in ((wrapped, False), (wrapped._replace(fast_path=False), True)):
        table, limits = RequestTable([64] * 5, [20] * 5), SchedulerLimits(max_num_batched_tokens=256, max_num_seqs=8)
        source = OpenLoop([*range(5)], [0.1 * i for i in range(5)], table.arrival_s)
        calls.clear()
        FastPathEngine(cost_of(), limits, table, KVCache(1000, 16), source, scheduler).run()
        assert not np.isnan(column(table.finished_s)).any() and bool(calls) is contended
