"""Sessions on the fast path and replica by replica: what is quick gives what single steps give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.serving import deployment, sticky_replicas
from inferometer.serving.agent_generator import generate_sessions, parse_agents
from inferometer.serving.kv_cache import PrefixCache, lone_prompts
from inferometer.serving.outcome import Interrupted, Outcome
from inferometer.serving.prefix_run import PrefixRun
from inferometer.serving.simulate import simulate
from inferometer.serving.trace import Trace

FIGURES = (
    "chat,turns=uniform:min=1,max=5,spawn_share=0.3,subagents=2,subagent_turns=2,output_len=uniform:min=1,max=60,"
    "task_tokens=uniform:min=1,max=900,growth=uniform:min=1,max=300"
)
TIMES = ("arrival_s", "scheduled_s", "first_token_s", "finished_s")
COUNTS = ("cached_tokens", "preemptions", "replica")


def sessions(seed: int, count: int, wait: float, rate: float) -> Trace:
    profile = parse_agents(f"{FIGURES},tool_wait=uniform:min=0,max={wait}")
    return generate_sessions(profile, num_sessions=count, request_rate=rate, seed=seed)


def run(trace: Trace, **options: Any) -> Outcome:
    return simulate("llama-3.2-1b", "h200", trace=trace, **options)


def same(one: Outcome, other: Outcome) -> None:
    for name in TIMES:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-9)
    for name in COUNTS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for use, again in zip(one.kv_tiers, other.kv_tiers, strict=True):
        figures, others = use.plain(), again.plain()
        assert figures.pop("name") == others.pop("name") and figures == pytest.approx(others)
    assert one.steps == other.steps and one.prefix_hit_rate == other.prefix_hit_rate
    assert one.gaps is not None and other.gaps is not None
    assert one.gaps.counts.sum() == other.gaps.counts.sum()
    between = (one.finished_s - one.first_token_s)[one.done].sum()
    assert (one.gaps.seconds * one.gaps.counts).sum() == pytest.approx(between, rel=1e-2, abs=1e-3)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 8),
    wait=st.sampled_from([0.0, 0.3, 5.0]),
    rate=st.sampled_from([0.5, 20.0]),
    blocks=st.integers(250, 900),
    budget=st.sampled_from([256, 8192]),
    async_scheduling=st.booleans(),
    at_once=st.none() | st.integers(1, 4),
    tiers=st.sampled_from([None, None, "cpu:size=0.05", "cpu:size=1 disk:size=2"]),
)
def test_sessions_summed_at_once_are_steps_taken_one_by_one(
    seed: int,
    count: int,
    wait: float,
    rate: float,
    blocks: int,
    budget: int,
    async_scheduling: bool,
    at_once: int | None,
    tiers: str | None,
) -> None:
    options = {
        "num_gpu_blocks_override": blocks,
        "max_num_batched_tokens": budget,
        "async_scheduling": async_scheduling,
        "concurrent_sessions": at_once,
        "kv_tiers": tiers,
    }
    trace = sessions(seed, count, wait, rate)
    same(run(trace, **options), run(trace, **options, fast_forward=False))


def test_sessions_are_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    admitted = 0
    admit = PrefixRun._admit

    def counted(self: PrefixRun, arrived: list[int]) -> Any:
        nonlocal admitted
        chunks, tokens = admit(self, arrived)
        admitted += len(chunks)
        return chunks, tokens

    monkeypatch.setattr(PrefixRun, "_admit", counted)
    trace = sessions(1, 20, 5.0, 0.5)
    run(trace)
    assert admitted == len(trace)


@pytest.mark.parametrize("replicas", [2, 3])
def test_replica_by_replica_is_all_of_them_together(monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    trace = sessions(4, 14, 0.5, 4.0)
    options = {"data_parallel_size": replicas, "router": "session_affinity", "frontend": "in-process"}
    apart = run(trace, **options, num_gpu_blocks_override=300)
    monkeypatch.setattr(deployment, "_rows_that_stay", lambda *given: None)
    together = run(trace, **options, num_gpu_blocks_override=300)
    same(apart, together)
    assert len(apart.timelines) == replicas and set(apart.replica.tolist()) == set(range(replicas))
    assert apart.kv_cache_tokens == together.kv_cache_tokens and apart.duration_s == pytest.approx(together.duration_s)


@pytest.mark.slow
def test_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = sessions(4, 10, 0.5, 4.0)
    options = {"data_parallel_size": 2, "router": "session_affinity", "kv_offloading_size": 1.0}
    here = run(trace, **options, num_gpu_blocks_override=300)
    monkeypatch.setattr(sticky_replicas, "MANY_TURNS", 1)
    there = run(trace, **options, num_gpu_blocks_override=300)
    for name in (*TIMES, *COUNTS):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
    assert [use.plain() for use in here.kv_tiers] == [use.plain() for use in there.kv_tiers]
    assert here.prefix_hit_rate == pytest.approx(sum(use.hit_rate for use in here.kv_tiers))


def test_ctrl_c_keeps_the_replicas_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = sessions(4, 9, 0.5, 4.0)
    serve, calls = deployment.serve, 0

    def stopped(some: Trace, *rest: Any) -> Outcome:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return serve(some, *rest)

    def alone(self: Any, some: Trace) -> Outcome:
        return stopped(some, [("both", self.pool)], self.options)

    monkeypatch.setattr(deployment.ServeAlone, "__call__", alone)
    with pytest.raises(Interrupted) as stop:
        run(trace, data_parallel_size=3, router="session_affinity")
    outcome = stop.value.result
    assert len(outcome.done) == len(trace) and set(outcome.replica[outcome.done].tolist()) == {0}


def test_blocks_that_are_not_needed_yet_are_the_next_ones() -> None:
    cache = PrefixCache(10, 16, lone_prompts(np.array([64, 64])))
    assert cache.allocate(0, 0, 64)
    cache.release(0, 4, 64)
    cache.take(6)
    cache.untake(2)
    assert cache.free_blocks == 6
    cache.take(2)
    assert cache.free_blocks == 4 and cache.match_prefix(0, 64) == 48, "what others left is still there"
