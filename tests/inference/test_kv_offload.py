"""A cached prefix in a tier below the GPU: what loading it does to TTFT, to a sweep and to what figures matter."""

from __future__ import annotations

import pytest

from inferometer import analyze, sensitivity, sweep
from inferometer.base.errors import BadValue, InferometerError, UnknownName

PLAN = {"gpu": "h200", "input_len": 10_000, "prefix_len": 8000}
PAGES = 500 * 32  # blocks of 16 tokens, each layer's part by itself
PAGE_S = 1.4e-6  # beyond its bytes


def test_a_prefix_in_cpu_memory_is_loaded_first() -> None:
    on_gpu = analyze("llama-3.1-8b", kv_offloading_size=64, **PLAN)
    below = analyze("llama-3.1-8b", kv_offloading_size=64, prefix_tier="cpu", **PLAN)
    num_bytes = 2 * 2 * 32 * 8 * 128 * 8000  # k and v, bf16, 32 layers, 8 heads of 128
    seconds = 1e-4 + num_bytes / (0.86 * 64e9) + PAGES * PAGE_S  # over PCIe 5.0
    assert below.metrics.ttft_ms == pytest.approx(on_gpu.metrics.ttft_ms + seconds * 1e3)
    assert below.metrics.tpot_ms == on_gpu.metrics.tpot_ms
    for report in (on_gpu, below):
        gpu, cpu = report.kv_tiers
        assert (gpu.name, cpu.name) == ("gpu", "cpu") and cpu.tokens == 64 * 2**30 // (num_bytes // 8000)
        assert gpu.ttft_ms == pytest.approx(on_gpu.metrics.ttft_ms)
        assert cpu.ttft_ms == pytest.approx(below.metrics.ttft_ms) and cpu.load_ms == pytest.approx(seconds * 1e3)
    assert not analyze("llama-3.1-8b", **PLAN).kv_tiers


def test_ranks_load_their_shares_at_once() -> None:
    one, two = (
        analyze("llama-3.1-8b", kv_offloading_size=64, prefix_tier="cpu", tensor_parallel_size=tp, **PLAN).kv_tiers[1]
        for tp in (1, 2)
    )
    pages_ms = PAGES * PAGE_S * 1e3  # as many on each rank, half as long
    assert two.load_ms == pytest.approx((one.load_ms - 0.1 - pages_ms) / 2 + 0.1 + pages_ms)
    assert two.tokens == one.tokens


def test_pages_that_a_kernel_reads_and_bandwidths_that_are_given_have_no_time_of_their_own() -> None:
    half = analyze("llama-3.1-8b", kv_offloading_size=64, prefix_tier="cpu", kv_cache_dtype="fp8", **PLAN)
    quarter = analyze(  # pages of 16 KiB: Triton's
        "llama-3.1-8b", kv_offloading_size=64, prefix_tier="cpu", kv_cache_dtype="fp8", tensor_parallel_size=2, **PLAN
    )
    num_bytes = 2 * 32 * 8 * 128 * 8000
    assert half.kv_tiers[1].load_ms == pytest.approx(1e3 * (1e-4 + num_bytes / (0.86 * 64e9) + PAGES * PAGE_S))
    assert quarter.kv_tiers[1].load_ms == pytest.approx(1e3 * (1e-4 + num_bytes / 2 / (0.86 * 64e9)))
    given = analyze("llama-3.1-8b", kv_tiers="cpu:size=64,read=50", prefix_tier="cpu", **PLAN)
    assert given.kv_tiers[1].load_ms == pytest.approx(1e3 * (1e-4 + 2 * num_bytes / 50e9))
    sglang = analyze(
        "llama-3.1-8b", engine="sglang", enable_hierarchical_cache=True, hicache_size=64, prefix_tier="cpu", **PLAN
    )
    assert sglang.kv_tiers[1].load_ms == pytest.approx(1e3 * (1e-4 + 2 * num_bytes / (0.86 * 64e9)))


@pytest.mark.slow
def test_tiers_are_axes_of_a_sweep() -> None:
    rows = sweep("llama-3.1-8b", kv_tiers=["disk:size=100,read=5", "disk:size=100,read=50"], prefix_tier="disk", **PLAN)
    slow, fast = rows.to_pandas()["ttft_ms"]
    report = analyze("llama-3.1-8b", kv_tiers="disk:size=100,read=50", prefix_tier="disk", **PLAN)
    assert slow > fast == pytest.approx(report.metrics.ttft_ms, rel=1e-6)


def test_the_link_of_a_tier_is_a_figure_that_matters() -> None:
    figures = sensitivity("llama-3.1-8b", kv_offloading_size=64, prefix_tier="cpu", **PLAN).figures
    load = analyze("llama-3.1-8b", kv_offloading_size=64, prefix_tier="cpu", **PLAN).kv_tiers[1]
    up = figures["kv_tiers.cpu.read"].up
    bytes_ms = load.load_ms - 0.1 - PAGES * PAGE_S * 1e3
    assert up.change["ttft_ms"] == pytest.approx(-bytes_ms * (1 - 1 / 1.1) / load.ttft_ms, rel=1e-3)
    assert not [key for key in sensitivity("llama-3.1-8b", **PLAN).figures if key.startswith("kv_tiers")]


def test_a_prefix_needs_its_tier() -> None:
    with pytest.raises(BadValue, match="needs that tier"):
        analyze("llama-3.1-8b", prefix_tier="cpu", **PLAN)
    with pytest.raises(UnknownName, match="disk"):
        analyze("llama-3.1-8b", kv_offloading_size=1, prefix_tier="disc", **PLAN)


@pytest.mark.parametrize("given", [1.5, True, {"disk": 3}, {"tape": {"size": 1}}, "disk:size=x"])
def test_tiers_that_are_none_are_refused_in_a_sentence(given: object) -> None:
    with pytest.raises(InferometerError) as refused:
        analyze("llama-3.1-8b", kv_tiers=given, **PLAN)
    assert "tier" in str(refused.value)
