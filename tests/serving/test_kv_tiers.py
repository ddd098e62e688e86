"""Tiers below the GPU's KV cache: what they hold, when it is back, and that nothing is lost or computed twice."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import simulate
from inferometer.base.errors import BadValue, UnknownName
from inferometer.inference.kv_offload import parse_kv_tiers
from inferometer.inference.request import build_request
from inferometer.serving import deployment
from inferometer.serving.kv_cache import prefix_tree
from inferometer.serving.kv_tiers import LOG_POINTS, CacheTier, TieredCache, TierLog, TierStore, TransferLink
from inferometer.serving.outcome import Outcome
from inferometer.serving.tiered_replicas import block_bytes
from inferometer.serving.trace import Trace

MODEL, GPU = "llama-3.2-1b", "h200"
FAST = "cpu:size=100000,read=inf,write=inf,latency=0"


def shared_prompts(seed: int, count: int = 24, block: int = 16) -> Trace:
    """Prompts of some groups whose first blocks are the same, and which part sooner or later."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 40, count) * block + rng.integers(1, block, count)
    group, parting = rng.integers(0, 4, count), rng.integers(0, 40, count)
    blocks = tuple(
        np.array([g * 1000 + k if k < p else (i + 10) * 1000 + k for k in range(n // block)], np.int64)
        for i, (g, p, n) in enumerate(zip(group, parting, lengths, strict=True))
    )
    return Trace(
        input_tokens=lengths,
        output_tokens=rng.integers(1, 20, count),
        arrival_s=np.sort(rng.uniform(0, 2, count)),
        blocks=blocks,
        block_tokens=block,
    )


def run(trace: Trace, **options: Any) -> Outcome:
    return simulate(MODEL, GPU, trace=trace, **options)


def same(a: Outcome, b: Outcome) -> bool:
    columns = ("scheduled_s", "first_token_s", "finished_s", "cached_tokens", "preemptions", "replica")
    return all(np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in columns)


# ------------------------------------------------------------------ laws


LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"engine": "sglang"},
    {"engine": "trtllm"},
    {"pipeline_parallel_size": 2},
    {"data_parallel_size": 2, "router": "prefix_aware"},
    {"prefill_replicas": 1, "decode_replicas": 1},
)


@pytest.mark.slow
@given(st.integers(0, 2**31), st.sampled_from(LAYOUTS), st.integers(60, 300), st.floats(0.001, 0.1), st.booleans())
@settings(max_examples=12, deadline=None)
def test_nothing_is_lost_or_computed_twice(
    seed: int, layout: dict[str, Any], blocks: int, gib: float, has_more_tiers: bool
) -> None:
    trace = shared_prompts(seed)
    tiers = f"cpu:size={gib}" + (f" disk:size={2 * gib} shared:size={3 * gib}" if has_more_tiers else "")
    tokens = {} if layout.get("engine") != "sglang" else {"block_size": 16}
    outcome = run(trace, num_gpu_blocks_override=blocks, kv_tiers=tiers, **layout, **tokens)
    assert outcome.done.all()
    uses = outcome.kv_tiers
    assert all(0 <= use.used_bytes <= use.capacity_bytes * (1 + 1e-12) for use in uses)
    assert np.array_equal(sum(use.request_tokens for use in uses), outcome.cached_tokens)
    assert sum(use.hit_rate for use in uses) == pytest.approx(outcome.prefix_hit_rate)
    assert (outcome.cached_tokens < trace.input_tokens).all(), "the last token is always computed"
    if not outcome.preemptions.any() and "prefill_replicas" not in layout:
        new = trace.input_tokens - outcome.cached_tokens + trace.output_tokens - 1
        computed = sum(timeline.computed_tokens for timeline in outcome.timelines)
        assert computed == new.sum(), "what a tier had is not computed again, all else is, once"


@pytest.mark.slow
@given(st.integers(0, 2**31), st.sampled_from(LAYOUTS), st.integers(60, 300))
@settings(max_examples=5, deadline=None)
def test_a_tier_without_room_changes_nothing(seed: int, layout: dict[str, Any], blocks: int) -> None:
    trace = shared_prompts(seed)
    without = run(trace, num_gpu_blocks_override=blocks, **layout)
    assert same(without, run(trace, num_gpu_blocks_override=blocks, kv_tiers="cpu:size=1e-6", **layout))
    assert same(without, run(trace, num_gpu_blocks_override=blocks, kv_offloading_size=0, **layout))


@pytest.mark.slow
@given(st.integers(0, 2**31), st.sampled_from(LAYOUTS[:5]))
@settings(max_examples=5, deadline=None)
def test_an_endless_fast_tier_is_an_endless_gpu_cache(seed: int, layout: dict[str, Any]) -> None:
    trace = shared_prompts(seed)
    few = {**layout, "max_num_seqs": 2}  # whose blocks the small cache always has
    if layout.get("engine") == "sglang":
        few["block_size"] = 16
    endless = run(trace, num_gpu_blocks_override=10**6, **few)
    tiered = run(trace, num_gpu_blocks_override=120, kv_tiers=FAST, **few)
    assert not tiered.preemptions.any() and same(endless, tiered)


@pytest.mark.slow
def test_a_faster_link_is_never_worse_than_none() -> None:
    trace = shared_prompts(5, 60)
    means = []
    for gbps in (0.05, 1, 50, float("inf")):
        outcome = run(trace, num_gpu_blocks_override=120, kv_tiers=f"cpu:size=10,read={gbps},write=inf,latency=0")
        means.append(float((outcome.first_token_s - outcome.arrival_s).mean()))
    assert means == sorted(means, reverse=True)


@pytest.mark.slow
@given(st.integers(0, 2**31), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_a_store_is_never_above_its_capacity(seed: int, capacity: int) -> None:
    rng, store = np.random.default_rng(seed), TierStore(capacity)
    store.demoted = []
    for _ in range(60):
        segment, start, length = int(rng.integers(0, 8)), int(rng.integers(0, 6)), int(rng.integers(1, 12))
        before = sum(held.stop - held.start for held in store.held.values())
        new = store.add(segment, start, start + length, 0.0, (int(rng.integers(0, 8)),))
        held = sum(held.stop - held.start for held in store.held.values())
        assert held == store.used_blocks <= capacity and new <= length
        assert held <= before + new and all(held.start < held.stop for held in store.held.values())
        store.touch([int(k) for k in rng.integers(0, 8, 3)])


# ------------------------------------------------------------------ by hand


def hand_cache(tiers: list[CacheTier], **options: Any) -> TieredCache:
    """Two prompts of 4 blocks of 16 that share 2, and one of 4 that shares none; 8 blocks on the GPU."""
    ids = (np.array([1, 2, 3, 4]), np.array([1, 2, 8, 9]), np.array([5, 6, 7, 8]))
    lengths = np.array([65, 65, 65])
    return TieredCache(8, 16, prefix_tree(ids, 16, lengths), tiers, [65] * 3, **options)


def test_a_prompt_comes_back_from_cpu_memory() -> None:
    cpu = CacheTier("cpu", 100.0, TransferLink(1000.0, 500.0, latency=0.1), TierStore(6))
    cache = hand_cache([cpu])
    assert cache.allocate(0, 0, 65)
    cache.computed(0, 65, now=1.0)
    assert cpu.store.used_blocks == 4
    cache.release(0, 5, 65)
    assert cache.allocate(2, 0, 65) and cache.match_prefix(1, 65) == 32, "3 free blocks are taken first, then 2 more"
    cache.release(2, 5, 65)
    cache.take(8)
    cache.release(2, 8, 0)
    assert cache.match_prefix(1, 65) == 0
    pieces = cache.match_tiers(1, 0, 65)
    assert [(piece.start, piece.stop) for piece in pieces] == [(0, 2)]
    # the store of 4 blocks at 500 B/s lasted from 1.0 to 1.8 s, and 0.1 s more; then 2 blocks at 1000 B/s
    assert cache.start_load(1, 0, pieces, now=1.5) == pytest.approx(1.9 + 0.2 + 0.1)
    assert cache.free_blocks == 6 and cache.match_prefix(0, 65) == 0, "not before it has arrived"
    cache.arrived(1)
    assert cache.match_prefix(1, 65) == 32 and cache.match_prefix(0, 65) == 32
    assert cache.can_hold(1, 32, 65) and cache.allocate(1, 32, 65) and cache.free_blocks == 3


def test_lru_evicts_the_ends_of_prompts_first() -> None:
    cpu = CacheTier("cpu", 1.0, TransferLink(1.0, 1.0), TierStore(6))
    cache = hand_cache([cpu])
    cache.computed(0, 65, 0.0)  # 4 blocks: 2 shared, 2 of its own
    cache.computed(2, 65, 0.0)  # 4 more: the two of the end of prompt 0 go
    assert cpu.store.used_blocks == 6 and cpu.store.evicted_blocks == 2
    assert [(p.start, p.stop) for p in cache.match_tiers(0, 0, 65)] == [(0, 2)]
    assert sum(p.stop - p.start for p in cache.match_tiers(2, 0, 65)) == 4


def test_write_back_stores_what_is_evicted_tier_after_tier() -> None:
    link = TransferLink(1000.0, 1000.0)
    cpu, disk = CacheTier("cpu", 1.0, link, TierStore(3)), CacheTier("disk", 1.0, link, TierStore(10))
    cache = hand_cache([cpu, disk], write_policy="write_back")
    assert cache.allocate(0, 0, 65)
    cache.computed(0, 65, 0.0)
    cache.release(0, 5, 65)
    assert not cpu.store.used_blocks
    assert cache.allocate(2, 0, 65) and cpu.store.used_blocks == 1, "8 blocks: 3 never used, 1 without content, 1 of 0"
    cache.release(2, 5, 65)
    cache.take(8)
    assert cpu.store.used_blocks == 3 and disk.store.used_blocks == 5, "4 of each, all of them somewhere"
    pieces = cache.match_tiers(0, 0, 65)
    assert sum(piece.stop - piece.start for piece in pieces) == 4


def test_write_through_selective_waits_for_a_second_use() -> None:
    cpu = CacheTier("cpu", 1.0, TransferLink(1.0, 1.0), TierStore(10))
    cache = hand_cache([cpu], write_policy="write_through_selective")
    cache.computed(0, 65, 0.0)
    assert not cpu.store.used_blocks
    cache.computed(1, 65, 0.0)
    assert cpu.store.used_blocks == 2, "the blocks that both prompts have"


def test_blocks_of_a_disk_come_by_way_of_cpu_memory() -> None:
    cpu = CacheTier("cpu", 100.0, TransferLink(1000.0, 1000.0), TierStore(4))
    disk = CacheTier("disk", 100.0, TransferLink(200.0, 1e9, latency=0.5), TierStore(100))
    cache = hand_cache([cpu, disk])
    cache.computed(0, 65, 0.0)
    cache.computed(2, 65, 0.0)
    assert [p.tier for p in cache.match_tiers(0, 0, 65)] == [1, 1]
    # ready on the disk at 0.9 s (0.4 s over the first link, 0.5 s latency); 4 blocks at 200 B/s, then at 1000 B/s
    assert cache.start_load(0, 0, cache.match_tiers(0, 0, 65), now=10.0) == pytest.approx(10 + 2.0 + 0.5 + 0.4)
    assert [p.tier for p in cache.match_tiers(0, 0, 65)] == [0, 0], "CPU memory has them now, instead of the others"


def test_transfers_share_a_link() -> None:
    link = TransferLink(100.0, 50.0, latency=1.0, concurrency=2)
    ends = [link.finish(0.0, 100, write=False) for _ in range(3)]
    assert ends == [2.0, 3.0, 4.0], "bytes follow each other, latencies overlap, the third begins when the first ended"
    assert link.finish(0.0, 100, write=True) == 3.0, "the other direction is free"
    half = TransferLink(100.0, 50.0, duplex=False)
    assert [half.finish(0.0, 100, write=True), half.finish(0.0, 100, write=False)] == [2.0, 3.0]
    assert half.bytes_sent == [100, 100] and half.busy_s == [1.0, 2.0]


# ------------------------------------------------------------------ flags


def test_sizes_are_those_of_the_engines() -> None:
    plan = build_request("llama-3.1-8b", "h200", kv_offloading_size=64, tensor_parallel_size=2).plan
    assert plan.kv_offload is not None and plan.kv_offload.prompt_only
    assert plan.kv_offload.tiers[0].size == 64 * 2**30, "over all ranks"
    sglang = {"engine": "sglang", "enable_hierarchical_cache": True}
    ratio = build_request("llama-3.1-8b", "h200", **sglang).plan.kv_offload
    assert ratio is not None and ratio.tiers[0].gpu_ratio == 2 and not ratio.prompt_only
    each = build_request("llama-3.1-8b", "h200", hicache_size=50, tensor_parallel_size=2, **sglang).plan.kv_offload
    assert each is not None and each.tiers[0].size_per_gpu == 50e9
    bound = build_request("llama-3.1-8b", "h200", tensor_parallel_size=2).bind()
    assert block_bytes(bound) == 2 * 2 * 32 * 8 * 128 * 16, "k and v, bf16, 32 layers, 8 heads of 128, 16 tokens"


@pytest.mark.slow
def test_a_shared_store_serves_all_replicas() -> None:
    trace = shared_prompts(3, 60)
    options = {"num_gpu_blocks_override": 100, "data_parallel_size": 3}
    shared = run(trace, kv_tiers="shared:size=100,read=inf,write=inf,latency=0", **options)
    own = run(trace, kv_tiers=FAST, **options)
    assert shared.prefix_hit_rate > own.prefix_hit_rate
    assert [use.name for use in shared.kv_tiers] == ["gpu", "shared"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"enable_hierarchical_cache": True}, "SGLang's"),
        ({"engine": "sglang", "hicache_ratio": 2.0}, "needs enable_hierarchical_cache"),
        ({"kv_offloading_backend": "native"}, "needs kv_offloading_size"),
        ({"kv_offloading_size": 1, "engine": "sglang", "enable_hierarchical_cache": True}, "give one of them"),
        ({"kv_tiers": "disk:read=5"}, "needs a size"),
        ({"kv_tiers": "disk:size=x"}, "must be a number"),
        ({"kv_tiers": "disk:size=1,concurrency=1.5"}, "a whole number"),
    ],
)
def test_a_wrong_tier_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        build_request("llama-3.1-8b", "h200", **options)


def test_names_of_tiers_are_checked() -> None:
    with pytest.raises(UnknownName, match="disk"):
        parse_kv_tiers("disc:size=1")
    with pytest.raises(UnknownName, match="size"):
        parse_kv_tiers("disk:sise=1")
    assert parse_kv_tiers(["cpu:size=1", "disk:size=2,read=7"]) == parse_kv_tiers(
        {"cpu": {"size": 1}, "disk": {"size": 2, "read": 7}}
    )


def test_an_engine_that_decodes_sees_the_end_of_a_load_two_steps_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer decodes while a prompt comes back from CPU memory: vLLM looks for ends of loads once a step is
    launched, says so with its results, and has scheduled one more by then."""
    trace = Trace(
        input_tokens=np.array([1024, 1024, 64, 1040]),
        output_tokens=np.array([1, 1, 400, 1]),
        arrival_s=np.array([0.0, 0.5, 1.0, 1.2]),
        blocks=tuple(np.arange(start, start + n) for start, n in ((0, 64), (1000, 64), (2000, 4), (0, 64))),
        block_tokens=16,
    )
    options = {
        "num_gpu_blocks_override": 100,
        "kv_tiers": "cpu:size=1,read=100,latency=0",
    }  # the second evicts the first
    late, step_by_step = (run(trace, fast_forward=fast, **options) for fast in (True, False))
    limits = deployment.scheduler_limits
    monkeypatch.setattr(deployment, "scheduler_limits", lambda *given: limits(*given)._replace(load_steps=0))
    at_once = run(trace, **options)
    decode_s = (at_once.finished_s[2] - at_once.first_token_s[2]) / 399
    assert late.cached_tokens[3] == at_once.cached_tokens[3] == 1024
    assert late.scheduled_s == pytest.approx(step_by_step.scheduled_s, rel=1e-9)
    assert late.scheduled_s[3] - at_once.scheduled_s[3] == pytest.approx(2 * decode_s, rel=0.05)


# ------------------------------------------------------------------ over time


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"data_parallel_size": 2, "router": "session_affinity"}])
def test_tiers_over_time_end_with_what_the_tiers_say(layout: dict[str, Any]) -> None:
    """At most 512 moments; totals only grow, nothing is ever above its size, and the last moment is the run's end."""
    given = {"agents": "chat,turns=12,system_tokens=900", "num_sessions": 120, "request_rate": 5.0}
    tiers = {"kv_tiers": ["cpu:size=0.02", "disk:size=0.05"]}
    outcome = simulate(MODEL, GPU, num_gpu_blocks_override=400, **given, **tiers, **layout)
    series = outcome.tier_series
    assert 100 < len(series["time_s"]) <= 512 and (np.diff(series["time_s"]) > 0).all()
    assert series["time_s"][-1] == pytest.approx(np.nanmax(outcome.finished_s), rel=0.01)
    for tier in outcome.kv_tiers:
        used = series[f"{tier.name}_used_bytes"]
        assert (used >= 0).all() and used.max() <= tier.capacity_bytes * (1 + 1e-9)
        assert used[-1] == pytest.approx(tier.used_bytes)
        for name in ("loaded_bytes", "stored_bytes") if tier.name != "gpu" else ():
            moved = series[f"{tier.name}_{name}"]
            assert (np.diff(moved) >= 0).all() and moved[-1] == pytest.approx(getattr(tier, name)) and moved[-1] > 0
    assert outcome.summary()["tier_series"]["time_s"] == series["time_s"].tolist()


def test_a_run_without_tiers_has_no_series_of_them() -> None:
    assert run(shared_prompts(0)).tier_series == {} == run(shared_prompts(0)).summary()["tier_series"]


def test_a_log_thins_out_as_it_grows() -> None:
    log, tier = TierLog(), CacheTier("cpu", 16.0, TransferLink(read=1.0, write=1.0), TierStore(10))
    for k in range(5000):
        if k * 0.5 >= log.next_s:
            log.add(k * 0.5, k, [tier])
    times = [row[0] for row in log.rows]
    assert len(times) < 2 * LOG_POINTS and times == sorted(times) and times[-1] > 2490
    assert max(b - a for a, b in pairwise(times)) < 8
