"""Traces through whole deployments: replicas, routers, pools, what is rejected, and what adds up in the end."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferometer import analyze
from inferometer.base.errors import BadValue, UnknownName
from inferometer.serving.kv_cache import KV_TRANSFER_SHARE
from inferometer.serving.outcome import Outcome
from inferometer.serving.request_table import RejectionKind
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace
from inferometer.specs.catalog import engine, hardware

MODEL, GPU = "llama-2-7b", "a100-sxm-80gb"
SLOW = "a100-sxm-80gb:links.network.bandwidth=1e9"  # a prompt's cache is long on its way, and its blocks are missed


def trace_of(*requests: tuple[float, int, int], **columns: Any) -> Trace:
    arrival, inputs, outputs = (np.array(x) for x in zip(*requests, strict=True))
    return Trace(input_tokens=inputs, output_tokens=outputs, arrival_s=arrival.astype(float), **columns)


def some(count: int = 120, rate: float = 6, **options: Any) -> Trace:
    return synthetic(
        **{
            "num_prompts": count,
            "request_rate": rate,
            "input_len": "uniform:min=20,max=900",
            "output_len": "uniform:min=1,max=120",
            "seed": 5,
            **options,
        }
    )


def same(a: Outcome, b: Outcome) -> None:
    for name in ("arrival_s", "scheduled_s", "first_token_s", "finished_s"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-9, atol=1e-9)
    for name in ("cached_tokens", "preemptions", "replica", "output_tokens"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert a.steps == b.steps and a.rejected == b.rejected


def test_a_request_alone_is_what_analyze_says() -> None:
    outcome = simulate(MODEL, GPU, trace=trace_of((0.0, 1000, 200)), frontend="in-process")
    report = analyze(MODEL, gpu=GPU, input_len=1000, output_len=200).metrics
    assert report.ttft_ms is not None and report.e2el_ms is not None
    assert outcome.first_token_s[0] * 1e3 == pytest.approx(report.ttft_ms, rel=1e-6)
    assert outcome.finished_s[0] * 1e3 == pytest.approx(report.e2el_ms, rel=0.01)


def test_the_front_end_comes_before_the_engine() -> None:
    trace = trace_of((1.0, 100, 5))
    near, far = (simulate(MODEL, GPU, trace=trace, frontend=word) for word in ("in-process", "http"))
    assert near.arrival_s[0] == far.arrival_s[0] == 1.0
    more = engine("vllm").http_overhead + 100 * engine("vllm").token_overhead
    assert far.first_token_s[0] - near.first_token_s[0] == pytest.approx(more, abs=1e-9)
    assert simulate(MODEL, GPU, trace=trace).first_token_s[0] == far.first_token_s[0], "a client stands behind HTTP"


def test_tokens_are_conserved() -> None:
    trace = some()
    outcome = simulate(MODEL, GPU, trace=trace)
    assert not np.isnan(outcome.finished_s).any() and not outcome.rejected and not outcome.preemptions.any()
    series, apart = outcome.series, np.diff(outcome.series["time_s"], prepend=0.0)
    computed = (series["tokens_per_s"] * apart).sum()
    assert computed == pytest.approx((trace.input_tokens + np.maximum(trace.output_tokens - 1, 0)).sum(), rel=0.02)
    assert outcome.duration_s == outcome.finished_s.max() - outcome.arrival_s.min()
    for name in ("busy", "kv_used"):
        assert (series[name] >= 0).all() and (series[name] <= 1).all() and series[name].max() > 0.01
    assert len({len(column) for column in series.values()}) == 1 and len(series["time_s"]) <= 4000


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"data_parallel_size": 3, "router": "least_loaded"},
        {"data_parallel_size": 2, "router": "prefix_aware"},
        {"prefill_replicas": 1, "decode_replicas": 2},
        {"max_concurrency": 5, "data_parallel_size": 2},
        {"max_concurrency": 7, "router": "least_loaded", "data_parallel_size": 3},
        {"pools": [{"gpu": "h200"}, {"replicas": 2}], "router": "least_loaded"},
        {"max_concurrency": 4, "prefill_replicas": 1, "decode_replicas": 1},
        {"scheduler": "prefill_first"},
        {"scheduler": "sarathi", "max_num_batched_tokens": 512, "max_num_seqs": 64},
        {"stops": "token"},
        {"prefill_replicas": 1, "decode_replicas": 1, "num_gpu_blocks_override": 80, "gpu": SLOW},
        {"num_gpu_blocks_override": 120, "scheduler": "vllm"},
        {"policy": "priority", "num_gpu_blocks_override": 120},
        {"scheduler_recv_interval": 7, "data_parallel_size": 2, "router": "least_loaded", "max_concurrency": 6},
        {"scheduler_recv_interval": 7, "data_parallel_size": 2, "router": "least_loaded", "scheduler": "prefill_first"},
        {
            "scheduler": "trtllm",
            "num_gpu_blocks_override": 120,
            "batch_wait_timeout_iters": 5,
            "batch_wait_max_tokens_ratio": 0.5,
            "frontend": "http",
            "engine": "trtllm",
        },
    ],
    ids=str,
)
def test_deployments_fast_and_step_by_step(options: dict[str, Any]) -> None:
    trace = some(60, rate=20, prefix_len=40)
    trace = msgspec.structs.replace(trace, priority=np.arange(60) % 3)
    options = {"gpu": GPU, **options}
    fast = simulate(MODEL, trace=trace, **options)
    assert not np.isnan(fast.finished_s).any()
    same(fast, simulate(MODEL, trace=trace, fast_forward=False, **options))
    same(fast, simulate(MODEL, trace=trace, **options))


@pytest.mark.slow
@given(
    st.integers(0, 2**31),
    st.sampled_from(["round_robin", "least_loaded", "prefix_aware"]),
    st.integers(1, 4),
    st.sampled_from([None, 1, 3, 10]),
    st.booleans(),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_the_cluster_every_request_is_served(
    seed: int, router: str, count: int, most: int | None, split: bool
) -> None:
    trace = some(40, rate=15, turns="uniform:min=1,max=4", input_len="uniform:min=10,max=200", seed=seed)
    options: dict[str, Any] = {"data_parallel_size": count}
    if split:
        options = {"prefill_replicas": count, "decode_replicas": 2}
    outcome = simulate(MODEL, GPU, trace=trace, router=router, max_concurrency=most, **options)
    assert not np.isnan(outcome.finished_s).any() and not outcome.rejected
    assert (outcome.arrival_s <= outcome.scheduled_s).all() and (outcome.scheduled_s < outcome.first_token_s).all()
    assert (outcome.first_token_s <= outcome.finished_s).all()
    assert trace.after is not None and trace.think_s is not None
    later = np.flatnonzero(trace.after >= 0)
    assert (outcome.arrival_s[later] >= outcome.finished_s[trace.after[later]] + trace.think_s[later] - 1e-9).all()
    if most is not None:
        times = np.concatenate([outcome.arrival_s, outcome.finished_s])
        change = np.repeat([1, -1], len(trace))
        assert np.cumsum(change[np.lexsort((change, times))]).max() <= most


def test_replicas_that_wake_at_once_all_begin() -> None:
    trace = Trace(input_tokens=np.full(40, 100), output_tokens=np.full(40, 20))
    outcome = simulate(MODEL, GPU, trace=trace, data_parallel_size=2, max_concurrency=8)
    assert not np.isnan(outcome.finished_s).any() and (np.bincount(outcome.replica) == 20).all()


def test_round_robin_gives_each_its_turn() -> None:
    trace = some(90)
    outcome = simulate(MODEL, GPU, trace=trace, data_parallel_size=3)
    assert (np.bincount(outcome.replica) == 30).all()
    third = Trace(**{name: getattr(trace, name)[::3] for name in ("input_tokens", "output_tokens", "arrival_s")})
    alone = simulate(MODEL, GPU, trace=third)
    np.testing.assert_allclose(outcome.finished_s[outcome.replica == 0], alone.finished_s, rtol=1e-12)


def test_the_least_loaded_is_never_far_behind() -> None:
    lumpy = trace_of(*[(0.01 * i, 3000 if i % 2 == 0 else 16, 400 if i % 2 == 0 else 4) for i in range(60)])
    blind = simulate(MODEL, GPU, trace=lumpy, data_parallel_size=2)
    aware = simulate(MODEL, GPU, trace=lumpy, data_parallel_size=2, router="least_loaded")
    assert aware.duration_s < 0.8 * blind.duration_s


def test_prompts_go_where_their_prefix_is() -> None:
    rng = np.random.default_rng(1)
    group = rng.integers(0, 8, 160)
    blocks = tuple(np.arange(g * 100, g * 100 + 40) for g in group)
    trace = Trace(
        input_tokens=np.full(160, 40 * 16 + 30),
        output_tokens=np.full(160, 8),
        blocks=blocks,
        block_tokens=16,
        arrival_s=np.sort(rng.uniform(0, 40, 160)),
    )
    blind, aware = (
        simulate(MODEL, GPU, trace=trace, data_parallel_size=4, router=router)
        for router in ("round_robin", "prefix_aware")
    )
    ideal = (160 - 8) * 40 * 16 / (160 * (40 * 16 + 30))
    assert aware.prefix_hit_rate == pytest.approx(ideal) and blind.prefix_hit_rate < ideal - 0.1
    for g in range(8):
        assert len(set(aware.replica[group == g])) == 1


def test_a_conversation_finds_what_was_said() -> None:
    trace = some(40, rate=2, turns=4, input_len=100, output_len=60)
    outcome = simulate(MODEL, GPU, trace=trace)
    assert trace.after is not None
    before = trace.after
    later = before >= 0
    said = trace.input_tokens[before] + trace.output_tokens[before] - 1  # the last token was never computed
    np.testing.assert_array_equal(outcome.cached_tokens[later], (said // 16 * 16)[later])
    assert not outcome.cached_tokens[~later].any()
    off = simulate(MODEL, GPU, trace=trace, enable_prefix_caching=False)
    assert not off.cached_tokens.any() and off.prefix_hit_rate == 0 < outcome.prefix_hit_rate
    assert (off.first_token_s - off.arrival_s).mean() > (outcome.first_token_s - outcome.arrival_s).mean()


def test_prompts_and_answers_apart() -> None:
    outcome = simulate(
        MODEL,
        GPU,
        trace=trace_of((0.0, 1000, 50), (30.0, 500, 1), (60.0, 500, 0)),
        prefill_replicas=1,
        decode_replicas=1,
        frontend="in-process",
    )
    together = simulate(MODEL, GPU, trace=trace_of((0.0, 1000, 50)), frontend="in-process")
    assert outcome.replica.tolist() == [1, 0, 0], "an answer of one token comes with its prompt"
    link, cache = KV_TRANSFER_SHARE * hardware(GPU).links["nvlink"].bandwidth, 1000 * 2 * 32 * 4096 * 2
    late = outcome.first_token_s[0] - together.first_token_s[0]
    assert cache / link < late < cache / link + 0.03, "the cache is sent, then the last token of the prompt is computed"
    assert outcome.finished_s[1] == outcome.first_token_s[1] > 30
    shared = some(60, rate=20, prefix_len=64)
    apart, one = (
        simulate(MODEL, GPU, trace=shared, **options) for options in ({"prefill_replicas": 1, "decode_replicas": 2}, {})
    )
    assert apart.prefix_hit_rate == one.prefix_hit_rate > 0, "prefill replicas find what prompts share"


def test_what_is_too_long_is_rejected_with_the_reason() -> None:
    trace = trace_of((0.0, 5000, 10), (0.0, 4096, 1), (0.0, 4000, 500), (0.0, 100, 10), (0.0, 0, 5))
    outcome = simulate(MODEL, GPU, trace=trace)
    assert sorted(outcome.rejected) == [0, 1, 4] and "4,096" in outcome.rejected[0].reason
    assert outcome.rejected[4].kind is RejectionKind.EMPTY_PROMPT
    assert outcome.output_tokens[2] == 96, "an answer ends at the model's length"
    assert np.isnan(outcome.finished_s[[0, 1, 4]]).all() and not np.isnan(outcome.finished_s[[2, 3]]).any()
    assert (outcome.arrival_s == 0).all()
    small = simulate(MODEL, GPU, trace=trace, num_gpu_blocks_override=10)
    assert sorted(small.rejected) == [0, 1, 2, 4] and "160 that the KV cache holds" in str(small.rejected[2])


def test_a_rejected_turn_lets_the_next_one_come() -> None:
    trace = trace_of((0.0, 9000, 5), (0.0, 50, 5), (0.0, 60, 5), after=np.array([-1, 0, 1]), think_s=np.ones(3))
    outcome = simulate(MODEL, GPU, trace=trace, max_concurrency=1)
    assert list(outcome.rejected) == [0] and outcome.arrival_s[1] == 1.0
    assert outcome.arrival_s[2] == outcome.finished_s[1] + 1.0


def test_a_plan_that_does_not_fit_serves_nothing_and_says_why() -> None:
    outcome = simulate("llama-3.1-70b", "rtx3090", trace=some(5))
    assert "GB" in outcome.reason and len(outcome.rejected) == 5 and np.isnan(outcome.finished_s).all()
    outcome = simulate(MODEL, GPU, trace=some(5), tensor_parallel_size=3)
    assert "32 attention heads are not divisible by tp 3" in outcome.reason


def test_an_empty_trace_is_served_at_once() -> None:
    none = Trace(input_tokens=np.zeros(0, np.int64), output_tokens=np.zeros(0, np.int64), arrival_s=np.zeros(0))
    outcome = simulate(MODEL, GPU, trace=none)
    assert outcome.duration_s == 0 and outcome.steps == 0 and len(outcome.finished_s) == 0


def test_pipelines_serve_alike_under_any_router() -> None:
    """A request that is routed wakes an idle batch at once, as one that was known from the start does."""
    trace = synthetic(num_prompts=120, input_len=300, output_len=60, request_rate=20.0)
    plan = {"pipeline_parallel_size": 2, "data_parallel_size": 2}
    apart, routed = (simulate(MODEL, GPU, trace=trace, router=r, **plan) for r in ("round_robin", "least_loaded"))
    assert routed.steps == pytest.approx(apart.steps, rel=0.05)
    assert routed.finished_s.mean() == pytest.approx(apart.finished_s.mean(), rel=0.01)


def test_stages_overlap() -> None:
    trace = some(60, rate=50)
    one, two = simulate(MODEL, GPU, trace=trace), simulate(MODEL, GPU, trace=trace, pipeline_parallel_size=2)
    assert not np.isnan(two.finished_s).any()
    assert two.kv_cache_tokens > 2 * one.kv_cache_tokens, "half the weights leave more for the cache"
    assert two.duration_s < one.duration_s


def test_speculation_gains_the_stated_tokens_per_step() -> None:
    options = {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3, "acceptance_length": 2.5}'}
    trace = trace_of((0.0, 100, 501))
    plain, guessed = simulate(MODEL, GPU, trace=trace), simulate(MODEL, GPU, trace=trace, **options)
    assert plain.steps == 501 and guessed.steps == 201
    assert guessed.finished_s[0] < 0.6 * plain.finished_s[0]


@pytest.mark.slow
def test_windows_and_states_run_too() -> None:
    for model in ("gpt-oss-20b", "qwen3-next-80b-a3b"):
        trace = some(30, rate=10)
        fast = simulate(model, "b200", trace=trace)
        assert not np.isnan(fast.finished_s).any()
        same(fast, simulate(model, "b200", trace=trace, fast_forward=False))


def test_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    simulate(MODEL, GPU, trace=some(400, rate=30), progress=lambda done, total: seen.append((done, total)))
    assert seen and seen == sorted(seen) and all(total == 400 for _, total in seen)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"scheduler": "vlm"}, "did you mean vllm"),
        ({"policy": "lifo"}, "fcfs"),
        ({"router": "robin"}, "round_robin"),
        ({"stops": "word"}, "length"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"prefill_replicas": 2}, "together"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override"),
        ({"pools": [{"role": "reader"}]}, "prefill"),
        ({"pools": [{"role": "prefill"}]}, "role decode"),
        ({"pools": []}, "none"),
        ({"pools": [{"gpus": 2}]}, "gpu"),
        ({"pools": ["h200"]}, "mapping"),
        ({"pools": [{"replicas": 0}]}, "replicas"),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 256}, "max_num_batched_tokens"),
        ({"pools": [{}], "prefill_replicas": 1, "decode_replicas": 1}, "pools"),
        ({"scheduler_recv_interval": 0}, "scheduler_recv_interval"),
        ({"scheduler_recv_interval": 5, "pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"prefill_schedule_interval": 0}, "prefill_schedule_interval"),
        ({"prefill_schedule_interval": 4}, "ranks of a mixture of experts"),
        ({"prefill_schedule_interval": 4, "engine": "vllm@0.23"}, "0.24 and later, not to 0.23"),
        ({"prefill_schedule_interval": 4, "engine": "sglang"}, "applies to vLLM, not to SGLang"),
        ({"prefill_max_requests": 0}, "prefill_max_requests"),
        ({"prefill_max_requests": 4}, r"prefill_first \(SGLang\), not to vllm"),
        ({"batch_wait_timeout_iters": -1}, "batch_wait_timeout_iters"),
        ({"batch_wait_timeout_iters": 5}, "batch_wait_max_tokens_ratio"),
        ({"batch_wait_max_tokens_ratio": 1.5}, "batch_wait_max_tokens_ratio"),
        ({"batch_wait_timeout_iters": 5, "batch_wait_max_tokens_ratio": 0.5}, "scheduler trtllm, not to vllm"),
    ],
)
def test_what_makes_no_sense_is_said(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((BadValue, UnknownName), match=sentence):
        simulate(MODEL, GPU, trace=some(3), **options)


def test_only_what_speaks_can_be_served() -> None:
    with pytest.raises(BadValue, match="only a decoder"):
        simulate("DiT-XL/2", GPU, trace=some(3))
