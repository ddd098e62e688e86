"""The simulator: steps summed at once are steps taken one by one, and whatever happens, nothing is lost."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferometer.costs.binding import bind
from inferometer.inference.request import build_request
from inferometer.serving.arrivals import ClosedLoop, OpenLoop, by_arrival, is_closed_loop
from inferometer.serving.engine import EngineCore, SchedulerLimits
from inferometer.serving.kv_cache import KVCache, PrefixCache, prefix_tree
from inferometer.serving.pipeline import PipelineEngine
from inferometer.serving.request_table import RequestTable, column
from inferometer.serving.schedulers import SCHEDULERS
from inferometer.serving.step_cost import StepCost
from inferometer.serving.trace import Trace

EXAMPLES = int(os.environ.get("SERVING_EXAMPLES", "60"))  # a few thousand find the rarest troubles
QUICK = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def times(model: str = "llama-2-7b", gpu: str = "a100-sxm-80gb", **words: Any) -> StepCost:
    asked = build_request(model, gpu, **words)
    bound_plan = bind(asked.model, asked.device, asked.engine, asked.plan, roles=asked.roles)
    return StepCost(bound_plan._replace(env={**bound_plan.env, "uniform_lengths": 0.0}), 1024)


class Watched(PrefixCache):
    """A cache that looks after itself: what is free is what stands in the queue, and never less than nothing."""

    def begin(self, i: int, cached: int, upto: int) -> bool:
        return self._looked(super().begin(i, cached, upto))

    def extend(self, i: int, computed: int, upto: int) -> bool:
        return self._looked(super().extend(i, computed, upto))

    def take(self, blocks: int) -> None:
        assert blocks >= 0
        self._looked(super().take(blocks))

    def release(self, i: int, blocks: int, computed: int, *, again: bool = False) -> None:
        assert blocks >= 0
        self._looked(super().release(i, blocks, computed, again=again))

    def _looked(self, result: Any) -> Any:
        assert 0 <= self.free <= self.blocks
        if not self.calm:
            assert sum(self.queue.values()) == self.free
            assert all(0 <= have <= long for have, long in zip(self.there, self.long, strict=True))
            used = sum(have for have, users in zip(self.there, self.users, strict=True) if users)
            assert used <= self.blocks - self.free
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
    return {
        "scheduler": name,
        "spare": draw(st.sampled_from([0, 3, 20, 1000])),
        "size": draw(st.sampled_from([1, 8, 16])),
        "most": draw(st.sampled_from([None, None, 1, 4])),
        "caching": draw(st.booleans()),
        "width": width,
        "stages": draw(st.sampled_from([1, 1, 1, 2])),
        "limits": SchedulerLimits(
            tokens=draw(st.sampled_from([64, 256, 2048])),
            seqs=draw(st.sampled_from([1, 4, 16])),
            width=width,
            piece=draw(st.sampled_from([10**9, 10**9, 40])),
            whole=name == "sarathi",
            padded=name == "static",
            lag=name != "static" and draw(st.booleans()),
            wasted=draw(st.booleans()),
            priority=draw(st.booleans()),
            interval=draw(st.sampled_from([1, 1, 3, 30])),
            hold=draw(st.sampled_from([0, 0, 5])),
            company=draw(st.sampled_from([50, 10**6])),
        ),
    }


def serve(trace: Trace, engine: dict[str, Any], *, fast: bool = True) -> tuple[RequestTable, EngineCore]:
    limits, size = engine["limits"], engine["size"]
    inputs, outputs = trace.input_tokens.tolist(), trace.output_tokens.tolist()
    ledger = RequestTable(inputs[:], outputs[:], trace.priority.tolist() if limits.priority else None)
    if is_closed_loop(trace, engine["most"]):
        feed: Any = ClosedLoop(trace, ledger.arrival, engine["most"], 0.001)
    else:
        feed = OpenLoop(*by_arrival(trace), ledger.arrival, 0.001)
    longest = max(i + o for i, o in zip(inputs, outputs, strict=True)) + limits.width
    blocks = -(-longest // size) + 1 + trace.block_tokens // size + engine["spare"]
    caching = engine["caching"] and not limits.padded
    known = None
    if caching and trace.blocks is not None:
        known = prefix_tree(trace.blocks, trace.block_tokens, trace.input_tokens)
    cache = Watched(blocks, size, known) if caching else KVCache(blocks, size)
    words = {} if limits.width == 1 else {"speculative_config": _GUESSES}
    plan = SCHEDULERS[engine["scheduler"]]
    if engine["stages"] > 1:
        replica: EngineCore = PipelineEngine([times(**words)] * engine["stages"], limits, ledger, cache, feed, plan)
    else:
        replica = EngineCore(times(**words), limits, ledger, cache, feed, plan, fast=fast)
    if isinstance(feed, ClosedLoop):
        replica.ends = feed.ended
    replica.run()
    return ledger, replica


_GUESSES = '{"method": "ngram", "num_speculative_tokens": 3, "acceptance_length": 2.3}'


@given(traces(), engines())
@QUICK
def test_whatever_happens_nothing_is_lost(trace: Trace, engine: dict[str, Any]) -> None:
    ledger, replica = serve(trace, engine)
    arrival, scheduled, first, finished = (
        column(x) for x in (ledger.arrival, ledger.scheduled, ledger.first, ledger.finished)
    )
    assert not replica.refused
    assert not np.isnan(finished).any(), "a request was lost"
    assert (arrival <= scheduled).all() and (scheduled < first).all(), "time ran backwards"
    assert (first <= finished).all() and (arrival >= trace.arrival_s).all()
    if not engine["limits"].priority:
        order = np.lexsort((scheduled, arrival))
        assert (np.diff(scheduled[order]) >= 0).all(), "somebody was served before his turn"
    odd = engine["limits"].padded or engine["limits"].wasted or engine["width"] > 1
    if not odd and not column(ledger.preempted).any():
        prompts = trace.input_tokens - column(ledger.cached)
        assert replica.computed == (prompts + np.maximum(trace.output_tokens - 1, 0)).sum(), "tokens are not conserved"
    assert not replica.running and not replica.waiting and not replica.partial and not replica.batch.rows
    assert replica.cache.free + sum(e[1] for e in replica.leaving) <= replica.cache.blocks
    if isinstance(replica.cache, PrefixCache) and not replica.leaving:
        assert replica.cache.free == replica.cache.blocks
        assert not any(replica.cache.users) and not replica.cache.holds and not replica.cache.shared


@given(traces(), engines())
@QUICK
def test_steps_summed_at_once_are_steps_taken_one_by_one(trace: Trace, engine: dict[str, Any]) -> None:
    engine = {**engine, "stages": 1}
    one, slow = serve(trace, engine, fast=False)
    all_, fast = serve(trace, engine)
    assert slow.steps == fast.steps and slow.computed == fast.computed
    for name in ("arrival", "scheduled", "first", "finished"):
        np.testing.assert_allclose(column(getattr(all_, name)), column(getattr(one, name)), rtol=1e-9, atol=1e-9)
    for name in ("cached", "preempted"):
        np.testing.assert_array_equal(column(getattr(all_, name)), column(getattr(one, name)))
    assert slow.cache.free == fast.cache.free and slow.cache.hits == fast.cache.hits
