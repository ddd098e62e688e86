"""Compiled steps are the steps of `analyze`: tables, rows and surfaces against the cost function itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import analyze
from inferometer.costs import binding
from inferometer.costs.binding import BoundPlan, bind, stage_plans
from inferometer.costs.step import Group, Step
from inferometer.inference.request import build_request
from inferometer.serving.batch import DecodeBatch
from inferometer.serving.engine_time import Throttle
from inferometer.serving.simulate import simulate
from inferometer.serving.step_cost import FullAttentionCost, WindowedCost, step_cost
from inferometer.serving.step_tables import ContextTable, PrefillSurface, split_by_dependence
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace

LONGEST = 20000
EAGER: dict[str, Any] = {"engine": "vllm@0.25", "max_cudagraph_capture_size": 0}
PLANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("llama-2-7b", "a100-sxm-80gb", {}),
    "tensor parallel": ("llama-3.1-70b", "h100-sxm", {"tensor_parallel_size": 4}),
    "experts": ("qwen3-30b-a3b", "h200", {}),
    "latent attention": ("deepseek-v3", "h200", {"tensor_parallel_size": 8, "data_parallel_size": 2}),
    "windows": ("gpt-oss-20b", "h100-sxm", {}),
    "chunks": ("llama-4-scout-17b-16e", "h200", {"tensor_parallel_size": 8}),
    "an index": ("deepseek-v3.2", "b200", {"tensor_parallel_size": 8}),
    "compressed": ("deepseek-v4-pro", "b200", {"tensor_parallel_size": 8}),
    "states": ("qwen3-next-80b-a3b", "h200", {"tensor_parallel_size": 4}),
    "eager": ("llama-3.1-8b", "rtx3090", {"engine": "hf"}),
    "perfect": ("llama-3.1-8b", "h200", {"engine": "roofline"}),
    "overlapped communication": ("llama-3.1-8b", "h100-sxm", {"tensor_parallel_size": 2, "overlap": 0.5}),
}


@cache
def bound_plan_of(name: str) -> BoundPlan:
    model, gpu, options = PLANS[name]
    request = build_request(model, gpu, **options)
    found = bind(request.model, request.device, request.engine, request.plan, roles=request.roles)
    return found._replace(env={**found.env, "uniform_lengths": 0.0})


def batch_of(contexts: list[int]) -> DecodeBatch:
    batch = DecodeBatch(len(contexts), 16)
    for i, context in enumerate(contexts):
        batch.join(i, context, 10)
    return batch


def exact(
    bound_plan: BoundPlan, contexts: list[int], chunks: list[tuple[int, int, int]], ends: int, width: int = 1
) -> float:
    prompts = [Group(1, new, cached, float(k < ends)) for k, (_, new, cached) in enumerate(chunks)]
    answers = [Group(1, width, context, width, True) for context in contexts]
    return float(binding.step_seconds(bound_plan, Step((*prompts, *answers))))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_compiled_steps_are_the_cost_functions(name: str) -> None:
    bound_plan, rng = bound_plan_of(name), np.random.default_rng(7)
    cost = step_cost(bound_plan, LONGEST)
    for trial in range(12):
        contexts = rng.integers(1, int(rng.choice([150, 2000, 16000])), int(rng.integers(1, 24))).tolist()
        batch = batch_of(contexts)
        # lines between nodes are not bent where a tile of the cache is full, at 8 positions' width; and tables do not
        # fall where longer contexts are spread over more SMs
        within = 8e-3 if bound_plan.device.architecture == "hopper" else 1e-3
        assert cost.decode_seconds(batch) == pytest.approx(exact(bound_plan, contexts, [], 0), rel=within)
        past = [0, int(rng.integers(1, 9000))]
        many = [(0, int(rng.integers(1, 3000)), int(rng.choice(past))) for _ in range(1 + trial % 5)]
        ends = int(rng.integers(0, len(many) + 1))
        assert cost.mixed_seconds(batch, many, ends) == pytest.approx(exact(bound_plan, contexts, many, ends), rel=5e-3)
        assert cost.mixed_seconds(None, many, ends) == pytest.approx(exact(bound_plan, [], many, ends), rel=5e-3)
        fresh = [(0, int(rng.integers(1, 9000)), 0)]
        assert cost.mixed_seconds(None, fresh, 1) == pytest.approx(exact(bound_plan, [], fresh, 1), rel=1e-9), (
            "a table is exact"
        )


def test_windows_have_a_class_of_their_own() -> None:
    assert isinstance(step_cost(bound_plan_of("windows"), LONGEST), WindowedCost)
    dense = step_cost(bound_plan_of("dense"), LONGEST)
    assert isinstance(dense, FullAttentionCost) and dense.closed_form is dense.decode_table


def test_a_step_does_not_depend_on_the_steps_before_it() -> None:
    first, later = (step_cost(bound_plan_of("windows"), LONGEST) for _ in range(2))
    batch, chunks = batch_of([100, 5000, 700]), [(9, 300, 2000)]
    later.mixed_seconds(batch_of([40]), [(8, 2000, 0)], 1, 1.0)
    assert later.mixed_seconds(batch, chunks, 0) == first.mixed_seconds(batch, chunks, 0)


@pytest.mark.parametrize("name", ["dense", "windows", "states"])
def test_many_steps_are_the_sum_of_each(name: str) -> None:
    cost = step_cost(bound_plan_of(name), LONGEST)
    batch = batch_of([100, 101, 700, 3000, 130])
    each = []
    for _ in range(400):
        each.append(cost.decode_seconds(batch))
        batch.advance(1)
    batch = batch_of([100, 101, 700, 3000, 130])
    steps, took, before = cost.decode_steps(batch, 400, float("inf"), 1)
    assert steps == 400 and took == pytest.approx(sum(each), rel=1e-9)
    assert before == pytest.approx(sum(each[:-1]), rel=1e-9)
    for gap in (0.5 * each[0], sum(each[:37]) * 1.0001, sum(each[:250]) * 0.9999):
        for more in (0, 1):
            steps, took, _ = cost.decode_steps(batch, 400, gap, more)
            wanted = int(np.searchsorted(np.cumsum(each), gap)) + 1 + more
            assert steps == wanted and took == pytest.approx(sum(each[:wanted]), rel=1e-9)


def test_guessing_costs_a_draft_and_a_wider_step() -> None:
    options = {
        "speculative_config": '{"method": "draft_model", "model": "llama-3.2-1b", "num_speculative_tokens": 3, '
        '"acceptance_length": 2.5}'
    }
    request = build_request("llama-3.1-8b", "h200", **options)
    bound_plan = bind(request.model, request.device, request.engine, request.plan, roles=request.roles)
    bound_plan = bound_plan._replace(env={**bound_plan.env, "uniform_lengths": 0.0})
    cost, plain = step_cost(bound_plan, 4096), step_cost(bound_plan_of("perfect"), 4096)
    assert cost.tokens_per_decode == 4 and cost.accepted_per_step == 2.5 and plain.tokens_per_decode == 1
    one = binding.step_seconds(cost.draft_plan, Step((Group(8, 1, 500, 1, True),)))  # type: ignore[arg-type]
    verify = exact(bound_plan, [500] * 8, [], 0, 4)
    assert cost.decode_seconds(batch_of([500] * 8)) == pytest.approx(verify + 3 * float(one), rel=1e-4)


def test_stages_have_times_of_their_own() -> None:
    request = build_request("llama-3.1-8b", "h100-sxm", pipeline_parallel_size=2)
    bound_plan = bind(request.model, request.device, request.engine, request.plan, roles=request.roles)
    batch = batch_of([300] * 4)
    halves = [step_cost(part, 1024).decode_seconds(batch) for part in stage_plans(bound_plan)]
    whole = step_cost(
        bound_plan_of("perfect")._replace(engine=bound_plan.engine, sources=bound_plan.sources), 1024
    ).decode_seconds(batch)
    assert len(halves) == 2 and max(halves) < whole < 1.5 * sum(halves)


def test_a_frequent_prompt_is_a_row_of_its_own() -> None:
    bound_plan = bound_plan_of("dense")
    frequent, plain = step_cost(bound_plan, 2048, [256]), step_cost(bound_plan, 2048)
    batch = batch_of([100, 900, 30])
    assert frequent.mixed_seconds(batch, [(9, 256, 0)], 1) == pytest.approx(
        plain.mixed_seconds(batch, [(9, 256, 0)], 1), rel=1e-4
    )
    assert frequent.mixed_seconds(batch, [(9, 257, 0)], 1) == plain.mixed_seconds(batch, [(9, 257, 0)], 1)


def test_operators_fall_into_parts_by_their_formulas() -> None:
    dense = split_by_dependence(bound_plan_of("dense"))
    names = {op.name for block in dense.tokens for op in block.ops}
    assert {"qkv_proj", "down_proj", "embed_tokens"} <= names
    assert "lm_head" in {op.name for block in dense.logits for op in block.ops}
    assert set(dense.prefill) == set(dense.decode) == {("",)} and not dense.other
    assert "all_reduce" not in names, "one GPU reduces nothing"
    assert "all_reduce" in {
        op.name for block in split_by_dependence(bound_plan_of("tensor parallel")).tokens for op in block.ops
    }
    assert len(split_by_dependence(bound_plan_of("windows")).decode) == 2
    assert {op.kind for block in split_by_dependence(bound_plan_of("states")).other for op in block.ops} == {"scan"}


@pytest.mark.slow
@given(st.integers(1, 200), st.integers(0, 5000), st.integers(1, 3000), st.floats(0, 2), st.integers(0, 1))
@settings(max_examples=200, deadline=None)
def test_a_search_along_a_row_is_a_walk_along_it(n: int, context: int, most: int, share: float, more: int) -> None:
    rows = _ROWS
    total = n * context + n // 3
    walk = np.cumsum([rows.one(n, total + k * n) for k in range(most)])
    gap = float(share * walk[-1])
    steps, took, before = rows.search(n, total, most, gap, more)
    first = int(np.searchsorted(walk, gap * (1 - 1e-12))) + 1 if gap > 0 else 0
    wanted = max(1, min(most, first + more))
    assert steps == wanted or abs(walk[min(first, most) - 1] - gap) < 1e-9 * gap
    assert took == pytest.approx(walk[steps - 1], rel=1e-9)
    assert not more or before == pytest.approx(walk[steps - 2] if steps > 1 else 0.0, rel=1e-9, abs=1e-12)


_ROWS = ContextTable(lambda n, c: 0.001 + 1e-6 * n + 1e-9 * n * c + 2e-5 * np.sqrt(c), 9000, 200)


@given(st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 20000)), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_any_mix_of_prompts_is_as_good_as_some_alike(mix: list[tuple[int, int]]) -> None:
    def seconds(tokens: Any, pairs: Any, kv: Any) -> Any:  # any smooth function of the three sums
        return 1e-5 + ((1e-10 * pairs) ** 3 + (2e-9 * tokens + 3e-9 * kv) ** 3) ** (1 / 3)

    surface = PrefillSurface(lambda n, q, c: seconds(n * q, n * q * (c + (q + 1) / 2), n * (c + q)))
    tokens, kv = sum(q for q, _ in mix), sum(c + q for q, c in mix)
    pairs = sum(q * (c + (q + 1) / 2) for q, c in mix)
    assert surface.at(tokens, pairs, kv) == pytest.approx(seconds(tokens, pairs, kv), rel=3e-3)


def test_a_hot_chip_is_slower_and_cools_down() -> None:
    bound_plan = bound_plan_of("experts")  # on an H200, which throttles
    cost, frequent = step_cost(bound_plan, 4096), step_cost(bound_plan, 4096, [7000])
    batch, chunk = batch_of([300] * 4), [(9, 7000, 0)]
    cold, warm, hot = (cost.mixed_seconds(batch, chunk, 1, heat) for heat in (0.0, 0.5, 1.0))
    assert cold == cost.mixed_seconds(batch, chunk, 1) < warm < hot < 1.13 * cold
    assert warm == pytest.approx((cold + hot) / 2, rel=1e-9) == frequent.mixed_seconds(batch, chunk, 1, 0.5)
    assert cost.throttle_after and not step_cost(bound_plan_of("dense"), 64).throttle_after
    launched = [cost.mixed_seconds(batch, [(9, 1000, 0)], 1, heat) for heat in (0.0, 1.0)]
    assert launched[0] == launched[1], "slower kernels hide behind the launches of experts"
    throttle = Throttle(0.1)
    fractions = []
    for step in range(30):
        fractions.append(throttle.fraction_at(0.05 * step))
        throttle.add_load(0.05 * step, 0.05, 0.9)
    assert fractions[0] == 0 and fractions == sorted(fractions) and 0.7 < fractions[-1] < 1
    assert throttle.fraction_at(1.6) < 0.4 * throttle.fraction_at(1.5) and throttle.fraction_at(10.0) < 1e-9


@given(st.floats(0, 0.2), st.lists(st.floats(1e-3, 0.1), min_size=1, max_size=12))
def test_decode_steps_while_a_chip_cools_take_as_long_one_by_one(cooling: float, durations: list[float]) -> None:
    throttle = Throttle(0.1, cooling)
    throttle.add_load(0.0, 0.2, 0.8)
    one_by_one = now = 0.2
    for seconds in durations:
        one_by_one += throttle.decoding(one_by_one, seconds)
    together = throttle.decoding(now, sum(durations))
    assert one_by_one - now == pytest.approx(together, rel=1e-12)
    assert throttle.decoding_each(now, np.array(durations)).sum() == pytest.approx(together, rel=1e-12)
    assert throttle.cold_seconds(now, together) == pytest.approx(sum(durations), rel=1e-12)
    assert sum(durations) <= together <= (1 + cooling * throttle.fraction_at(now)) * sum(durations) * (1 + 1e-12)


def test_answers_are_slower_where_prompts_have_heated_the_chip() -> None:
    """Dense models in 16 bit alone: the same answers take 1 to 7% longer while prompts come, and no 8-bit ones do."""
    lengths = {"num_prompts": 40, "request_rate": 8, "input_len": 4000, "output_len": 64}

    def tpot(gpu: str, **plan: Any) -> float:
        trace = synthetic(**lengths)
        outcome = simulate("llama-3.1-8b", gpu, trace=trace, **plan)
        return float(np.mean((outcome.finished_s - outcome.first_token_s) / 63))

    ratio = tpot("h200") / tpot("h200:throttle_memory=0")
    assert 1.005 < ratio < 1.07
    assert tpot("h200", quantization="fp8") == tpot("h200:throttle_memory=0", quantization="fp8")
    assert bound_plan_of("experts").env["cooling"] == 0
    cooling = {
        name: step_cost(build_request(model, "h200", **plan).bind(), 4096).cooling
        for name, model, plan in (("large", "qwen3-8b", {}), ("eager", "qwen3-8b", EAGER), ("small", "qwen3-0.6b", {}))
    }
    assert cooling["large"] > 0 == cooling["eager"] == cooling["small"], "the others wait for the host"


def test_a_prompt_of_many_pieces_heats_as_analyze_says() -> None:
    outcome = simulate(
        "qwen3-8b",
        "h200",
        frontend="in-process",
        trace=Trace(input_tokens=np.array([38000]), output_tokens=np.array([1]), arrival_s=np.zeros(1)),
    )
    report = analyze("qwen3-8b", gpu="h200", input_len=38000, output_len=1)
    assert outcome.first_token_s[0] * 1e3 == pytest.approx(report.metrics.ttft_ms, rel=0.02)  # of mean steps
