"""The search: its parts against what they stand for, its winner against the simulator, sentences against metrics."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferometer
from inferometer import BadValue, UnknownName, search
from inferometer.base.pareto import pareto_front, undominated
from inferometer.costs.binding import stage_plans, step_seconds
from inferometer.costs.step import Group, Step
from inferometer.inference.request import build_request
from inferometer.search import finalists
from inferometer.search.explanation import plan_rows
from inferometer.search.objective import build_traffic
from inferometer.search.search import search_with_table
from inferometer.search.search_result import Candidate
from inferometer.search.steady_state import (
    MAX_UTILIZATION,
    StageSeconds,
    distinct_stages,
    even_arrivals,
    load_grid,
    mean_wait,
    steady_states,
    wait_at_share,
)
from inferometer.serving.deployment import ServingOptions, serve
from inferometer.serving.metrics import good_requests, latencies
from inferometer.serving.replica_pool import build_pool
from inferometer.serving.simulate import simulate
from inferometer.serving.trace import Trace

SMALL: dict[str, Any] = {"num_gpus": 2, "input_len": 1000, "output_len": 50, "goodput": "ttft:200,tpot:15"}


# ------------------------------------------------------------------ parts


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("llama-3.1-8b", {"pipeline_parallel_size": 4}),
        ("gemma-3-27b", {"pipeline_parallel_size": 2}),
        ("deepseek-v3", {"tensor_parallel_size": 4, "pipeline_parallel_size": 8, "enable_expert_parallel": True}),
        ("qwen3-30b-a3b", {"data_parallel_size": 2, "pipeline_parallel_size": 3}),
    ],
)
def test_blocks_estimated_once_are_the_stages(model: str, plan: dict[str, Any]) -> None:
    bound_plan = build_request(model, "h200", **plan).bind()
    alone = build_request(model, "h200", **{**plan, "pipeline_parallel_size": 1}).bind()
    step = Step((Group(np.array([1.0, 7, 64, 300]), 1, 900, 1, True), Group(1, np.array([0.0, 500, 40, 2000]), 100)))
    seconds, parts = StageSeconds(alone, step), distinct_stages(bound_plan)
    assert sum(part.copies for part in parts) == bound_plan.plan.pipeline_parallel_size
    whole = sum(
        part.copies * seconds.total(part.bound_plan, seconds.kernels(part.bound_plan).seconds) for part in parts
    )
    assert whole == pytest.approx(sum(step_seconds(part, step) for part in stage_plans(bound_plan)), rel=1e-9)


@pytest.mark.slow
def test_means_are_near_what_is_simulated() -> None:
    """Requests at random on one server, over loads, lengths, engines and layouts: half of the errors are below 8%."""
    errors = []
    for model, kwargs in (
        ("llama-3.1-8b", {}),
        ("llama-3.1-8b", {"engine": "sglang"}),
        ("llama-3.1-70b", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
        ("qwen3-30b-a3b", {"data_parallel_size": 2, "enable_expert_parallel": True}),
    ):
        for given_len, made in ((3000, 300), (300, 300)):
            traffic = build_traffic(input_len=given_len, output_len=made)
            one = build_request(model, "h200", frontend="http", **kwargs)
            bound_plan = one.bind()
            bound_plan = bound_plan._replace(env={**bound_plan.env, "uniform_lengths": 0.0})
            loads = load_grid(traffic, one.engine, one.plan, (one.plan.max_num_batched_tokens,), 64)
            state = steady_states([bound_plan], loads)[0]
            server = None
            for n in (3, 13, len(loads.decoding) - 1):
                rate, tpot = float(state.request_rate[0, n]), float(state.tpot[0, n])
                ttft = float(state.base_ttft[0, n] + state.queue_seconds[0, n])
                under_way = rate * (ttft + made * tpot)
                trace = traffic.requests(int(150 + 8 * under_way), rate, 1)
                server = server or build_pool(one, 1, trace)
                seen = latencies(serve(trace, [("both", server)], ServingOptions(scheduler=one.engine.scheduler)))
                part = slice(int(2 * under_way), -int(under_way) - 1)
                errors.append(
                    (ttft * 1e3 / np.nanmean(seen["ttft"][part]) - 1, tpot * 1e3 / np.nanmean(seen["tpot"][part]) - 1)
                )
    middle = np.median(np.abs(errors), axis=0)
    assert (middle < 0.08).all(), middle


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=40), st.booleans()
)
def test_the_front_beats_everything_else(points: list[tuple[int, int, int]], costs: bool) -> None:
    table_ = np.array(points, float)
    kept = pareto_front(table_[:, 1], table_[:, 0], table_[:, 2] if costs else None)
    score = np.stack([table_[:, 0], table_[:, 1], -table_[:, 2] if costs else 0 * table_[:, 2]], 1)
    for n, one in enumerate(score):
        as_good = (score[kept] >= one).all(1)
        assert as_good.any()
        if n in kept:  # nothing on the front is beaten by, or equal to, another that is
            assert as_good.sum() == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=30))
def test_undominated_rows_cover_their_group(rows: list[tuple[int, int, int]]) -> None:
    costs, groups = np.array([row[:2] for row in rows], float), np.array([row[2] for row in rows])
    kept = undominated(costs, groups)
    for one, group in zip(costs, groups, strict=True):
        assert any((costs[n] <= one).all() for n in kept if groups[n] == group)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 40))
def test_every_nth_request_is_what_round_robin_sends(step: int, count: int) -> None:
    trace = Trace(input_tokens=np.arange(1, 31), output_tokens=np.full(30, 3), arrival_s=np.arange(30.0))
    part = build_traffic(trace=trace).requests(count, 1 / step, step)
    assert part.input_tokens.tolist() == (8 * list(range(1, 31)))[::step][:count]
    assert part.arrival_s == pytest.approx(np.arange(count) * step), "over and over, without a break"


def test_a_server_that_does_not_fit_carries_its_bytes() -> None:
    """The closest is chosen by bytes, not by a sentence about them."""
    kwargs = {"num_gpus": 2, "goodput": "tpot:100", "quantization": "bf16", "kv_cache_dtype": "auto", "relax": False}
    result, table, rejected = search_with_table("llama-3.1-405b", "a100-sxm-80gb", **kwargs)
    assert table is None and rejected
    smallest = min((one for one in rejected if one.needed_bytes), key=lambda one: one.needed_bytes)
    assert smallest.needed_bytes > 80e9 and f"needs {smallest.needed_bytes / 1e9:.1f} GB" in smallest.reason
    assert f"{smallest.server.layout} {smallest.reason}" in result.reason


@pytest.mark.slow
def test_the_commands_name_the_repository_of_a_catalogue_entry() -> None:
    assert build_request("llama-3.1-8b", "h200").hf_id == "meta-llama/Meta-Llama-3.1-8B"
    result = search("llama-3.1-8b", gpu="h200", num_gpus=1, goodput="tpot:40", finalists=1)
    assert "vllm serve meta-llama/Meta-Llama-3.1-8B " in result.commands["vllm"][1]


def test_queues_are_what_theory_says() -> None:
    assert mean_wait(0.5) == pytest.approx(0.5)  # M/D/1: rho / 2(1 - rho)
    assert mean_wait(1.5) == mean_wait(MAX_UTILIZATION), "a queue that only grows is cut off"
    assert even_arrivals(0.7, 1.0) == pytest.approx(1.0), "Poisson arrivals are the reference"
    factors = [float(even_arrivals(0.7, 1 / n)) for n in (1, 2, 4, 8)]
    assert factors == sorted(factors, reverse=True) and factors[-1] < 1 / 8
    assert wait_at_share(0.5, 0.9) == pytest.approx(np.log(5) / 0.5)  # P(wait > t) = rho exp(-t rho / W) = 0.1
    assert wait_at_share(0.05, 0.9) == 1, "few requests wait: not less than the mean"


# ------------------------------------------------------------------ the winner


@cache
def small() -> inferometer.Search:
    return search("llama-3.1-8b", gpu="h200", finalists=4, **SMALL)


@pytest.mark.slow
def test_the_winner_holds_on_the_whole_cluster_and_not_much_more() -> None:
    result = small()
    assert result.feasible and result.winner is not None and result.winner.trial is not None
    best, rate = result.winner.pools[0], result.winner.trial.request_rate
    shares = []
    for factor in (1.0, 1.3):
        trace = build_traffic(input_len=1000, output_len=50).requests(1500, factor * rate, 1)
        outcome = simulate("llama-3.1-8b", "h200", trace=trace, pools=_pools(result.winner))
        shares.append(good_requests(latencies(outcome), {"ttft": 200.0, "tpot": 15.0})[300:-200].mean())
    assert shares[0] > 0.86 and shares[1] < 0.8, best


def _pools(plan: Candidate) -> list[dict[str, Any]]:
    return [
        {
            "role": one.role,
            "replicas": one.replicas,
            "tensor_parallel_size": one.tensor_parallel_size,
            "pipeline_parallel_size": one.pipeline_parallel_size,
            "data_parallel_size": one.data_parallel_size,
            "enable_expert_parallel": one.enable_expert_parallel,
            "quantization": one.quantization,
            "kv_cache_dtype": one.kv_cache_dtype,
            "max_num_seqs": one.max_num_seqs,
            "max_num_batched_tokens": one.max_num_batched_tokens,
        }
        for one in plan.pools
    ]


@pytest.mark.slow
def test_what_is_said_is_what_was_found() -> None:
    result = small()
    values = [
        plan.simulated.output_throughput_per_gpu
        for plan in result.plans
        if plan.verdict in ("wins", "ties", "holds") and plan.simulated and not plan.bound
    ]
    assert result.plans[0] is not None and result.plans[0].verdict == "wins"
    assert values == sorted(values, reverse=True) and len(result.plans) >= 3
    assert result.margin["runner_up"] == pytest.approx(values[0] / values[1] - 1)
    assert result.winner is not None and result.winner.label in result.why[0]
    assert f"{values[0]:,.0f} output tokens/s per GPU" in result.why[0]
    kept = result.winner.trial.tpot_ms["share"]  # type: ignore[union-attr]
    assert result.margin["tpot"] == pytest.approx(1 - kept / 15)
    assert result.counts["simulations"] == sum(plan.simulations for plan in result.plans)
    assert result.front and result.space["tensor_parallel_size"] == [1, 2]


@pytest.mark.slow
def test_a_rate_is_carried_by_as_few_gpus_as_can_be() -> None:
    kwargs = {**SMALL, "num_gpus": 6, "goodput": "ttft:200,tpot:20", "request_rate": 60.0, "mode": "aggregated"}
    kwargs["output_len"] = 200
    result = search("llama-3.1-8b", gpu="h200", quantization="bf16", kv_cache_dtype="auto", **kwargs)
    assert result.winner is not None and 1 < result.winner.gpus < 6
    fewer = search(
        "llama-3.1-8b",
        gpu="h200",
        quantization="bf16",
        kv_cache_dtype="auto",
        relax=False,
        **{**kwargs, "num_gpus": result.winner.gpus - 1},
    )
    assert not fewer.feasible


@pytest.mark.slow
def test_objectives_choose_differently() -> None:
    kwargs = {**SMALL, "goodput": "ttft:500,tpot:40", "mode": "aggregated", "finalists": 4}
    fast = search("llama-3.1-8b", gpu="h200", objective="latency", **kwargs)
    much = search("llama-3.1-8b", gpu="h200", objective="throughput", **kwargs)
    assert fast.winner and much.winner and fast.winner.simulated and much.winner.simulated
    assert fast.winner.simulated.e2el_ms < much.winner.simulated.e2el_ms
    assert fast.winner.simulated.output_throughput < much.winner.simulated.output_throughput
    cheap = search("llama-3.1-8b", gpu="h200:price_per_hour=40,h100-sxm", objective="cost", request_rate=10.0, **kwargs)
    assert cheap.winner and cheap.winner.gpu == "h100-sxm"
    plans = [
        plan.simulated.cost_per_million_output_tokens
        for plan in cheap.plans
        if plan.simulated and plan.verdict in ("wins", "ties", "holds") and not plan.bound
    ]
    assert plans == sorted(plans)  # type: ignore[type-var]
    thrifty = search("llama-3.1-8b", gpu="h200:power=5000,h100-sxm", objective="energy", **kwargs)
    assert thrifty.winner and thrifty.winner.gpu == "h100-sxm"
    best = thrifty.winner.priced
    assert best.joules_per_output_token
    assert 300 < best.joules_per_output_token * best.output_throughput / thrifty.winner.gpus < 700  # W of a busy GPU


@pytest.mark.slow
def test_gpus_that_stay_idle_are_counted_and_said() -> None:
    result = search(
        "llama-3.1-8b",
        gpu="h200",
        tensor_parallel_size=2,
        pipeline_parallel_size=1,
        mode="aggregated",
        finalists=1,
        **{**SMALL, "num_gpus": 3},
    )
    assert result.winner and result.winner.idle_gpus == 1 and "1 of the 3 GPUs stays idle" in result.warnings
    f = result.winner.simulated
    assert f and f.output_throughput_per_gpu == pytest.approx(f.output_throughput / 3)


@pytest.mark.slow
def test_every_plan_that_is_not_possible_has_its_reason() -> None:
    result, table, rejected = search_with_table(
        "llama-3.1-70b",
        "h100-sxm",
        num_gpus=3,
        input_len=3000,
        output_len=300,
        goodput="ttft:400,tpot:30",
        relax=False,
        finalists=1,
    )
    rows = plan_rows(table, rejected)
    assert all(bool(row["reason"]) != row["possible"] for row in rows)
    assert any("attention heads are not divisible by tp 3" in row["reason"] for row in rows)
    assert any("GB usable per GPU" in row["reason"] for row in rows)
    assert any("above the limit" in row["reason"] for row in rows)
    assert all(plan.reason for plan in result.rejected) and result.rejections
    assert sum(row["possible"] for row in rows) == result.counts["plans_possible"]


@pytest.mark.slow
def test_no_plan_says_by_how_much_and_what_would_do() -> None:
    kwargs = {"num_gpus": 1, "input_len": 2000, "output_len": 50}
    result = search("llama-3.1-8b", gpu="h200", goodput="ttft:20,tpot:20", quantization="bf16", **kwargs)
    assert not result.feasible and not result.winner and not result.commands
    assert "above the limit of 20.0 ms" in result.reason and result.relaxations
    for one in result.relaxations:
        flag, _, given_ = one.change.partition(" ")
        change: dict[str, Any] = {
            "--goodput": {"goodput": f"{given_},tpot:20"},
            "--num-gpus": {},
            "-q": {"quantization": given_},
        }[flag]
        change = {"num_gpus": int(given_)} if flag == "--num-gpus" else change
        assert search(
            "llama-3.1-8b", gpu="h200", **{"goodput": "ttft:20,tpot:20", "quantization": "bf16", **kwargs, **change}
        ).feasible, one
    huge = search(
        "llama-3.1-405b",
        gpu="a100-sxm-80gb",
        num_gpus=2,
        goodput="tpot:100",
        quantization="bf16",
        kv_cache_dtype="auto",
        relax=False,
    )
    assert not huge.feasible and "does not fit on 2 GPUs" in huge.reason


@pytest.mark.slow
def test_a_trace_is_estimated_by_its_means_and_simulated_as_it_is() -> None:
    rng = np.random.default_rng(1)
    trace = Trace(
        input_tokens=rng.integers(100, 3000, 900),
        output_tokens=rng.integers(20, 400, 900),
        arrival_s=np.cumsum(rng.exponential(1 / 20, 900)),
        source="made.csv",
    )
    result = search("llama-3.1-8b", gpu="h200", num_gpus=4, trace=trace, goodput="ttft:500,tpot:30")
    assert result.feasible and result.workload["request_rate"] == pytest.approx(20, rel=0.1)
    assert result.workload["input_len"] == pytest.approx(trace.input_tokens.mean())
    assert "--dataset-name timed_trace" in " ".join(result.commands["bench"])
    with pytest.raises(BadValue, match="trace sets all lengths"):
        search("llama-3.1-8b", trace=trace, input_len=5, goodput="ttft:500")


@pytest.mark.slow
def test_many_at_once_find_what_one_after_the_other_find(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = small()
    monkeypatch.setattr(finalists, "WORTH_WORKERS", 0.0)
    spread = search("llama-3.1-8b", gpu="h200", finalists=4, jobs=2, **SMALL)
    assert alone.winner and spread.plans == alone.plans and spread.margin == alone.margin and spread.why == alone.why
    assert spread.counts == alone.counts


@pytest.mark.slow
def test_the_longest_answer_is_no_backlog() -> None:
    """Two minutes at 3 requests/s with a few answers of 4,000 tokens: one GPU does it, as `simulate` says."""
    rng = np.random.default_rng(1)
    trace = Trace(
        input_tokens=rng.integers(100, 1500, 370),
        output_tokens=np.clip(rng.lognormal(5.0, 1.1, 370), 4, 4000).astype(int),
        arrival_s=np.cumsum(rng.exponential(1 / 3.08, 370)),
        source="long.csv",
    )
    limits = {"ttft": 500.0, "tpot": 30.0}
    kwargs = {"quantization": "bf16", "kv_cache_dtype": "auto", "mode": "aggregated", "num_gpus": 4}
    result = search("llama-3.1-8b", gpu="h100-sxm", trace=trace, goodput=limits, **kwargs)
    assert result.winner is not None and result.winner.gpus == 1 and result.winner.label.startswith("1 × tp1")
    outcome = simulate("llama-3.1-8b", "h100-sxm", trace=trace)
    assert good_requests(latencies(outcome), limits).mean() > 0.99
    assert not any("faster than they are served" in plan.reason for plan in result.rejected)


@pytest.mark.slow
def test_speculation_is_part_of_the_plan() -> None:
    draft = {"method": "mtp", "num_speculative_tokens": 1, "acceptance_length": 1.8}
    kwargs = {
        "num_gpus": 8,
        "input_len": 1000,
        "output_len": 50,
        "goodput": "ttft:2000,tpot:40",
        "mode": "aggregated",
        "data_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "objective": "latency",
        "finalists": 1,
    }
    plain = search("deepseek-v3", gpu="h200", **kwargs)
    quick = search("deepseek-v3", gpu="h200", speculative_config=draft, **kwargs)
    assert plain.winner and quick.winner
    assert quick.winner.priced.tpot_ms < plain.winner.priced.tpot_ms
    assert "--speculative-config" in quick.commands["vllm"][1]


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"goodput": None}, "needs a goal"),
        ({"goodput": "e2el:100,ttft:500"}, "contradicts itself"),
        ({"num_gpus": 0}, "num_gpus"),
        ({"num_gpus": 9999}, "1,024"),
        ({"nodes": 1, "num_gpus": 16}, "1 nodes"),
        ({"output_len": 1}, "at least 2 output tokens"),
        ({"request_rate": -1}, "request_rate"),
        ({"goodput_share": 0}, "share"),
        ({"mode": "apart"}, "mode"),
        ({"finalists": 0}, "finalists"),
        ({"tensor_parallel_size": "a"}, "tensor_p"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": []}, "no values"),
        ({"jobs": 0}, "jobs"),
        ({"prefix_len": 16, "block_size": "1e-9"}, "block_size"),
        ({"objective": "cost", "gpu": "h200:price_per_hour=0"}, "price_per_hour"),
        ({"max_num_seqs": "1:20000:1"}, "points, more than 10,000,000"),
        ({"num_gpus": 256, "request_rate": 5}, "paired on up to 128 GPUs"),
    ],
)
def test_what_cannot_be_searched_is_said(kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        search("llama-3.1-8b", **{"gpu": "h200", **SMALL, **kwargs})


@pytest.mark.parametrize(
    "kwargs",
    [
        {"objective": "speed"},
        {"goodput": "tft:5"},
        {"quantization": "fp9"},
        {"backend": "dusk"},
        {"gpu": "h20000"},
        {"engine": "vlm"},
    ],
)
def test_names_that_do_not_exist_are_said(kwargs: dict[str, Any]) -> None:
    with pytest.raises(UnknownName):
        search("llama-3.1-8b", **{"gpu": "h200", **SMALL, **kwargs})


@pytest.mark.parametrize("more", [{}, {"goodput": "tpot:20"}])
def test_a_misspelt_keyword_is_said_first(more: dict[str, Any]) -> None:
    with pytest.raises(UnknownName, match=r"^unknown argument 'num_gpu'; did you mean num_gpus\?$"):
        search("llama-3.1-8b", num_gpu=8, **more)  # type: ignore[call-arg]


@pytest.mark.slow
def test_keywords_of_a_plan_go_to_every_request() -> None:
    result = search("llama-3.1-8b", gpu="h200", num_gpus=1, goodput="tpot:40", finalists=1, block_size=32)
    assert result.feasible
    with pytest.raises(BadValue, match="block_size"):
        search("llama-3.1-8b", gpu="h200", num_gpus=1, goodput="tpot:40", block_size=0)


def test_it_is_public() -> None:
    assert inferometer.search is search and inferometer.Search.__name__ == "Search"


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "warned"), [(2048, True), (4096, False)])
def test_a_budget_that_a_prompt_fills_is_named(budget: int, warned: bool) -> None:
    result = search(
        "llama-3.1-8b",
        gpu="h200",
        num_gpus=1,
        engine="trtllm",
        mode="aggregated",
        quantization="bf16",
        kv_cache_dtype="auto",
        input_len=2048,
        output_len=100,
        max_num_batched_tokens=budget,
        max_num_seqs=64,
        goodput="ttft:5000,tpot:100",
        finalists=1,
    )
    assert any("fits into a step" in warning for warning in result.warnings) == warned
