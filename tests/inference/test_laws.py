"""Laws that hold for every model, machine and load: nothing beats light, more of anything good is never slower."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.plans import bound_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import analyze
from inferometer.costs.binding import step_rows, step_seconds
from inferometer.costs.step import Group, Step
from inferometer.specs import catalog

MODELS = st.sampled_from(
    [
        "llama-3.1-8b",
        "mixtral-8x7b-v0.1",
        "deepseek-v2-lite",
        "gpt-oss-20b",
        "qwen3-next-80b-a3b",
        "gemma-2-9b",
        "mamba2-2.7b",
        "deepseek-v4-flash",
        "nemotron-h-56b",
        "minimax-m3",
    ]
)
GPUS = st.sampled_from(["h100-sxm", "h200", "a100-sxm-80gb", "b200", "rtx4090", "t4", "mi300x", "tpu-v5e"])
ENGINES = st.sampled_from(["vllm", "sglang", "trtllm", "hf", "roofline"])
TP = st.sampled_from([1, 2, 4, 8])
groups = st.tuples(st.integers(1, 200), st.integers(1, 3000), st.integers(0, 5000), st.booleans()).map(
    lambda g: Group(g[0], 1 if g[3] else g[1], g[2], 1, g[3])
)
steps = st.lists(groups, min_size=1, max_size=3).map(lambda groups: Step(tuple(groups)))
few = settings(max_examples=80, deadline=None)


@pytest.mark.slow
@few
@given(MODELS, GPUS, ENGINES, TP, steps)
def test_no_operator_beats_its_roofline(model: str, gpu: str, engine: str, tp: int, step: Step) -> None:
    plan = bound_plan(model, gpu, engine, tensor_parallel_size=tp)
    rows = step_rows(plan, step)
    for row in rows:
        assert row.seconds >= row.terms.roofline * (1 - 1e-9), row.op.name
        assert all(np.isfinite(value) and value >= 0 for value in row.work.values()), row.op.name
    assert sum(row.seconds * row.count for row in rows) == pytest.approx(step_seconds(plan, step), rel=1e-9)


@pytest.mark.slow
@few
@given(MODELS, ENGINES, TP, steps, st.sampled_from(["memory_bandwidth", "flops", "links"]), st.floats(1.01, 8))
def test_better_hardware_is_never_slower(model: str, engine: str, tp: int, step: Step, what: str, by: float) -> None:
    device = catalog.hardware("h100-sxm")
    better = {
        "memory_bandwidth": f"memory_bandwidth={device.memory_bandwidth * by}",
        "flops": ",".join(f"flops.{k}={v * by}" for k, v in device.flops.items()),
        "links": f"links.nvlink.bandwidth={device.links['nvlink'].bandwidth * by},links.nvlink.latency=0",
    }[what]
    base, other = (
        bound_plan(model, "h100-sxm", engine, tensor_parallel_size=tp),
        bound_plan(model, f"h100-sxm:{better}", engine, tensor_parallel_size=tp),
    )
    assert step_seconds(other, step) <= step_seconds(base, step) * (1 + 1e-9)


@pytest.mark.slow
@few
@given(MODELS, GPUS, ENGINES, st.integers(1, 300), st.integers(1, 4000), st.integers(0, 9000), st.booleans())
def test_more_work_is_never_faster(model: str, gpu: str, engine: str, n: int, q: int, c: int, decoding: bool) -> None:
    plan = bound_plan(model, gpu, engine)
    q = 1 if decoding else q

    def took(seqs: int, new: int, cached: int) -> float:
        kernels = [
            row for row in step_rows(plan, Step((Group(seqs, new, cached, 1, decoding),))) if row.op.kind != "host"
        ]
        return float(sum(row.seconds * row.count for row in kernels))

    slack = 1e-9 if engine == "roofline" else 0.12  # a library may choose a better kernel for a larger shape
    base = took(n, q, c) * (1 - slack)
    assert took(n + 1, q, c) >= base and took(2 * n, q, c) >= base
    assert took(n, q, c + 1) >= base and took(n, q, 2 * c) >= base
    assert decoding or took(n, q + 1, c) >= base


@pytest.mark.slow
@few
@given(
    MODELS,
    ENGINES,
    TP,
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 4000), st.integers(0, 9000)), min_size=2, max_size=6),
)
def test_arrays_are_floats_side_by_side(model: str, engine: str, tp: int, points: list[tuple[int, int, int]]) -> None:
    plan = bound_plan(model, engine=engine, tensor_parallel_size=tp)
    seqs, new, cached = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    both = Step((Group(seqs, new, cached), Group(seqs, 1.0, cached, decode=True)))
    alone = [step_seconds(plan, Step((Group(n, q, c), Group(n, 1.0, c, decode=True)))) for n, q, c in points]
    assert step_seconds(plan, both) == pytest.approx(alone, rel=1e-9)


@pytest.mark.slow
@few
@given(MODELS, GPUS, ENGINES, steps)
def test_one_device_sends_nothing(model: str, gpu: str, engine: str, step: Step) -> None:
    for row in step_rows(bound_plan(model, gpu, engine), step):
        assert row.work["sent"] == row.work["hops"] == row.terms.link == row.terms.latency == 0
        assert row.op.kind not in ("all_reduce", "all_gather") or row.seconds == 0


@pytest.mark.slow
@few
@given(MODELS, TP, steps)
def test_ranks_share_the_work(model: str, tp: int, step: Step) -> None:
    one, many = step_rows(bound_plan(model), step), step_rows(bound_plan(model, tensor_parallel_size=tp), step)

    def flops(rows: list[Any]) -> float:
        return float(sum(row.work["flops"] * row.count for row in rows))

    assert flops(one) / tp <= flops(many) * (1 + 1e-9) <= flops(one) * (1 + 1e-6)


@pytest.mark.slow
@few
@given(MODELS, steps)
def test_fewer_bits_never_read_more(model: str, step: Step) -> None:
    def moved(**plan: Any) -> float:
        return float(sum(row.bytes * row.count for row in step_rows(bound_plan(model, **plan), step)))

    base = moved(quantization="bf16", kv_cache_dtype="bf16")
    assert moved(quantization="bf16", kv_cache_dtype="fp8") <= base
    assert moved(quantization="w4a16", kv_cache_dtype="bf16") <= base


@pytest.mark.slow
@few
@given(MODELS, steps, st.floats(0.05, 1), st.floats(0.05, 1))
def test_a_lower_efficiency_is_never_faster(model: str, step: Step, a: float, b: float) -> None:
    low, high = sorted((a, b))

    def took(share: float) -> float:
        factors = dict.fromkeys(("flops", "hbm", "intra", "inter"), share)
        plan = bound_plan(model, engine="roofline", efficiency=factors)
        return float(step_seconds(plan, step))

    times = [took(low), took(high), took(1.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(times[2] / low)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(MODELS, st.integers(1, 64), st.integers(1, 8000), st.integers(2, 600), TP)
def test_reports_hold_together(model: str, batch: int, length: int, answer: int, tp: int) -> None:
    kwargs = {"batch_size": batch, "input_len": length, "output_len": answer, "tensor_parallel_size": tp}
    report = analyze(model, gpu="b200", **kwargs)
    m = report.metrics
    assert report.roofline.ttft_ms <= m.ttft_ms and report.roofline.tpot_ms <= m.tpot_ms  # type: ignore[operator]
    assert m.e2el_ms == pytest.approx(m.ttft_ms + (answer - 1) * m.tpot_ms)  # type: ignore[operator]
    held = report.memory
    assert report.feasible == (held.total_bytes <= held.usable_bytes and "divide" not in (report.reason or ""))
    assert (held.max_batch_size >= batch) == (held.total_bytes <= held.usable_bytes)
    assert (report.reason is None) == report.feasible
