"""Figures of a machine, turned: signs, bounds and laws; targets hold when put back in; platforms are minimal."""

from __future__ import annotations

import math
from functools import cache

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferometer import sensitivity
from inferometer.inference.analyze import analyze
from inferometer.inference.request import Request, build_request
from inferometer.sensitivity.evaluation import METRICS, bind_request, evaluate, evaluate_metric
from inferometer.sensitivity.parameters import ALL_SPEEDS, links_in_use, parameters
from inferometer.sensitivity.sensitivity_report import Sensitivity
from inferometer.sensitivity.sizing import smallest_platform, with_layout
from inferometer.sensitivity.targets import bisect, demand, solve
from inferometer.specs import catalog

TIMES = ("ttft_ms", "tpot_ms", "e2el_ms")
PLANS = [
    ("llama-3.1-8b", {}),
    ("llama-3.1-8b", {"quantization": "fp8", "engine": "trtllm"}),
    ("qwen3-30b-a3b", {"data_parallel_size": 2, "enable_expert_parallel": True}),
    ("llama-3.1-70b", {"tensor_parallel_size": 8, "engine": "sglang"}),
    ("llama-3.1-70b", {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "engine": "roofline"}),
    ("llama-3.1-8b", {"cpu_offload_gb": 4.0, "engine": "hf"}),
]
GPUS = ("h200", "h100-nvl", "gh200", "h20", "b100", "a100-sxm-40gb", "l40s", "rtx4090", "mi300x", "tpu-v5e")


@cache
def looked(model: str, gpu: str = "h200", **kwargs: object) -> Sensitivity:
    return sensitivity(model, gpu, **dict(kwargs))


# ------------------------------------------------------------------ figures


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    plan=st.sampled_from(PLANS),
    gpu=st.sampled_from(GPUS),
    batch=st.integers(1, 256),  # an A100 of 40 GB takes no more at once by default
    prompt=st.integers(16, 20_000),
    factor=st.floats(1.01, 40),
)
@example(
    plan=("llama-3.1-8b", {"quantization": "fp8", "engine": "trtllm"}), gpu="h20", batch=1, prompt=1500, factor=1.1
)
def test_better_figures_never_make_anything_slower(plan, gpu, batch, prompt, factor):
    model, kwargs = plan
    request = build_request(model, gpu, batch_size=batch, input_len=prompt, **kwargs)
    base = evaluate(request)
    for key, parameter in parameters(request).items():
        if key == "memory":
            continue
        better = evaluate(parameter.scaled_request(request, factor**parameter.better))
        for field in TIMES:
            here, there = getattr(base, field), getattr(better, field)
            elasticity = math.log(there / here) / math.log(factor)
            heat = request.device.throttle  # a shorter prompt lowers the clocks less, so a little more than all arrives
            assert -1 - heat - 1e-9 <= elasticity <= 1e-9, f"{key} ×{factor:.3g}: {field} {here} -> {there}"


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    model=st.sampled_from(["llama-3.1-8b", "mixtral-8x7b-v0.1", "deepseek-v3"]),
    gpu=st.sampled_from(GPUS),
    tp=st.sampled_from([1, 8]),
    batch=st.integers(1, 200),
    prompt=st.integers(16, 20_000),
    factor=st.floats(1.05, 8),
)
def test_all_speeds_together_divide_the_time_on_the_perfect_engine(model, gpu, tp, batch, prompt, factor):
    """Time has no other unit to come from; and one by one, gains add up to no more than that, losses to no less."""
    request = build_request(model, gpu, engine="roofline", tensor_parallel_size=tp, batch_size=batch, input_len=prompt)
    every, base = parameters(request), evaluate(request)
    faster = evaluate(every[ALL_SPEEDS].scaled_request(request, factor))
    for field in TIMES:
        assert getattr(faster, field) == pytest.approx(getattr(base, field) / factor, rel=1e-9)
    alone = [
        parameter
        for parameter in every.values()
        if not parameter.within and parameter.key != "memory" and parameter.of == "hardware"
    ]
    for field in ("ttft_ms", "tpot_ms"):
        for sign, beyond in ((1, False), (-1, True)):
            moved = [
                evaluate(parameter.scaled_request(request, factor ** (sign * parameter.better))) for parameter in alone
            ]
            total = sum(abs(math.log(getattr(one, field) / getattr(base, field))) for one in moved) / math.log(factor)
            assert total >= 1 - 1e-9 if beyond else total <= 1 + 1e-9


def test_decoding_on_an_h200_follows_its_memory():
    """A large model's decode step is mostly reading weights: nearly all of a tenth arrives."""
    figures = looked("qwen3-32b", batch_size=8).figures
    up, down = figures["memory_bandwidth"].up, figures["memory_bandwidth"].down
    assert -1 <= up.elasticity["tpot_ms"] < -0.85 and -1 <= down.elasticity["tpot_ms"] < -0.85
    assert up.change["tpot_ms"] == pytest.approx(1.1 ** up.elasticity["tpot_ms"] - 1)
    assert abs(figures["flops"].up.elasticity["tpot_ms"]) < 0.02
    assert figures["flops"].up.elasticity["ttft_ms"] < -0.85


def test_rooflines_kink():
    """A prompt that just fills the host's launches gains little from faster chips and loses much from slower ones."""
    figures = looked("llama-3.1-8b", host_profile="server:launch=8.2e-6").figures
    up, down = (abs(change.elasticity["ttft_ms"]) for change in (figures["flops"].up, figures["flops"].down))
    assert down > 2 * up
    assert figures["launch"].up.change["ttft_ms"] > 0.01 > abs(figures["launch"].down.change["ttft_ms"])


def test_every_change_is_what_analyze_says():
    """The keys are those of the hardware file, so a figure can be put back in by hand."""
    report = looked("llama-3.1-70b", tensor_parallel_size=4, batch_size=16)
    device = catalog.hardware("h200")
    for key in ("memory_bandwidth", "flops.bf16", "links.nvlink.bandwidth", "links.nvlink.latency"):
        value = report.figures[key].value
        assert value == catalog.dotted(msgspec.to_builtins(device))[key]
        again = analyze("llama-3.1-70b", f"h200:{key}={1.1 * value!r}", tensor_parallel_size=4, batch_size=16)
        for field in ("ttft_ms", "tpot_ms"):
            ratio = getattr(again.metrics, field) / getattr(report.metrics, field)
            assert ratio - 1 == pytest.approx(report.figures[key].up.change[field], rel=1e-9, abs=1e-12), key


@pytest.mark.parametrize(
    ("kwargs", "used"),
    [
        ({}, set()),
        ({"tensor_parallel_size": 4}, {"nvlink"}),
        ({"tensor_parallel_size": 4, "interconnect": "pcie"}, {"pcie"}),
        ({"pipeline_parallel_size": 2}, {"nvlink"}),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, {"nvlink", "network"}),
        ({"tensor_parallel_size": 16}, {"nvlink", "network"}),
        ({"data_parallel_size": 4}, set()),
        ({"cpu_offload_gb": 4.0}, {"pcie"}),
    ],
)
def test_links_that_no_axis_uses_move_nothing(kwargs, used):
    request = build_request(
        "llama-3.1-8b" if kwargs.get("tensor_parallel_size") != 16 else "llama-3.1-70b", "h200", **kwargs
    )
    assert links_in_use(request) == used
    base = evaluate(request)
    for key, parameter in parameters(request).items():
        if key.startswith("links."):
            assert parameter.used == (key.split(".")[1] in used)
            moved = evaluate(parameter.scaled_request(request, 0.3)) != base
            assert moved == parameter.used or key.endswith("latency"), key


def test_experts_of_replicas_meet_over_the_link():
    request = build_request("qwen3-30b-a3b", "h200", data_parallel_size=2, enable_expert_parallel=True, batch_size=64)
    assert links_in_use(request) == {"nvlink"}
    assert links_in_use(build_request("llama-3.1-8b", "h200", data_parallel_size=2, batch_size=64)) == set()


def test_memory_acts_through_the_largest_batch():
    report = looked("llama-3.1-8b", "l40s", input_len=512, output_len=1024, batch_size=4)
    up, down = report.figures["memory"].up, report.figures["memory"].down
    for field in ("ttft_ms", "tpot_ms", "output_throughput", "cost_per_million_output_tokens"):
        assert up.change[field] == down.change[field] == 0
    assert up.change["full_batch_size"] > 0.1 > -0.1 > down.change["full_batch_size"]
    assert up.change["full_output_throughput"] > 0 > down.change["full_output_throughput"]
    assert up.elasticity["full_cost_per_million_output_tokens"] == pytest.approx(
        -up.elasticity["full_output_throughput"]
    )


def test_formats_in_use_are_told_apart():
    figures = looked("llama-3.1-8b", quantization="fp8", batch_size=64).figures
    both = [figures[key].up.elasticity["ttft_ms"] for key in ("flops.fp8", "flops.bf16")]
    assert all(x < -0.01 for x in both) and both[0] < both[1]
    assert "flops.fp8" not in looked("llama-3.1-8b").figures
    dequantised = looked("llama-3.1-8b", "a100-sxm-80gb", quantization="fp8").figures
    assert [key for key in dequantised if key.startswith("flops.")] == ["flops.bf16"]


def test_cost_moves_against_throughput_and_energy_less_so():
    figure = looked("llama-3.1-8b", batch_size=8).figures["memory_bandwidth"].up
    rate = figure.elasticity["output_throughput"]
    assert rate > 0
    assert figure.elasticity["cost_per_million_output_tokens"] == pytest.approx(-rate)
    assert -rate < figure.elasticity["joules_per_output_token"] < -rate / 2  # its bytes take their energy all the same


def test_the_summary_names_the_figure_that_a_metric_follows():
    text = looked("llama-3.1-70b", tensor_parallel_size=2, batch_size=8).summary
    assert "TPOT depends most on memory bandwidth (−" in text and "TTFT depends most on FLOP/s (−" in text


def test_a_model_that_does_not_fit_is_still_looked_at():
    report = looked("llama-3.1-70b", "h100-sxm")
    assert not report.feasible and "fits with -tp 2" in report.reason
    assert report.figures["memory_bandwidth"].up.elasticity["tpot_ms"] < -0.8
    again = analyze("llama-3.1-70b", f"h100-sxm:memory={report.memory_needed * 1.0001!r}")
    assert again.feasible and not analyze("llama-3.1-70b", f"h100-sxm:memory={report.memory_needed * 0.999!r}").feasible


# ------------------------------------------------------------------ targets


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    plan=st.sampled_from(PLANS),
    gpu=st.sampled_from(("h200", "a100-sxm-80gb", "mi300x")),
    word=st.sampled_from(["ttft", "tpot", "e2el", "throughput", "cost"]),
    aim=st.floats(0.3, 3),
)
def test_targets_hold_when_put_back_in(plan, gpu, word, aim):
    model, kwargs = plan
    request = build_request(model, gpu, batch_size=8, **kwargs)
    metric = METRICS[word]
    now = evaluate_metric(request, metric)
    if now is None:  # a device without a price
        return
    limit = now * aim
    for key, parameter in parameters(request).items():
        solution = solve(request, parameter, metric, limit)
        assert (solution.status == "holds") == metric.holds(now, limit)
        if solution.status == "never":
            far = evaluate_metric(parameter.scaled_request(request, 64.0**parameter.better), metric)
            assert not metric.holds(far, limit), key
            assert solution.best is None or not metric.holds(solution.best, limit) or key == ALL_SPEEDS
        elif solution.factor is not None and key != "memory":
            there = evaluate_metric(parameter.scaled_request(request, solution.factor), metric)
            assert metric.holds(there, limit), f"{key} ×{solution.factor}: {there} for {limit}"
            worse = evaluate_metric(
                parameter.scaled_request(request, solution.factor * 0.999**parameter.better), metric
            )
            assert not metric.holds(worse, limit) or worse == pytest.approx(limit, rel=1e-4), key


def test_a_target_through_analyze():
    report = sensitivity("llama-3.1-8b", "h200", batch_size=8, target="tpot:4")
    one = report.targets["tpot"].figures["memory_bandwidth"]
    assert one.status == "reached" and one.value == pytest.approx(4.8e12 * one.factor)
    again = analyze("llama-3.1-8b", f"h200:memory_bandwidth={one.value!r}", batch_size=8).metrics.tpot_ms
    assert 3.999 < again <= 4.0
    assert report.targets["tpot"].figures["flops"].status == "never"
    assert report.targets["tpot"].figures["flops"].best == pytest.approx(report.metrics.tpot_ms, rel=0.01)


def test_slack_of_memory_ends_where_the_plan_no_longer_fits():
    report = sensitivity("llama-3.1-8b", "h200", batch_size=8, target={"tpot": 50.0})
    one = report.targets["tpot"].figures["memory"]
    assert one.status == "holds" and one.value == pytest.approx(report.memory_needed, rel=1e-3)


@pytest.mark.slow
def test_throughput_at_full_load_can_be_a_target_of_memory():
    kwargs = {"input_len": 512, "output_len": 1024, "max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    now = looked("llama-3.1-8b", "l40s", batch_size=4, **kwargs).metrics.full_output_throughput
    report = sensitivity("llama-3.1-8b", "l40s", batch_size=4, target={"full_throughput": 1.3 * now}, **kwargs)
    one = report.targets["full-throughput"].figures["memory"]
    assert one.status == "reached" and 1 < one.factor < 4
    again = sensitivity("llama-3.1-8b", f"l40s:memory={one.value!r}", batch_size=4, **kwargs)
    assert again.metrics.full_output_throughput >= 1.3 * now * (1 - 1e-9)


def test_what_no_figure_reaches_is_infeasible():
    report = sensitivity("llama-3.1-8b", "h200", target="tpot:0.01")
    assert not report.feasible and report.reason.startswith("no single figure reaches TPOT ≤ 0.01 ms")
    assert all(one.status == "never" for one in report.targets["tpot"].figures.values())


@given(root=st.floats(-5.9, 5.9), slope=st.floats(0.01, 20), steps=st.booleans())
def test_gaps_are_closed_from_above(root, slope, steps):
    def gap(x: float) -> float:
        y = (root - x) * slope
        return math.ceil(y * 4) / 4 if steps else y

    closed = bisect(gap, -6, 6)
    assert gap(closed) <= 0 and (gap(closed - 2e-3) > 0 or gap(closed) > -2e-5)


def test_gaps_that_stay_open_or_were_never_there():
    assert bisect(lambda x: 1.0, -6, 6) is None
    assert bisect(lambda x: -1.0, -6, 6) == -6
    assert bisect(lambda x: math.inf if x < 1 else -1.0, -6, 6) == pytest.approx(1.0, abs=1e-3)


# ------------------------------------------------------------------ platforms


def works(request: Request, ranks: tuple[int, int, int], limits: dict[str, float]) -> bool:
    """A layout, judged by `analyze` alone."""
    kwargs = dict(zip(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), ranks, strict=True))
    work = request.workload
    report = analyze(
        request.model.name,
        request.device.name,
        batch_size=work.batch_size,
        input_len=work.input_len,
        output_len=work.output_len,
        **kwargs,
    )
    seen = {word: getattr(report.metrics, METRICS[word].field) for word in limits}
    return report.feasible and all(seen[word] <= limit for word, limit in limits.items())


@pytest.mark.parametrize(
    ("model", "gpu", "work", "limits"),
    [
        ("llama-3.1-8b", "l40s", {"batch_size": 4}, {}),
        ("llama-3.1-70b", "h100-sxm", {"batch_size": 32, "input_len": 4000, "output_len": 500}, {}),
        ("llama-3.1-70b", "h200", {"batch_size": 16}, {"tpot": 16.0}),
        ("qwen2.5-7b", "l4", {"batch_size": 16, "input_len": 8000}, {}),
        ("mixtral-8x7b-v0.1", "a100-sxm-80gb", {"batch_size": 8}, {"ttft": 400.0, "tpot": 20.0}),
    ],
)
def test_no_smaller_platform_works(model, gpu, work, limits):
    request = build_request(model, gpu, **work)
    size = smallest_platform(request, limits)
    assert size.smallest is not None and works(request, size.smallest.ranks, limits)
    assert [tried.gpus for tried in size.tried] == list(range(1, size.smallest.gpus + 1))
    for gpus in range(1, size.smallest.gpus):
        every = [(tp, pp, gpus // (tp * pp)) for tp in range(1, gpus + 1) for pp in range(1, gpus + 1)]
        for ranks in every:
            assert math.prod(ranks) != gpus or not works(request, ranks, limits), ranks
    if size.smaller is not None:
        assert size.smaller.gpus == size.smallest.gpus - 1 and size.smaller.reason and not size.smaller.works


def test_what_binds_a_platform():
    def bound(**kwargs):
        return smallest_platform(build_request("llama-3.1-70b", "h100-sxm", **kwargs), {}).tried

    assert bound(batch_size=1)[0].binding == "weights"
    long = bound(batch_size=64, input_len=4000)
    assert long[-1].works and long[-2].binding == "kv_cache" and 0 < long[-2].short < 1
    slow = smallest_platform(build_request("llama-3.1-8b", "h100-sxm", batch_size=8), {"tpot": 5.0})
    assert slow.smaller.binding == "tpot" and slow.smallest.tpot_ms <= 5.0 < slow.smaller.tpot_ms


def test_the_best_of_several_gpu_types_is_taken():
    report = sensitivity("llama-3.1-70b", "a100-sxm-40gb,h200", size=True, batch_size=16)
    assert [one.gpu for one in report.size] == ["a100-sxm-40gb", "h200"]
    assert report.device["name"] == "h200" and report.plan["gpus"] == 2 == report.size[1].smallest.gpus
    assert report.feasible and "The smallest platform is 2 × h200 (-tp 2)" in report.summary


@pytest.mark.slow
def test_no_platform_at_all():
    report = sensitivity("llama-3.1-8b", "h200", size=True, target="ttft:0.1")
    assert not report.feasible and "no platform of up to 128 × h200" in report.reason
    assert report.size[0].smallest is None and "TTFT" in report.size[0].smaller.reason


def test_nodes_are_whole_beyond_one():
    size = smallest_platform(build_request("deepseek-v3", "h100-sxm"), {})
    assert size.smallest.gpus == 16 and [t.gpus for t in size.tried] == [*range(1, 9), 16]
    placed = with_layout(build_request("deepseek-v3", "h100-sxm"), *size.smallest.ranks)
    assert placed.plan.nodes == 2 and bind_request(placed).fits


# ------------------------------------------------------------------ models and use cases


@pytest.mark.slow
def test_a_larger_model_asks_for_more_of_everything():
    report = sensitivity("llama-2-7b", "h100-sxm", batch_size=16, compare="llama-2-7b,llama-2-70b")
    first, last = report.compare
    assert [row.name for row in report.compare] == ["llama-2-7b", "llama-2-70b"]
    assert first.meets and first.demand.flops == pytest.approx(1, rel=1e-3) and first.size.smallest.gpus == 1
    assert first.demand.memory_bandwidth == pytest.approx(1, rel=1e-3)
    assert not last.fits and "fits with" in last.reason and last.demand.memory > 1
    for key in ("flops", "memory_bandwidth", "memory"):
        assert getattr(last.demand, key) > 1.5 * getattr(first.demand, key), key
    assert last.ttft_ms / first.ttft_ms == pytest.approx(69 / 6.7, rel=0.2)  # by their weights
    assert last.alone["flops"]["tpot"].status == "never"
    assert last.alone[ALL_SPEEDS]["tpot"].factor <= last.demand.flops


def test_what_is_asked_for_is_enough_and_not_too_much():
    request = build_request("llama-2-13b", "h100-sxm", batch_size=16)
    limits = {"ttft": 300.0, "tpot": 9.0}
    needed = demand(request, limits)

    def holds(flops: float, bandwidth: float, slack: float) -> list[bool]:
        every = parameters(request)
        turned = every["memory_bandwidth"].scaled_request(every["flops"].scaled_request(request, flops), bandwidth)
        return [METRICS[w].holds(evaluate_metric(turned, METRICS[w]), limit * slack) for w, limit in limits.items()]

    assert needed.flops > 1 and needed.memory_bandwidth > 1
    assert all(holds(needed.flops, needed.memory_bandwidth, 1.002))
    assert not holds(needed.flops * 0.98, needed.memory_bandwidth, 1)[0]
    assert not holds(needed.flops, needed.memory_bandwidth * 0.98, 1)[1]


@pytest.mark.slow
def test_a_model_alone_takes_the_first_as_the_one_to_keep():
    report = sensitivity(None, "h100-sxm", compare=["llama-2-7b", "llama-2-13b"])
    assert report.model.name == "llama-2-7b" and [row.name for row in report.compare] == ["llama-2-7b", "llama-2-13b"]


@pytest.mark.slow
def test_use_cases_are_judged_by_what_their_users_expect():
    report = sensitivity("llama-3.1-8b", "h100-sxm", compare_usecases=True)
    assert [row.name for row in report.usecases] == list(catalog.usecases())
    for row in report.usecases:
        case, alone = catalog.usecase(row.name), analyze("llama-3.1-8b", "h100-sxm", usecase=row.name)
        assert row.limits == {"ttft": case.ttft * 1e3, "tpot": case.tpot * 1e3}
        assert (row.ttft_ms, row.tpot_ms) == (alone.metrics.ttft_ms, alone.metrics.tpot_ms)
        kept = alone.metrics.ttft_ms <= case.ttft * 1e3 and alone.metrics.tpot_ms <= case.tpot * 1e3
        assert row.meets == (alone.feasible and kept)
        factors = (row.demand.flops, row.demand.memory_bandwidth, row.demand.memory)
        assert row.meets == all(factor is not None and factor <= 1 for factor in factors), row.name
        assert row.size.smallest is None or (row.size.smallest.gpus == 1) == row.meets
    assert {row.meets for row in report.usecases} == {True, False}
