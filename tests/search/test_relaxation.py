"""What would make a plan possible: which searches are tried, in which order, and which change is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer import BadValue, search
from inferometer.search.modes import aggregated
from inferometer.search.objective import build_objective, build_traffic
from inferometer.search.plan_table import PlanTable, Status
from inferometer.search.relaxation import Relaxer, lowest_metric, multiplies, round_down, round_up
from inferometer.search.search_result import Candidate, PlanMetrics, PoolSpec, Search, SimulationResult
from inferometer.search.server_table import estimate_servers
from inferometer.search.space import Problem, build_space, servers

LIMITS = {"ttft": 20.0, "tpot": 5.0}


def winner(request_rate: float = 12.39) -> Candidate:
    metrics = PlanMetrics(
        request_rate=request_rate,
        output_throughput=1,
        output_throughput_per_gpu=1,
        output_throughput_per_user=1,
        ttft_ms=1,
        tpot_ms=1,
        e2el_ms=1,
        cost_per_million_output_tokens=None,
        joules_per_output_token=None,
    )
    pool = PoolSpec(
        role="both",
        replicas=2,
        tensor_parallel_size=4,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        enable_expert_parallel=False,
        quantization="fp8",
        kv_cache_dtype="bf16",
        max_num_batched_tokens=8192,
        max_num_seqs=256,
    )
    trial = SimulationResult(
        request_rate=request_rate, holds=True, good=1.0, requests=1, concurrency=1, ttft_ms={}, tpot_ms={}, e2el_ms={}
    )
    return Candidate(gpu="h200", mode="aggregated", pools=[pool], gpus=8, idle_gpus=0, priced=metrics, trial=trial)


class FakeSearch:
    """A search that has a winner where ``feasible`` says so, and remembers its calls."""

    def __init__(self, feasible: Callable[[dict[str, Any]], bool]) -> None:
        self.feasible, self.calls = feasible, list[dict[str, Any]]()

    def __call__(self, **kwargs: Any) -> Search:
        self.calls.append(kwargs)
        feasible = self.feasible(kwargs)
        return Search(
            model="m",
            engine="vllm",
            num_gpus=1,
            objective="throughput",
            goodput={},
            goodput_share=0.9,
            workload={},
            feasible=feasible,
            reason="",
            winner=winner() if feasible else None,
            why=[],
            margin={},
            plans=[],
            rejected=[],
            rejections={},
            front=[],
            space={},
            counts={},
            commands={},
            relaxations=[],
            seconds={},
            warnings=[],
        )


def kwargs_of(**changes: Any) -> dict[str, Any]:
    return {"model": "m", "gpu": ["h200"], "num_gpus": 2, "request_rate": None, **changes}


def changes(search: FakeSearch, table: PlanTable | None = None, **kwargs: Any) -> list[str]:
    return [one.change for one in Relaxer(search, kwargs_of(**kwargs), LIMITS).relaxations(table)]


@pytest.fixture(scope="module")
def table() -> PlanTable:
    """Plans of one GPU, none of which keeps the limits."""
    model = "llama-3.1-8b"
    space = build_space(model, ["h200"], 1, modes=("aggregated",), quantization="bf16", max_num_seqs=[8, 64])
    traffic = build_traffic(input_len=2000, output_len=200)
    problem = Problem(model, space, traffic, build_objective("throughput", LIMITS, 0.9))
    estimates, _ = estimate_servers(servers(space, model)[0], problem)
    assert estimates is not None
    plans = PlanTable(problem, estimates, aggregated(estimates, problem))
    assert not (plans.plans.status == Status.MEETS_SLO).any()
    return plans


def test_more_gpus_are_doubled_until_they_do() -> None:
    search = FakeSearch(lambda kwargs: kwargs["num_gpus"] >= 8)
    assert changes(search) == ["--num-gpus 8"]
    assert [call["num_gpus"] for call in search.calls[:2]] == [4, 8]


def test_a_smaller_precision_is_one_that_the_gpu_multiplies() -> None:
    search = FakeSearch(lambda kwargs: "quantization" in kwargs and kwargs["quantization"] != "bf16")
    assert changes(search) == ["-q w4a16"], "fp8 was tried already, and an H200 has no fp4"
    assert changes(search, quantization="bf16") == ["-q fp8"]
    assert changes(search, gpu=["b200"]) == ["-q nvfp4"]
    assert multiplies(["h200"], "fp8") and not multiplies(["a100-sxm-80gb"], "fp8")
    assert multiplies(["a100-sxm-80gb"], "w4a16"), "weights alone: it is multiplied in 16 bits"


def test_a_lower_rate_is_rounded_down() -> None:
    search = FakeSearch(lambda kwargs: kwargs["request_rate"] == "max")
    assert changes(search, request_rate=30.0) == ["--request-rate 12"]
    assert changes(FakeSearch(lambda kwargs: False), request_rate=30.0) == []


def test_one_limit_is_raised_from_what_estimates_allow(table: PlanTable) -> None:
    lowest = lowest_metric("ttft", table)
    assert lowest is None, "no load keeps tpot:5"
    loose = table._replace(problem=table.problem._replace(objective=build_objective("throughput", "ttft:20", 0.9)))
    lowest = lowest_metric("ttft", loose)
    assert lowest is not None and lowest > 0.02
    needed = lowest * 1e3 * 1.2  # the simulator wants a fifth more than the means
    search = FakeSearch(lambda kwargs: kwargs["goodput"]["ttft"] >= needed)
    (one,) = Relaxer(search, kwargs_of(), {"ttft": 20.0}).relaxations(loose)[:1]
    limit = float(one.change.removeprefix("--goodput ttft:"))
    assert needed <= limit < needed * 1.3 and one.plan == "2 × tp4 fp8, KV bf16" and one.simulated
    tried = [call["goodput"]["ttft"] for call in search.calls if call["goodput"]["ttft"] != 20.0]
    assert max(value for value in tried if value < limit) < needed and len(tried) <= 4, "the smallest that helps"


def test_all_limits_together_where_none_alone_helps(table: PlanTable) -> None:
    search = FakeSearch(lambda kwargs: all(kwargs["goodput"][name] > limit for name, limit in LIMITS.items()))
    (one,) = Relaxer(search, kwargs_of(), LIMITS).relaxations(table)[:1]
    limits = dict(pair.split(":") for pair in one.change.removeprefix("--goodput ").split(","))
    ratio = float(table.plans.slo_ratio.min())
    assert ratio > 1 and float(limits["ttft"]) == round_up(20 * ratio) and float(limits["tpot"]) == round_up(5 * ratio)


def test_a_change_that_is_not_allowed_is_no_relaxation() -> None:
    def refuse(**kwargs: Any) -> Search:
        raise BadValue("`num_gpus` is too large")

    reported: list[int] = []
    relaxer = Relaxer(refuse, kwargs_of(), LIMITS, lambda stage, done: reported.append(done))
    assert relaxer.relaxations(None) == []
    assert reported == list(range(1, relaxer.attempts + 1)) and relaxer.attempts > 3


@given(st.floats(1e-3, 1e9))
def test_rounding_keeps_two_digits_and_its_side(value: float) -> None:
    up, down = round_up(value), round_down(value)
    assert down <= value * (1 + 1e-6) and value <= up * (1 + 1e-6)
    assert up <= value * 1.1 + 1e-9 and down >= value * 0.9 - 1e-9
    assert float(f"{up:.2g}") == pytest.approx(up) and float(f"{down:.2g}") == pytest.approx(down)


@pytest.mark.slow
def test_pools_that_do_not_keep_up_have_a_reason_without_a_rate() -> None:
    """Slow links between a prefill and a decode server: no load is served, and no rate was given to fall short of."""
    result = search(
        "qwen3-0.6b",
        gpu="radeon-r9700",
        output_len=8,
        mode="disaggregated",
        goodput={"ttft": 169.2, "tpot": 26.57},
        finalists=1,
    )
    assert not result.feasible and "cannot keep up" in result.reason
